"""Which replica serves a request: deterministic round robin inside a pool, least loaded otherwise.

Invariants
    * A routed request runs on a replica of its group's pool, or is refused (None) once its group is closed.
    * The first turn of a session depends only on the plan (order of the group in its pool, session number), never on
      the order in which requests happen to arrive: the same plan gives the same placement in every process.
    * Later turns stay on their replica (its prefix cache is warm) unless that replica is badly overloaded, and then
      move only inside the pool.
    * Unrouted requests (validation) use all replicas, least loaded first, sticky by request id.
    * The cost of a call does not grow with the number of replicas or of live sessions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tailsieve_verl.core.plan import Granularity

# A later turn leaves its replica only if that has more than this many times, plus this many, the requests of the least
# loaded one of its pool: recomputing a long prefix costs about as much as decoding beside a few more requests.
OVERLOAD_FACTOR = 2
OVERLOAD_SLACK = 4


def pool_slot(order: int, session: int, sessions: int, size: int, granularity: Granularity) -> int:
    """Round robin inside a pool of ``size`` replicas (paper section 3.1).

    Args:
        order: position of the group among the groups of its pool, from 0.
        session: number of the response inside its group, 0..sessions-1.
        sessions: n, responses in a group.
        size: replicas in the pool.
        granularity: ``group`` keeps a group together, ``request`` deals single responses.
    """
    return (order if granularity == "group" else order * sessions + session) % size


class LeastLoaded:
    """Loads of replicas with O(1) updates and O(1) least-loaded pick (buckets by load, lowest index not guaranteed)."""

    def __init__(self, members: Iterable[int]) -> None:
        self.load: dict[int, int] = dict.fromkeys(members, 0)
        self._buckets: dict[int, dict[int, None]] = {0: dict.fromkeys(self.load)}
        self._least = 0

    def change(self, replica: int, by: int) -> None:
        """Add ``by`` to a replica's load, which does not fall below zero."""
        old = self.load[replica]
        new = old + by
        if new < 0 or new == old:
            return
        self.load[replica] = new
        bucket = self._buckets[old]
        del bucket[replica]
        target = self._buckets.get(new)
        if target is None:
            self._buckets[new] = {replica: None}
        else:
            target[replica] = None
        if new < self._least or (not bucket and old == self._least):
            self._least = new

    def reset(self, replicas: Iterable[int]) -> None:
        """Set the loads of these replicas to zero."""
        for replica in replicas:
            self.change(replica, -self.load[replica])

    def pick(self) -> int:
        """A replica with the smallest load; the one that has had it for longest."""
        return next(iter(self._buckets[self._least]))

    @property
    def least(self) -> int:
        return self._least


@dataclass
class DispatchedGroup:
    """Dispatch state of a group: sessions hold the replica index, -1 before the first turn."""

    order: int
    sessions: int
    pool: Sequence[int]
    granularity: Granularity
    planned: bool = True
    closed: bool = False
    slots: Sequence[int] | None = None  # of a placement of the user's own: index into the pool by session
    replicas: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replicas = [-1] * self.sessions


class Dispatcher:
    """Assigns requests to replicas 0..R-1 (see the module docstring)."""

    def __init__(self, replicas: int) -> None:
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, got {replicas}")
        self.replicas = replicas
        self.groups: dict[str, DispatchedGroup] = {}
        self.loads = LeastLoaded(range(replicas))
        self._sticky: dict[str, int] = {}

    def open(self) -> None:
        """Forget the groups and sessions of the step before, and requests that were acquired and never released."""
        self.groups.clear()
        self._sticky.clear()
        self.loads.reset(range(self.replicas))

    def add(
        self,
        uids: Iterable[str],
        sessions: Iterable[int],
        pool: Sequence[int],
        granularity: Granularity,
        *,
        planned: bool = True,
        slots: Iterable[Sequence[int] | None] | None = None,
    ) -> None:
        """Register groups of one pool in order; replacements (``planned=False``) go to the least loaded of the pool.

        ``slots`` places the first turns of a group in place of ``granularity``, by index into the pool.
        """
        if not pool:
            raise ValueError("a pool needs at least one replica")
        given = itertools.repeat(None) if slots is None else slots
        for order, (uid, count, own) in enumerate(zip(uids, sessions, given)):  # noqa: B905  (one of them may be endless)
            self.groups[uid] = DispatchedGroup(order, count, pool, granularity, planned, slots=own)

    def close(self, uids: Iterable[str]) -> None:
        """Refuse further requests of these groups."""
        for uid in uids:
            self.groups[uid].closed = True

    def acquire(self, request_id: str, uid: str | None = None, session: int = 0) -> int | None:
        """Replica for a request, whose load it raises; ``None`` if its group is closed or unknown."""
        if uid is None:
            replica = self._sticky.get(request_id, -1)
            if replica < 0:
                replica = self._sticky[request_id] = self.loads.pick()
            self.loads.change(replica, 1)
            return replica
        group = self.groups.get(uid)
        if group is None or group.closed:
            return None
        replica = group.replicas[session]
        if replica < 0:
            replica = group.replicas[session] = self._first(group, session)
        elif self.loads.load[replica] > OVERLOAD_SLACK + OVERLOAD_FACTOR * self.loads.least:
            replica = group.replicas[session] = self._later(group, replica)
        self.loads.change(replica, 1)
        return replica

    def release(self, replica: int) -> None:
        """A request has left its replica."""
        self.loads.change(replica, -1)

    def in_flight(self, replicas: Iterable[int]) -> int:
        """Requests acquired and not released on the given replicas."""
        return sum(self.loads.load[r] for r in replicas)

    def _first(self, group: DispatchedGroup, session: int) -> int:
        if not group.planned:
            return min(group.pool, key=self.loads.load.__getitem__)
        if group.slots is not None:
            return group.pool[group.slots[session]]
        return group.pool[pool_slot(group.order, session, group.sessions, len(group.pool), group.granularity)]

    def _later(self, group: DispatchedGroup, replica: int) -> int:
        other = min(group.pool, key=self.loads.load.__getitem__)
        overloaded = self.loads.load[replica] > OVERLOAD_SLACK + OVERLOAD_FACTOR * self.loads.load[other]
        return other if overloaded else replica
