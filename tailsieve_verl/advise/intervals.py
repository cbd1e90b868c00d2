"""How sure a simulated figure is: the runs on the dump itself give its value, runs on halves of it its uncertainty.

Runs on random halves (`fit.halved`) scatter for two reasons: the dump is small, and a simulated run is short. For a
speed-up the second is known, from the scatter of the steps inside each run, and counts only as far as it is left in the
mean over the runs on the dump itself: the interval is that of the expected speed-up.

    T  variance of a run's log ratio on halves, known from k of them:  s^2 (k - 1) / T ~ chi^2 with k - 1 degrees
    S  the part of it that short runs make, known from the steps:      T >= S
    variance of the mean of r runs:                                    T - (1 - 1/r) S

Putting s^2 for T here would make the difference too small about as often as too large, and Student's quantile allows
for the scatter of s^2 only, which is small beside T, but not beside T - S: with S two thirds of T, as where rare
runaways decide the steps, 95 % intervals would hold the truth in 92 %. So T has its posterior given s^2 and T >= S
(prior 1/T), and the interval holds 95 % of the normal distributions mixed by it. Without S that is Student's interval.

Other figures keep both parts, as one run has them; their intervals are Student's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi2, t

from tailsieve_verl.simulate.study import CONFIDENCE, Interval

#: Step times of two policies in one run, seconds, [steps] each.
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]

#: Where a posterior is looked at: the middles of equally likely slices.
_MIDDLES = (np.arange(1000) + 0.5) / 1000
#: Halves that scatter less than this share of what short runs make leave T at its bound S; less would underflow.
_LEAST = 0.1


def expected_gain(runs: Sequence[Pair], spread: Sequence[Sequence[Pair]]) -> Interval:
    """Geometric mean speed-up of the second over the first of each pair (module docstring).

    Args:
        runs: on the dump itself.
        spread: on halves, for one policy or several; the widest counts, as a controller that stays uniform on every
            half would seem sure of itself.
    """
    mean = float(np.mean([_log_ratio(pair) for pair in runs]))
    half = max(_half(pairs, len(runs)) for pairs in spread)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def risk(gain: Interval, halves: int) -> float:
    """Probability that a gain is below 1, by the Student distribution of so many halves that has its interval."""
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


def _half(pairs: Sequence[Pair], runs: int) -> float:
    """Half the interval of the mean log ratio of `runs` runs, from those on halves (module docstring)."""
    short = float(np.mean([_short(pair) for pair in pairs]))
    total = max(float(np.var([_log_ratio(pair) for pair in pairs], ddof=1)), _LEAST * short)
    if total == 0:
        return 0.0
    free = len(pairs) - 1
    scatter = free * total
    bound = chi2.cdf(scatter / short, free) if short > 0 else 1.0
    deviation = np.sqrt(scatter / chi2.ppf(_MIDDLES * bound, free) - (1 - 1 / runs) * short)
    beyond = 2 * float(deviation.max())  # two deviations hold more than 95 % of each of them
    return float(brentq(lambda half: ndtr(half / deviation).mean() - (1 + CONFIDENCE) / 2, 0.0, beyond))


def _log_ratio(pair: Pair) -> float:
    return float(np.log(pair[0].sum() / pair[1].sum()))


def _short(pair: Pair) -> float:
    """Variance of a run's log ratio that its finite number of steps makes."""
    a, b = pair
    return float(np.var(a / a.mean() - b / b.mean(), ddof=1) / a.size)


def _student(values: int) -> float:
    """Standard errors to either end of an interval that so many values tell."""
    return float(t.ppf((1 + CONFIDENCE) / 2, values - 1))
