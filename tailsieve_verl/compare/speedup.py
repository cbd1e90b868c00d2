"""How much faster one run is than another, with its uncertainty over steps.

    ratio of means   sum of baseline seconds / sum of the run's seconds: the paper's figure (119.34 / 82.49 = 1.45)
    paired           geometric mean over steps of baseline_t / run_t: no single long step decides it

Steps are taken as independent draws: the interval of the first is a bootstrap over steps (pairs stay together), that of
the second Student's t on logarithms. Of one run of each kind they say how much steps vary, not how much runs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

#: Two-sided level of every interval.
LEVEL = 0.95
#: Enough that an end of the interval moves by less than a tenth of its width from seed to seed.
RESAMPLES = 10_000
SEED = 0


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; NaN ends where there are too few steps."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Speedup:
    """A run against a baseline.

    Attributes:
        steps: how many; ``first`` and ``last`` of them.
        baseline_s, run_s: mean seconds a step.
        of_means: ratio of means.
        paired: geometric mean of the steps' ratios; ``None`` for unpaired runs.
        faster: share of the steps in which the run was faster; ``None`` for unpaired runs.
    """

    steps: int
    first: int
    last: int
    baseline_s: float
    run_s: float
    of_means: Interval
    paired: Interval | None
    faster: float | None


def paired_speedup(steps: Sequence[int], baseline: Sequence[float], run: Sequence[float]) -> Speedup:
    """Both runs at the same steps, seconds.

    Raises:
        ValueError: no step, other lengths, or times that are not positive.
    """
    a, b = _checked(baseline), _checked(run)
    if len(steps) != a.size or a.size != b.size:
        raise ValueError(f"steps and times must be of one length, got {len(steps)}, {a.size} and {b.size}")
    rows = np.random.default_rng(SEED).integers(0, a.size, size=(RESAMPLES, a.size))
    draws = a[rows].sum(axis=1) / b[rows].sum(axis=1)
    logs = np.log(a / b)
    return Speedup(
        a.size,
        min(steps),
        max(steps),
        float(a.mean()),
        float(b.mean()),
        _interval(float(a.sum() / b.sum()), draws, a.size),
        _student(logs),
        float(np.mean(b < a)),
    )


def unpaired_speedup(steps: Sequence[int], baseline: Sequence[float], run: Sequence[float]) -> Speedup:
    """Runs of different prompts: their means alone, each resampled by itself. ``steps`` are the run's."""
    a, b = _checked(baseline), _checked(run)
    rng = np.random.default_rng(SEED)
    means = [values[rng.integers(0, values.size, size=(RESAMPLES, values.size))].mean(axis=1) for values in (a, b)]
    value = float(a.mean() / b.mean())
    interval = _interval(value, means[0] / means[1], min(a.size, b.size))
    return Speedup(b.size, min(steps), max(steps), float(a.mean()), float(b.mean()), interval, None, None)


def _checked(values: Sequence[float]) -> Floats:
    seconds = np.asarray(values, dtype=np.float64)
    if seconds.size == 0 or not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise ValueError("times must be positive seconds of at least one step")
    return seconds


def _interval(value: float, draws: Floats, steps: int) -> Interval:
    if steps < 2:
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def _student(logs: Floats) -> Interval:
    mean = float(logs.mean())
    if logs.size < 2:
        return Interval(math.exp(mean), math.nan, math.nan)
    half = float(stats.t.ppf((1 + LEVEL) / 2, logs.size - 1) * logs.std(ddof=1) / math.sqrt(logs.size))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
