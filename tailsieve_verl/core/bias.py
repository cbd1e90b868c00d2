"""Length bias of what is trained, against what uniform routing would have trained (design notes, section 6).

The reference is the length distribution of whole fresh pools, stragglers included. Stragglers are right-censored at the
tokens they had reached when they were cut, so the distribution is estimated by the product-limit method (Kaplan and
Meier): cutting is decided by group order, and within a group's remaining length it carries no further information.
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
    consumed_mean: float
    reference_mean: float


def product_limit(lengths: ArrayLike, complete: ArrayLike) -> tuple[Floats, Floats]:
    """Distribution of right-censored lengths.

    Args:
        lengths: shape [K], tokens generated.
        complete: shape [K], False where the response was cut at that length.

    Returns:
        support (sorted distinct lengths) and its probabilities, which sum to 1: the mass beyond the last complete
        response goes to the largest length seen.

    Raises:
        ValueError: if there are no lengths or the shapes differ.
    """
    values = np.asarray(lengths, dtype=np.float64)
    done = np.asarray(complete, dtype=bool)
    if values.size == 0 or values.shape != done.shape:
        raise ValueError(f"lengths and complete need one equal, non-empty shape, got {values.shape} and {done.shape}")
    support, index = np.unique(values, return_inverse=True)
    ended = np.bincount(index, weights=done, minlength=support.size)
    left = np.bincount(index, minlength=support.size)
    at_risk = values.size - np.concatenate(([0], np.cumsum(left)[:-1]))
    survival = np.cumprod(1.0 - ended / at_risk)
    mass = -np.diff(np.concatenate(([1.0], survival)))
    mass[-1] += survival[-1]
    return support, mass


def length_bias(
    consumed: ArrayLike, fresh: ArrayLike, complete: ArrayLike, max_tokens: int | None = None
) -> LengthBias:
    """Compare the lengths trained on with those of the fresh pools (module docstring).

    Args:
        consumed: shape [C], response lengths in update batches.
        fresh, complete: shape [K], lengths reached in fresh pools, and whether each response was complete.
        max_tokens: response limit; a response that reached it counts as truncated.
    """
    used = np.sort(np.asarray(consumed, dtype=np.float64))
    if used.size == 0:
        raise ValueError("consumed must not be empty")
    support, mass = product_limit(fresh, complete)
    cdf = np.cumsum(mass)
    grid = np.union1d(support, used)
    ours = np.searchsorted(used, grid, side="right") / used.size
    theirs = np.concatenate(([0.0], cdf))[np.searchsorted(support, grid, side="right")]
    reference_mean = float(support @ mass)
    reference_p99 = float(support[min(int(np.searchsorted(cdf, 0.99)), support.size - 1)])
    truncated = 0.0
    if max_tokens is not None:
        truncated = float(np.mean(used >= max_tokens) - mass[support >= max_tokens].sum())
    return LengthBias(
        mean=_relative(float(used.mean()), reference_mean),
        p99=_relative(float(np.quantile(used, 0.99, method="inverted_cdf")), reference_p99),
        truncated=truncated,
        ks=float(np.abs(ours - theirs).max()),
        consumed_mean=float(used.mean()),
        reference_mean=reference_mean,
    )


def tail_order(unfinished: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Order cut groups by tail signal: most unfinished responses first, then most tokens reached, then launch order."""
    return sorted(range(len(unfinished)), key=lambda i: (-unfinished[i], -tokens[i], i))


def _relative(value: float, reference: float) -> float:
    return value / reference - 1.0 if reference else 0.0
