"""Placement of a step's responses by predicted length: R contiguous blocks, sized over sampled scenarios.

    requests in order of predicted length, the longest first
    |--R-1--|----R-2----|-------- ... --------|-------------- 0 --------------|
     few, long: fast each                      many, short: done at about the same time

Every replica is predicted to end at about the same time: those with the long responses decode few at once, and fast,
those with the short ones many. The responses of a prompt have one predicted length and lie side by side; a block may
end inside a group. The longest block is on the highest rank, where the tail pool is.

Block sizes aim at the least mean over scenarios of max_r T_r on the decode curve, which is what a step costs. To
equalise mean times alone may load the replicas of the long responses too much, since theirs scatter most. So blocks
are filled from the longest request on until their mean time plus z standard deviations reaches a target, the target is
the least at which the last request finds room (bisection), and z the one with the least mean makespan. The optimum is
flat: a search over single boundaries from there gains 0.3 % on fresh lengths.

Invariants: every request is in exactly one block; the order within a block says nothing; the same arguments give the
same blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Standard deviations that are tried on top of a block's mean time.
CAUTIONS = (0.0, 0.5, 1.0)
#: Halvings of the target time: to well under 1 % of it.
HALVINGS = 7
#: Lengths that are sorted at once at most, over all scenarios; larger steps are laid out over fewer scenarios.
MOST_VALUES = 1 << 21
#: Blocks are filled in steps of this share of an even block, at least one request: finer makes no difference.
GRAIN = 1 / 32
#: The first target is this much more than an even block of the longest takes; it grows by as much until all fits.
ROOM = 1.2


@dataclass(frozen=True)
class Layout:
    """Where the requests of a step run.

    Attributes:
        replicas: of each response, [G, n].
        seconds: predicted makespan in each scenario, [S].
    """

    replicas: Ints
    seconds: Floats

    @property
    def mean_s(self) -> float:
        return float(self.seconds.mean())


def lay_out(scenarios: Floats, replicas: int, curve: DecodeCurve) -> Layout:
    """Contiguous placement (module docstring).

    Args:
        scenarios: tokens, [S, G, n].
        replicas: R.

    Raises:
        ValueError: fewer than one replica, or nothing to place.
    """
    if replicas < 1 or scenarios.size == 0:
        raise ValueError(f"needs at least one replica and one response, got {replicas} and {scenarios.shape}")
    _, groups, n = scenarios.shape
    order = _longest_first(scenarios)
    lengths = _limited(scenarios)[:, order].reshape(-1, groups * n)
    ends, seconds = _blocks(lengths, replicas, curve)
    where = np.empty((groups, n), dtype=np.int64)
    where[order] = replicas - 1 - np.searchsorted(ends, np.arange(groups * n), side="right").reshape(groups, n)
    return Layout(where, seconds)


def dealt_seconds(lengths: Floats, where: Ints, replicas: int, curve: DecodeCurve) -> Floats:
    """Makespan of lengths [S, G, n] under a placement [G, n], [S] seconds."""
    flat = lengths.reshape(len(lengths), -1)
    times = [_time(flat[:, where.ravel() == r], curve) for r in range(replicas)]
    return np.asarray(np.max(times, axis=0))


def verl_default(groups: int, n: int, replicas: int) -> Ints:
    """Replica of each request under verl's default dispatch, [groups, n]: dealt one by one."""
    return np.arange(groups * n, dtype=np.int64).reshape(groups, n) % replicas


# ---- inside -------------------------------------------------------------------------------------------------------


def _longest_first(scenarios: Floats) -> Ints:
    """Groups by falling mean length, the work that they are expected to be."""
    return np.argsort(-scenarios.mean(axis=(0, 2)), kind="stable")


def _limited(scenarios: Floats) -> Floats:
    """As many of the scenarios as may be looked at."""
    return scenarios[: max(1, MOST_VALUES // (scenarios.shape[1] * scenarios.shape[2]))]


def _blocks(lengths: Floats, replicas: int, curve: DecodeCurve) -> tuple[Ints, Floats]:
    """Ends of R blocks of the requests in order, [R], and their makespans, [S]; the best of a few cautions."""
    found = [_filled(lengths, replicas, curve, caution) for caution in CAUTIONS]
    seconds = [_makespans(lengths, ends, curve) for ends in found]
    best = int(np.argmin([s.mean() for s in seconds]))
    return found[best], seconds[best]


def _filled(lengths: Floats, replicas: int, curve: DecodeCurve, caution: float) -> Ints:
    """Ends of R blocks filled up to the least time at which all requests find room, [R].

    Args:
        lengths: [S, K], the longest expected request first.
    """
    requests = lengths.shape[1]
    even = -(-requests // replicas)
    grain = max(1, round(GRAIN * even))
    tau = curve.table(requests)

    def cost(start: int, end: int) -> float:
        times = _time_by(lengths[:, start:end], tau)
        return float(times.mean() + caution * times.std())

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


def _makespans(lengths: Floats, ends: Ints, curve: DecodeCurve) -> Floats:
    tau = curve.table(lengths.shape[1])
    starts = np.concatenate(([0], ends[:-1]))
    times = [_time_by(lengths[:, a:b], tau) for a, b in zip(starts.tolist(), ends.tolist(), strict=True) if b > a]
    return np.asarray(np.max(times, axis=0))


def _time(lengths: Floats, curve: DecodeCurve) -> Floats:
    return _time_by(lengths, curve.table(max(1, lengths.shape[1])))


def _time_by(lengths: Floats, tau: Floats) -> Floats:
    """Seconds until the last of K requests of one replica is done, [S] (paper 2.1); 0 without requests."""
    count = lengths.shape[1]
    if not count:
        return np.zeros(lengths.shape[0])
    ascending = np.sort(lengths, axis=1)
    return np.asarray(ascending @ np.diff(tau[: count + 1])[::-1])
