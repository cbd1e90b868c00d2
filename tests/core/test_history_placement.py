"""Contiguous blocks: each request once, by predicted length, and faster than dealing where lengths are predictable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, replica_times
from tailsieve_verl.core.history_placement import dealt_seconds, lay_out, verl_default

CURVE = DecodeCurve([1, 8, 32, 128], [0.006, 0.007, 0.0115, 0.03])


def scenarios(rng, pools=8, groups=32, n=4, between=0.8, within=0.4):
    level = 6.0 + between * rng.standard_normal(groups)
    return np.exp(level[None, :, None] + within * rng.standard_normal((pools, groups, n)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), groups=st.integers(1, 24), n=st.integers(1, 5), replicas=st.integers(1, 9))
def test_every_request_has_one_replica_and_longer_ones_a_higher_rank(seed, groups, n, replicas):
    drawn = scenarios(np.random.default_rng(seed), 3, groups, n)
    layout = lay_out(drawn, replicas, CURVE)
    assert layout.replicas.shape == (groups, n)
    assert layout.replicas.min() >= 0
    assert layout.replicas.max() < replicas
    order = np.argsort(-drawn.mean(axis=(0, 2)), kind="stable")
    assert (np.diff(layout.replicas[order].ravel()) <= 0).all()
    assert layout.mean_s == pytest.approx(dealt_seconds(drawn, layout.replicas, replicas, CURVE).mean())


def test_predicted_seconds_are_those_of_the_decode_model():
    drawn = scenarios(np.random.default_rng(0))
    where = lay_out(drawn, 4, CURVE).replicas
    expected = [replica_times(pool, where, 4, CURVE).max() for pool in drawn]
    assert dealt_seconds(drawn, where, 4, CURVE) == pytest.approx(expected)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_faster_than_dealing_on_lengths_of_the_same_kind(replicas):
    rng = np.random.default_rng(3)
    level = 6.0 + 0.8 * rng.standard_normal(64)
    drawn, came = (np.exp(level[None, :, None] + 0.4 * rng.standard_normal((24, 64, 8))) for _ in range(2))
    ours = dealt_seconds(came, lay_out(drawn, replicas, CURVE).replicas, replicas, CURVE).mean()
    dealt = dealt_seconds(came, verl_default(64, 8, replicas), replicas, CURVE).mean()
    assert ours < 0.96 * dealt


def test_prompts_that_look_alike_lose_little():
    rng = np.random.default_rng(4)
    drawn, came = scenarios(rng, 24, 64, 8, between=0.0), scenarios(rng, 24, 64, 8, between=0.0)
    ours = dealt_seconds(came, lay_out(drawn, 8, CURVE).replicas, 8, CURVE).mean()
    assert ours < 1.02 * dealt_seconds(came, verl_default(64, 8, 8), 8, CURVE).mean()


def test_a_very_long_prompt_shares_its_replicas_with_hardly_anything():
    drawn = np.full((4, 16, 2), 100.0)
    drawn[:, 5] = 2000.0
    layout = lay_out(drawn, 4, CURVE)
    assert 3 in layout.replicas[5]
    assert layout.mean_s < 1.02 * 2000 * CURVE(1)


def test_more_replicas_than_requests():
    where = lay_out(np.array([[[5.0], [9.0]]]), 6, CURVE).replicas
    assert sorted(where.ravel()) == [4, 5]


def test_nothing_to_place_is_refused():
    with pytest.raises(ValueError, match="one response"):
        lay_out(np.zeros((2, 0, 4)), 2, CURVE)
