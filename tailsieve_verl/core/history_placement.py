"""Placement of a step's responses by predicted length: R contiguous blocks, sized over sampled scenarios.

    requests in order of predicted length, the longest first
    |--R-1--|----R-2----|-------- ... --------|-------------- 0 --------------|
     few, long: fast each                      many, short: done at about the same time

Every replica is predicted to end at about the same time: those with the long responses decode few at once, and fast,
those with the short ones many. The responses of a prompt have one predicted length and lie side by side; a block may
end inside a group. The longest block is on the highest rank, where the tail pool is.

Block sizes aim at the least mean over scenarios of max_r T_r on the decode curve, which is what a step costs. To
equalise mean times alone may load the replicas of the long responses too much, since theirs scatter most. So blocks
are filled to a mean time plus z standard deviations (`blocks`), and z is the one with the least mean makespan. The
optimum is flat: a search over single boundaries from there gains 0.3 % on fresh lengths.

With a deferral q > 0 there are two pools (`lay_out_deferred`). The m top replicas run what must finish: groups
carried, and as many of the longest fresh ones as even out the pools; they are never cut. The others run the rest, in
blocks again, and are cut when all but q groups are complete. So a prompt is not deferred for being long, only for a
surprise.

Invariants: every request is in exactly one block; the order within a block says nothing; the same arguments give the
same blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.blocks import cautious, completions, filled, in_share, last_done, makespans
from tailsieve_verl.core.decode import DecodeCurve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Standard deviations that are tried on top of a block's mean time.
CAUTIONS = (0.0, 0.5, 1.0)
#: For a pool that is cut, where a mean would be that of what is left over: shares of the scenarios in which a block
#: keeps to the target.
CUT_SHARES = (0.35, 0.5, 0.75)
#: Scenarios by which the pools of a deferral are searched; the blocks in them are made for all.
SEARCHED = 12
#: Lengths that are sorted at once at most, over all scenarios; larger steps are laid out over fewer scenarios.
MOST_VALUES = 1 << 21


@dataclass(frozen=True)
class Layout:
    """Where the requests of a step run.

    Attributes:
        replicas: of each response, [G, n].
        seconds: predicted makespan in each scenario, [S].
        tail: groups of the tail pool, [G]; ``None`` without a deferral.
    """

    replicas: Ints
    seconds: Floats
    tail: NDArray[np.bool_] | None = None

    @property
    def mean_s(self) -> float:
        return float(self.seconds.mean())


def lay_out(scenarios: Floats, work: Floats, replicas: int, curve: DecodeCurve) -> Layout:
    """Contiguous placement (module docstring).

    Args:
        scenarios: tokens, [S, G, n].
        work: expected tokens of a response, [G]; orders the groups, where means of few scenarios would be noisy.
        replicas: R.

    Raises:
        ValueError: fewer than one replica, or nothing to place.
    """
    if replicas < 1 or scenarios.size == 0:
        raise ValueError(f"needs at least one replica and one response, got {replicas} and {scenarios.shape}")
    _, groups, n = scenarios.shape
    order = _longest_first(work)
    lengths = _limited(scenarios)[:, order].reshape(-1, groups * n)
    ends, seconds = _blocks(lengths, replicas, curve)
    where = np.empty((groups, n), dtype=np.int64)
    where[order] = replicas - 1 - np.searchsorted(ends, np.arange(groups * n), side="right").reshape(groups, n)
    return Layout(where, seconds)


def lay_out_deferred(
    scenarios: Floats,
    work: Floats,
    replicas: int,
    curve: DecodeCurve,
    q: int,
    m: int,
    carried: NDArray[np.bool_],
    fixed: NDArray[np.bool_],
) -> Layout:
    """Placement in two pools of which the bulk pool is cut when all but q of its groups are complete.

    Args:
        scenarios, work, replicas: as for `lay_out`.
        q: groups to leave over, at least 1; fewer than are neither carried nor fixed.
        m: replicas of the tail pool, under R; 0 if it has no group.
        carried: groups that the tail pool has in any case, [G].
        fixed: groups that the bulk pool has in any case, [G].

    Raises:
        ValueError: m is no tail pool for these groups, or there are too few to leave q over.
    """
    _, groups, n = scenarios.shape
    free = ~(carried | fixed)
    most = int(free.sum()) - q
    if not 0 <= m < replicas or q < 1 or most < 1 or (carried.any() and not m):
        raise ValueError(f"cannot leave {q} of {int(free.sum())} groups over with {m} of {replicas} replicas apart")
    order = _longest_first(work)
    tail = _balanced(scenarios[:SEARCHED], replicas, curve, q, m, order, carried, free) if m else carried
    lengths = _limited(scenarios)
    where = np.empty((groups, n), dtype=np.int64)
    seconds = np.zeros(len(lengths))
    for mine, size, top, over in (
        (order[tail[order]], m, replicas - 1, 0),
        (order[~tail[order]], replicas - m, replicas - m - 1, q),
    ):
        if mine.size:
            ends, pool_s = _pool(lengths[:, mine], size, curve, over, CUT_SHARES if over else CAUTIONS)
            where[mine] = top - np.searchsorted(ends, np.arange(mine.size * n), side="right").reshape(mine.size, n)
            seconds = np.maximum(seconds, pool_s)
    return Layout(where, seconds, tail)


def dealt_seconds(lengths: Floats, where: Ints, replicas: int, curve: DecodeCurve) -> Floats:
    """Makespan of lengths [S, G, n] under a placement [G, n], [S] seconds."""
    flat, tau = lengths.reshape(len(lengths), -1), curve.table(where.size)
    times = [last_done(flat[:, where.ravel() == r], tau) for r in range(replicas)]
    return np.asarray(np.max(times, axis=0))


def dealt(scenarios: Floats, replicas: int, curve: DecodeCurve) -> Layout:
    """verl's default dispatch of the same scenarios, [S, G, n]."""
    _, groups, n = scenarios.shape
    where = verl_default(groups, n, replicas)
    return Layout(where, dealt_seconds(_limited(scenarios), where, replicas, curve))


