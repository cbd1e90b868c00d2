"""Blocks in order: every request in one of them, filled to about the same cost, and timed as the decode model does."""

import numpy as np
import pytest

from tailsieve_verl.core.blocks import cautious, completions, filled, in_share, makespans
from tailsieve_verl.core.decode import DecodeCurve, finish_times

CURVE = DecodeCurve([1, 8, 32, 128], [0.006, 0.007, 0.0115, 0.03])


def falling(scenarios=6, requests=96):
    level = np.sort(6.0 + 0.8 * np.random.default_rng(1).standard_normal(requests))[::-1]
    return np.exp(level + 0.3 * np.random.default_rng(2).standard_normal((scenarios, requests)))


def test_blocks_cost_about_the_same():
    lengths = falling()
    ends = filled(lengths, 4, CURVE, cautious(0.0))
    assert ends[-1] == lengths.shape[1]
    assert (np.diff(ends, prepend=0) > 0).all()
    assert ends[0] < lengths.shape[1] // 4  # the longest are few
    times = [
        makespans(lengths[:, a:b], np.array([b - a]), CURVE).mean() for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]
    assert max(times) < 1.1 * min(times)


def test_more_replicas_than_requests():
    ends = filled(falling(requests=3), 5, CURVE, cautious(1.0))
    assert ends[-1] == 3
    assert (np.diff(ends, prepend=0) <= 1).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_length_that_is_no_number_is_refused_and_not_searched_for_ever(wrong):
    lengths = falling()
    lengths[0, 5] = wrong
    with pytest.raises(ValueError, match="must be finite"):
        filled(lengths, 4, CURVE, cautious(0.0))


def test_requests_are_done_when_the_decode_model_says():
    lengths = falling()
    ends = np.array([10, 10, 40, 96])
    done = completions(lengths, ends, CURVE)
    for scenario, times in zip(lengths, done, strict=True):
        expected = [finish_times(scenario[a:b], CURVE) for a, b in ((0, 10), (10, 40), (40, 96))]
        assert times == pytest.approx(np.concatenate(expected))
    assert makespans(lengths, ends, CURVE) == pytest.approx(done.max(axis=1))


def test_costs():
    times = np.array([4.0, 1.0, 2.0, 3.0])
    assert cautious(2.0)(times) == pytest.approx(2.5 + 2 * times.std())
    assert in_share(0.5)(times) == 3.0
    assert in_share(1.0)(times) == 4.0
