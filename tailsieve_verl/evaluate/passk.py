"""pass@k without bias, and its standard error.

For a problem with n samples of which c are right, the share of size-k subsets of them that hold a right one,

    pass@k = 1 - C(n - c, k) / C(n, k),

is an unbiased estimate of the probability that k fresh samples do (Chen et al., 2021, eq. 1). A benchmark's figure is
the mean over its problems; its standard error treats the problems as drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def pass_at_k(n: int, c: int, k: int) -> float:
    """One problem's estimate, computed without large numbers: C(n-c, k)/C(n, k) = prod over i of 1 - k/i, i = n-c+1..n.

    Raises:
        ValueError: unless 1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


@dataclass(frozen=True)
class Score:
    """A benchmark's pass@k.

    Attributes:
        k: of pass@k.
        value, error: mean over problems and its standard error (NaN for fewer than two problems), both 0..1.
        problems, samples: problems, and samples over all of them.
    """

    k: int
    value: float
    error: float
    problems: int
    samples: int


def score(right: Sequence[Sequence[bool]], k: int) -> Score:
    """Mean pass@k of problems, each with its samples' verdicts.

    Raises:
        ValueError: no problem, or one with fewer than k samples.
    """
    if not right:
        raise ValueError("pass@k needs at least one problem")
    each = np.array([pass_at_k(len(verdicts), sum(verdicts), k) for verdicts in right])
    error = float(each.std(ddof=1) / math.sqrt(each.size)) if each.size > 1 else math.nan
    return Score(k, float(each.mean()), error, each.size, sum(map(len, right)))