def dealt_deferred(
    scenarios: Floats, replicas: int, curve: DecodeCurve, q: int, m: int, carried: NDArray[np.bool_]
) -> Layout:
    """Both pools dealt one by one, only the carried groups in the tail pool; arguments as for `lay_out_deferred`."""
    _, groups, n = scenarios.shape
    where = np.empty((groups, n), dtype=np.int64)
    lengths = _limited(scenarios)
    seconds = np.zeros(len(lengths))
    for mine, size, first, over in ((carried, m, replicas - m, 0), (~carried, replicas - m, 0, q)):
        count = int(mine.sum())
        if count:
            where[mine] = first + verl_default(count, n, size)
            by_replica = np.argsort(where[mine].ravel(), kind="stable")
            ends = np.cumsum(np.bincount(where[mine].ravel() - first, minlength=size))
            flat = np.empty((len(lengths), count * n))
            flat[:, by_replica] = completions(lengths[:, mine].reshape(len(lengths), -1)[:, by_replica], ends, curve)
            complete = flat.reshape(-1, count, n).max(axis=2)
            seconds = np.maximum(seconds, np.partition(complete, count - 1 - over, axis=1)[:, count - 1 - over])
    return Layout(where, seconds, carried)


def verl_default(groups: int, n: int, replicas: int) -> Ints:
    """Replica of each request under verl's default dispatch, [groups, n]: dealt one by one."""
    return np.arange(groups * n, dtype=np.int64).reshape(groups, n) % replicas


# ---- inside -------------------------------------------------------------------------------------------------------


def _longest_first(work: Floats) -> Ints:
    return np.argsort(-work, kind="stable")


def _balanced(
    scenarios: Floats,
    replicas: int,
    curve: DecodeCurve,
    q: int,
    m: int,
    order: Ints,
    carried: NDArray[np.bool_],
    free: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """The carried groups and as many of the longest free ones as make the later pool end soonest, [G]."""
    longest = order[free[order]]
    best, found = np.inf, carried
    low, high = int(not carried.any()), longest.size - q - 1  # an empty tail pool would be idle
    while low <= high:
        count = (low + high) // 2
        tail = carried.copy()
        tail[longest[:count]] = True
        tail_s = _pool(scenarios[:, order[tail[order]]], m, curve, 0, CAUTIONS[1:2])[1]
        bulk_s = _pool(scenarios[:, order[~tail[order]]], replicas - m, curve, q, CUT_SHARES[1:2])[1]
        mean = float(np.maximum(tail_s, bulk_s).mean())
        if mean < best:
            best, found = mean, tail
        if tail_s.mean() < bulk_s.mean():
            low = count + 1
        else:
            high = count - 1
    return found


def _pool(lengths: Floats, replicas: int, curve: DecodeCurve, over: int, tried: Sequence[float]) -> tuple[Ints, Floats]:
    """Ends of a pool's blocks, [R], and the time at which all but ``over`` of its groups are complete, [S].

    Args:
        lengths: [S, G, n], the longest expected group first.
        tried: cautions, or shares of scenarios if the pool is cut.
    """
    scenarios, groups, _ = lengths.shape
    if not groups:
        return np.zeros(replicas, dtype=np.int64), np.zeros(scenarios)
    flat = lengths.reshape(scenarios, -1)
    found = []
    for value in tried:
        ends = filled(flat, replicas, curve, in_share(value) if over else cautious(value))
        if over:
            seconds = np.partition(_group_ends(lengths, ends, curve), groups - 1 - over, axis=1)[:, groups - 1 - over]
        else:
            seconds = makespans(flat, ends, curve)
        found.append((ends, seconds))
    return min(found, key=lambda pair: float(pair[1].mean()))


def _group_ends(lengths: Floats, ends: Ints, curve: DecodeCurve) -> Floats:
    """When each group is complete, [S, G] seconds."""
    finish = completions(lengths.reshape(len(lengths), -1), ends, curve)
    return np.asarray(finish.reshape(lengths.shape).max(axis=2))


def _limited(scenarios: Floats) -> Floats:
    """As many of the scenarios as may be looked at."""
    return scenarios[: max(1, MOST_VALUES // (scenarios.shape[1] * scenarios.shape[2]))]


def _blocks(lengths: Floats, replicas: int, curve: DecodeCurve) -> tuple[Ints, Floats]:
    """Ends of R blocks of the requests in order, [R], and their makespans, [S]; the best of a few cautions."""
    found = [filled(lengths, replicas, curve, cautious(caution)) for caution in CAUTIONS]
    seconds = [makespans(lengths, ends, curve) for ends in found]
    best = int(np.argmin([s.mean() for s in seconds]))
    return found[best], seconds[best]
