"""Length bias of what is trained, against what uniform routing would have trained (docs/design.md, "Honesty").

The reference is the length distribution of whole fresh pools, stragglers included. A straggler's length is known only
to exceed what it had reached when it was cut (see :mod:`~tailsieve_verl.core.lengths` for how it is completed), so the
reference is a weighted sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LengthBias:
    """Consumed against reference: mean and p99 relative, truncated as a difference of shares, ks as a distance."""

    mean: float
    p99: float
    truncated: float
    ks: float
    reference_mean: float


def length_bias(
    consumed: ArrayLike, reference: ArrayLike, weights: ArrayLike | None = None, max_tokens: int | None = None
) -> LengthBias:
    """Compare the lengths trained on with those of the fresh pools.

    Args:
        consumed: shape [C], response lengths in update batches.
        reference, weights: shape [K], lengths of the fresh pools' responses and their weights (default: one each).
        max_tokens: response limit; a response that reached it counts as truncated.

    Raises:
        ValueError: if a side is empty, or the weights do not fit the reference.
    """
    used = np.sort(np.asarray(consumed, dtype=np.float64))
    theirs = np.asarray(reference, dtype=np.float64)
    mass = np.ones(theirs.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if used.size == 0 or theirs.size == 0:
        raise ValueError(f"consumed and reference must not be empty, got {used.size} and {theirs.size} lengths")
    if mass.shape != theirs.shape or mass.sum() <= 0:
        raise ValueError(f"weights must be positive, one for each of {theirs.size} lengths, got shape {mass.shape}")
    order = np.argsort(theirs, kind="stable")
    theirs, mass = theirs[order], mass[order] / mass.sum()
    cdf = np.cumsum(mass)
    grid = np.union1d(theirs, used)
    ours_below = np.searchsorted(used, grid, side="right") / used.size
    theirs_below = np.concatenate(([0.0], cdf))[np.searchsorted(theirs, grid, side="right")]
    reference_mean = float(theirs @ mass)
    reference_p99 = float(theirs[min(int(np.searchsorted(cdf, 0.99 - 1e-12)), theirs.size - 1)])
    truncated = 0.0
    if max_tokens is not None:
        truncated = float(np.mean(used >= max_tokens) - mass[theirs >= max_tokens].sum())
    return LengthBias(
        mean=_relative(float(used.mean()), reference_mean),
        p99=_relative(float(np.quantile(used, 0.99, method="inverted_cdf")), reference_p99),
        truncated=truncated,
        ks=float(np.abs(ours_below - theirs_below).max()),
        reference_mean=reference_mean,
    )


def tail_order(unfinished: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Order cut groups by tail signal: most unfinished responses first, then most tokens reached, then launch order."""
    return sorted(range(len(unfinished)), key=lambda i: (-unfinished[i], -tokens[i], i))


def _relative(value: float, reference: float) -> float:
    return value / reference - 1.0 if reference else 0.0
