"""How sure a simulated figure is: the runs on the dump itself give its value, runs on halves of it its uncertainty.

Runs on random halves (`fit.halved`) scatter for two reasons: the dump is small, and a simulated run is short. For a
speed-up the second is known, from the scatter of the steps inside each run, and counts only as far as it is left in the
mean over the runs on the dump itself: the interval is that of the expected speed-up. Other figures keep both, as one
run has them. All intervals are Student's, 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from tailsieve_verl.simulate.study import CONFIDENCE, Interval

#: Step times of two policies in one run, seconds, [steps] each.
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def expected_gain(runs: Sequence[Pair], spread: Sequence[Sequence[Pair]]) -> Interval:
    """Geometric mean speed-up of the second over the first of each pair (module docstring).

    Args:
        runs: on the dump itself.
        spread: on halves, for one policy or several; the widest counts, as a controller that stays uniform on every
            half would seem sure of itself.
    """
    mean = float(np.mean([_log_ratio(pair) for pair in runs]))
    half = max(_student(len(pairs)) * math.sqrt(_variance(pairs, len(runs))) for pairs in spread)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def risk(gain: Interval, halves: int) -> float:
    """Probability that a gain is below 1, by the distribution that its interval comes from."""
    half = math.log(gain.high / gain.mean)
    if not half > 0:
        return float(gain.mean < 1)
    return float(t.cdf(-math.log(gain.mean) / half * _student(halves), halves - 1))


def around(
    centre: Sequence[float], spread: Sequence[float], *, least: float = -math.inf, most: float = math.inf
) -> Interval:
    """The mean of `centre`, as uncertain as one of `spread` is; the ends are held in least..most."""
    mean, half = float(np.mean(centre)), math.nan
    if len(spread) > 1:
        half = _student(len(spread)) * float(np.std(spread, ddof=1))
    return Interval(mean, max(mean - half, least), min(mean + half, most))


def _variance(pairs: Sequence[Pair], runs: int) -> float:
    """Variance of the mean log ratio of `runs` runs: between halves, less what short runs add to it."""
    total = float(np.var([_log_ratio(pair) for pair in pairs], ddof=1))
    short = float(np.mean([_short(pair) for pair in pairs]))
    return max(total - short * (1 - 1 / runs), total / runs)


def _log_ratio(pair: Pair) -> float:
    return float(np.log(pair[0].sum() / pair[1].sum()))


def _short(pair: Pair) -> float:
    """Variance of a run's log ratio that its finite number of steps makes."""
    a, b = pair
    return float(np.var(a / a.mean() - b / b.mean(), ddof=1) / a.size)


def _student(values: int) -> float:
    """Standard errors to either end of an interval that so many values tell."""
    return float(t.ppf((1 + CONFIDENCE) / 2, values - 1))
