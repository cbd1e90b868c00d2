"""A length histogram as a list of lengths, drawn without chance so that every reading of a file gives the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Seed of the order; the lengths themselves involve no chance.
_ORDER_SEED = 0


def sample_histogram(
    low: ArrayLike, high: ArrayLike, probability: ArrayLike, responses: int = 20_000
) -> NDArray[np.int64]:
    """Lengths whose distribution is the histogram's: its quantiles at (i + 1/2) / responses, in a fixed mixed order.

    Inside a bin the probability is spread evenly over its whole numbers. With 20,000 lengths P99.9 is met; a bin
    rarer than 1 / (2 * responses) may give none.

    Args:
        low: smallest length of each bin in tokens, [B], increasing.
        high: largest length of each bin, [B], included.
        probability: of each bin, [B]; scaled to add up to 1.
        responses: how many lengths, 1 or more.

    Returns:
        Lengths in tokens, [responses].

    Raises:
        ValueError: bins that are empty, out of order or overlap, or probabilities that are negative or all 0.
    """
    first = np.asarray(low, dtype=np.int64)
    last = np.asarray(high, dtype=np.int64)
    weight = np.asarray(probability, dtype=np.float64)
    if first.ndim != 1 or first.size == 0 or first.shape != last.shape or first.shape != weight.shape:
        raise ValueError(f"a histogram needs low, high and probability per bin, got {first.shape}, {last.shape}")
    if (last < first).any() or (first[1:] <= last[:-1]).any():
        raise ValueError("bins must be in increasing order without overlap")
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.sum() > 0):
        raise ValueError("probabilities must be 0 or more and not all 0")
    if responses < 1:
        raise ValueError(f"responses must be at least 1, got {responses}")
    edges = np.concatenate([[0.0], np.cumsum(weight / weight.sum())])
    quantile = (np.arange(responses) + 0.5) / responses
    # The bin whose (edges[b], edges[b + 1]] holds the quantile; rounding may leave the last edge just below 1.
    bins = np.minimum(np.searchsorted(edges, quantile, side="left") - 1, int(np.flatnonzero(weight)[-1]))
    inside = (quantile - edges[bins]) / (weight[bins] / weight.sum())
    width = last[bins] - first[bins] + 1
    lengths = first[bins] + np.clip((inside * width).astype(np.int64), 0, width - 1)
    return np.random.default_rng(_ORDER_SEED).permutation(lengths)
