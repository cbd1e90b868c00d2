"""Intervals that cover what they should: a small dump, and no more of a short run than is left."""

import math

import numpy as np
import pytest

from tailsieve_verl.advise.intervals import around, expected_gain, risk
from tailsieve_verl.simulate.study import Interval


def pairs(rng, count, gains, steps=36, noise=0.3):
    """Step times of two policies; their true speed-up is drawn anew for each pair."""
    out = []
    for gain in rng.choice(gains, count):
        now, then = (np.exp(noise * rng.standard_normal(steps)) for _ in range(2))
        out.append((gain * now, then))
    return out


def covered(dump_spread, seeds=4, trials=300):
    """Share of intervals that hold the true speed-up of 1, and their mean width."""
    rng = np.random.default_rng(0)
    hits, widths = 0, []
    for _ in range(trials):
        dump = math.exp(dump_spread * rng.standard_normal())  # what this dump happens to show
        halves = dump * np.exp(dump_spread * rng.standard_normal(20))
        found = expected_gain(pairs(rng, seeds, [dump]), [[pairs(rng, 1, [g])[0] for g in halves]])
        hits += found.low <= 1 <= found.high
        widths.append(math.log(found.high / found.low))
    return hits / trials, float(np.mean(widths))


@pytest.mark.parametrize("dump_spread", [0.0, 0.05, 0.2])
def test_95_percent_hold_the_truth(dump_spread):
    share, _ = covered(dump_spread)
    assert 0.9 <= share <= 1.0


def test_a_dump_that_scatters_widens_the_interval_and_more_runs_narrow_it():
    assert covered(0.2)[1] > 2 * covered(0.0)[1]
    assert covered(0.0, seeds=16)[1] < 0.7 * covered(0.0, seeds=2)[1]


def test_the_widest_policy_counts():
    rng = np.random.default_rng(1)
    sure = [(np.ones(20), np.ones(20))] * 8
    unsure = pairs(rng, 8, [0.8, 1.2], steps=20)
    both = expected_gain(sure, [sure, unsure])
    assert both.mean == 1
    assert both.high > 1.1
    assert expected_gain(sure, [sure]) == Interval(1.0, 1.0, 1.0)


def test_the_risk_of_a_loss():
    assert risk(Interval(1.0, 0.9, 1 / 0.9), 12) == pytest.approx(0.5)
    assert risk(Interval(1.1, 1.0, 1.21), 12) == pytest.approx(0.025)  # the interval's own end
    assert risk(Interval(0.97, 0.97, 0.97), 12) == 1
    assert risk(Interval(1.0, 1.0, 1.0), 12) == 0


def test_an_interval_is_held_within_its_range():
    assert around([0.9], [0.7, 0.9, 1.1], least=0, most=1).high == 1
    assert around([-0.9], [-1.0, -0.5], least=-1).low == -1
    assert math.isnan(around([0.5], [0.5]).low)
