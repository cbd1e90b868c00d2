"""Contiguous blocks of requests, one a replica: filled to an even cost, and the time they take on the decode curve.

Requests come in order, the longest expected first. Blocks are filled from the first request on until their cost
reaches a target, and the target is the least at which the last request finds room (bisection). What a block costs is a
figure of its times in the scenarios, such as their mean plus some standard deviations.

Invariant: every request is in exactly one block; the order within a block says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Halvings of the target time: to well under 1 % of it.
HALVINGS = 7
#: Blocks are filled in steps of this share of an even block, at least one request: finer makes no difference.
GRAIN = 1 / 32
#: The first target is this much more than an even block of the longest takes; it grows by as much until all fits.
ROOM = 1.2


def cautious(caution: float) -> Callable[[Floats], float]:
    """A block's cost as its mean time plus so many standard deviations."""
    return lambda times: float(times.mean() + caution * times.std())


def in_share(share: float) -> Callable[[Floats], float]:
    """A block's cost as the time that it keeps to in this share of the scenarios."""

    def cost(times: Floats) -> float:
        rank = min(times.size - 1, int(share * times.size))
        return float(np.partition(times, rank)[rank])

    return cost


def filled(lengths: Floats, replicas: int, curve: DecodeCurve, of: Callable[[Floats], float]) -> Ints:
    """Ends of R blocks filled up to the least time at which all requests find room, [R].

    Args:
        lengths: [S, K], the longest expected request first.
        of: what a block costs, by its times in the scenarios, [S].

    Raises:
        ValueError: a length that is not finite, for which no target is high enough.
    """
    if not np.isfinite(lengths).all():
        raise ValueError("lengths must be finite")
    requests = lengths.shape[1]
    even = -(-requests // replicas)
    grain = max(1, round(GRAIN * even))
    tau = curve.table(requests)

    def cost(start: int, end: int) -> float:
        return of(last_done(lengths[:, start:end], tau))

    # Some block holds an even share, and none is shorter than the last one.
    low, high = cost(max(0, requests - even), requests), cost(0, even)
    ends = None
    while ends is None:
        high *= ROOM
        ends = _fill(requests, replicas, high, cost, [even] * replicas, grain)
    for _ in range(HALVINGS):
        target = (low + high) / 2
        found = _fill(requests, replicas, target, cost, np.diff([0, *ends]).tolist(), grain)
        if found is None:
            low = target
        else:
            high, ends = target, found
    return np.array(ends, dtype=np.int64)


def _fill(
    requests: int,
    replicas: int,
    target: float,
    cost: Callable[[int, int], float],
    guess: Sequence[int],
    grain: int,
) -> list[int] | None:
    """Ends of blocks that each cost at most the target, [R]; ``None`` if requests are left over."""
    ends, start = [], 0
    for block in range(replicas - 1):
        left = requests - start
        if left:
            size = _largest(cost, start, target, guess[block], left, grain)
            if not size:
                return None
            start += size
        ends.append(start)
    if start < requests and cost(start, requests) > target:
        return None
    return [*ends, requests]


def _largest(cost: Callable[[int, int], float], start: int, target: float, guess: int, most: int, grain: int) -> int:
    """The most requests from a start on that cost at most the target, found from a guess; 0 if one costs more."""
    low, high, size, step = 0, most + 1, min(max(1, guess), most), grain
    while high - low > grain:
        if cost(start, start + size) <= target:
            low, size = size, size + step
        else:
            high, size = size, size - step
        step *= 2
        if not low < size < high:
            size = (low + high) // 2
    return low or int(cost(start, start + 1) <= target)


def makespans(lengths: Floats, ends: Ints, curve: DecodeCurve) -> Floats:
    """Seconds until all blocks of requests [S, K] with these ends, [R], are done, [S]."""
    tau = curve.table(lengths.shape[1])
    starts = np.concatenate(([0], ends[:-1]))
    times = [last_done(lengths[:, a:b], tau) for a, b in zip(starts.tolist(), ends.tolist(), strict=True) if b > a]
    return np.asarray(np.max(times, axis=0))


def last_done(lengths: Floats, tau: Floats) -> Floats:
    """Seconds until the last of K requests of one replica is done, [S] (paper 2.1); 0 without requests."""
    count = lengths.shape[1]
    if not count:
        return np.zeros(lengths.shape[0])
    ascending = np.sort(lengths, axis=1)
    return np.asarray(ascending @ np.diff(tau[: count + 1])[::-1])


def completions(flat: Floats, ends: Ints, curve: DecodeCurve) -> Floats:
    """When each of K requests is done, in order of their replicas, [S, K] seconds."""
    tau = curve.table(flat.shape[1])
    finish, start = np.empty_like(flat), 0
    for end in ends.tolist():
        if end > start:
            block = flat[:, start:end]
            order = np.argsort(block, axis=1)
            ascending = np.take_along_axis(block, order, axis=1)
            times = np.cumsum(np.diff(ascending, prepend=0.0, axis=1) * tau[end - start : 0 : -1], axis=1)
            np.put_along_axis(finish[:, start:end], order, times, axis=1)
        start = end
    return finish
