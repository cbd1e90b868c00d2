"""Intervals that cover what they should: a small dump, and no more of a short run than is left."""

import math

import numpy as np
import pytest
from scipy.stats import t

from tailsieve_verl.advise.intervals import around, expected_gain, risk
from tailsieve_verl.simulate.study import Interval


def pairs(rng, count, gains, steps=36, noise=0.3):
    """Step times of two policies; their true speed-up is drawn anew for each pair."""
    out = []
    for gain in rng.choice(gains, count):
        now, then = (np.exp(noise * rng.standard_normal(steps)) for _ in range(2))
        out.append((gain * now, then))
    return out


def covered(dump_spread, seeds=4, trials=300, halves=20):
    """Share of intervals that hold the true speed-up of 1, and their mean width."""
    rng = np.random.default_rng(0)
    hits, widths = 0, []
    for _ in range(trials):
        dump = math.exp(dump_spread * rng.standard_normal())  # what this dump happens to show
        gains = dump * np.exp(dump_spread * rng.standard_normal(halves))
        found = expected_gain(pairs(rng, seeds, [dump]), [[pairs(rng, 1, [g])[0] for g in gains]])
        hits += found.low <= 1 <= found.high
        widths.append(math.log(found.high / found.low))
    return hits / trials, float(np.mean(widths))


@pytest.mark.parametrize("dump_spread", [0.0, 0.05, 0.2])
def test_95_percent_hold_the_truth(dump_spread):
    """At 0.05 short runs make two thirds of what halves scatter, which is where they are taken off with most error."""
    share, _ = covered(dump_spread, trials=1000)
    assert 0.94 <= share <= 1.0


def test_without_short_runs_it_is_student_s_interval():
    gains = [1.0, 1.1, 1.3, 0.9, 1.2]
    even = [(np.full(20, gain), np.ones(20)) for gain in gains]
    found = expected_gain(even[:1], [even])
    half = t.ppf(0.975, 4) * np.std(np.log(gains), ddof=1)
    assert math.log(found.high) == pytest.approx(half, rel=0.01)


def test_halves_that_scatter_by_chance_less_than_short_runs_must_still_leave_what_short_runs_make():
    rng = np.random.default_rng(2)
    one = pairs(rng, 1, [1.0])[0]
    found = expected_gain([one] * 4, [[one] * 12])
    short = float(np.var(one[0] / one[0].mean() - one[1] / one[1].mean(), ddof=1)) / one[0].size
    assert 1.96 * math.sqrt(short / 4) <= math.log(found.high / found.mean) <= 1.96 * math.sqrt(short)


def test_a_dump_that_scatters_widens_the_interval_and_more_runs_narrow_it():
    assert covered(0.2)[1] > 2 * covered(0.0)[1]
    assert covered(0.0, seeds=16)[1] < 0.8 * covered(0.0, seeds=2)[1]  # twenty halves cannot tell that they all agree


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
