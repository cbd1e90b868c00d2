"""How long and how persistent a tail is: workload construction (paper A.5) and tail statistics (Appendix B).

Invariants: `scale_tail` keeps the order of requests and everything up to the median; the four variance shares are in
0..1 and add up to 1; `tail_auc` is 1 for the same ranking without ties, 0.5 for target scores that are all equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.checks import as_finite_array, as_lengths

#: Digits of fraction * I that count when the tail size is rounded up: 0.1 * 70 is 7.000000000000001 in binary and must
#: give 7 prompts, not 8.
_TAIL_DIGITS = 9


def scale_tail(lengths: ArrayLike, ratio: float) -> NDArray[np.float64]:
    """Stretch or compress the lengths above the median so that P90 / P50 becomes `ratio` (paper A.5).

    L' = L up to the median M, and M + s (L - M) above it, with s = (ratio M - M) / (P90 - M). Percentiles by linear
    interpolation over all lengths; the result is real-valued. M is the median of the input: with an even number of
    lengths it lies between two of them, the upper one moves, and the median of the result is M only up to half that.

    Args:
        lengths: tokens, any shape (for example [N, n] by prompt group and rollout).
        ratio: P90 / P50 aimed at, above 1. The paper's weak, real and strong tails are 1.5, 3.547 and 6.

    Returns:
        Scaled lengths, same shape and order.

    Raises:
        ValueError: empty, negative or non-finite lengths; lengths without a tail (median 0, or P90 equal to it); a
            ratio that is not above 1.
    """
    tokens = as_lengths(lengths, ndim=None)
    if not (math.isfinite(ratio) and ratio > 1):
        raise ValueError(f"ratio must be a finite number above 1, got {ratio}")
    median, p90 = (float(p) for p in np.percentile(tokens, [50, 90]))
    if not 0 < median < p90:
        raise ValueError(f"lengths must have a positive median below their P90, got P50 {median} and P90 {p90}")
    slope = (ratio * median - median) / (p90 - median)
    return np.where(tokens <= median, tokens, median + slope * (tokens - median))


@dataclass(frozen=True)
class VarianceShares:
    """Shares of the total sum of squares of response lengths, each in 0..1; together 1 (paper Appendix B)."""

    prompt: float
    checkpoint: float
    interaction: float
    sampling: float


def variance_shares(x: ArrayLike) -> VarianceShares:
    """Two-factor decomposition of response lengths by prompt and checkpoint (paper Appendix B).

    Args:
        x: lengths in tokens, [I, S, R]: prompt, checkpoint, repeat.

    Raises:
        ValueError: not three axes, empty, negative or non-finite, or all lengths equal (nothing to share out).
    """
    tokens = as_lengths(x, "x", ndim=3)
    prompts, checkpoints, repeats = tokens.shape
    cell = tokens.mean(axis=2)
    by_prompt, by_checkpoint, mean = cell.mean(axis=1), cell.mean(axis=0), cell.mean()
    if tokens.min() == tokens.max():
        raise ValueError(f"x must vary, got {tokens.flat[0]} everywhere")
    parts = np.array(
        [
            checkpoints * repeats * np.sum((by_prompt - mean) ** 2),
            prompts * repeats * np.sum((by_checkpoint - mean) ** 2),
            repeats * np.sum((cell - by_prompt[:, None] - by_checkpoint[None, :] + mean) ** 2),
            np.sum((tokens - cell[:, :, None]) ** 2),
        ]
    )
    prompt, checkpoint, interaction, sampling = (parts / parts.sum()).tolist()
    return VarianceShares(prompt, checkpoint, interaction, sampling)


def tail_auc(source: ArrayLike, target: ArrayLike, fraction: float = 0.1) -> float:
    """How well the tail of one checkpoint ranks another's prompts: Pr(target_i > target_j), i in the tail, j not.

    The tail is the ceil(fraction * I) prompts with the largest source scores, ties by smaller index; equal target
    scores count one half (paper Appendix B).

    Args:
        source: mean length of each prompt at the source checkpoint, [I].
        target: ranking score of the same prompts at the target checkpoint, [I].
        fraction: share of prompts in the tail, in (0, 1).

    Raises:
        ValueError: empty or non-finite scores, different sizes, a fraction out of range, or a tail that takes all
            prompts.
    """
    known, scores = as_finite_array(source, "source"), as_finite_array(target, "target")
    if known.size != scores.size:
        raise ValueError(f"target must have one score per prompt of source ({known.size}), got {scores.size}")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be in (0, 1), got {fraction}")
    size = math.ceil(round(fraction * known.size, _TAIL_DIGITS))
    if size >= known.size:
        raise ValueError(f"fraction {fraction} of {known.size} prompts leaves none outside the tail of {size}")
    order = np.argsort(-known, kind="stable")
    tail, rest = scores[order[:size]], np.sort(scores[order[size:]])
    below = np.searchsorted(rest, tail, side="left")
    up_to = np.searchsorted(rest, tail, side="right")
    return float((below + up_to).sum() / (2 * tail.size * rest.size))
