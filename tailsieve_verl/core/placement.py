"""Which replica serves which response: the paper's policies and baselines (paper 3.1, A.2), one small class each.

A placement sees the lengths of one step, [N, n] by prompt group and rollout, and returns the replica of every response,
[N, n]. Request j = g n + s (group-major order) is rollout s of prompt group g. Policies named oracle use the lengths;
the others use only their shape.

Invariants: replica indices are in [0, R); the result depends on the arguments alone, never on hashing or arrival order;
in a two-pool placement the tail pool is the top ranks R-m..R-1 and the bulk pool 0..R-m-1, so that a replica changes
pool only when m does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.checks import as_count, as_lengths
from tailsieve_verl.core.dispatch import pool_slot
from tailsieve_verl.core.plan import Granularity

__all__ = [
    "PLACEMENTS",
    "Placement",
    "SeerOracle",
    "StreamRLOracle",
    "TailSieve",
    "UniformGroup",
    "UniformOracle",
    "VerlDefault",
    "pool_slot",
]

#: Share of the longest requests that StreamRL-style dispatch isolates (paper A.2).
STREAMRL_TAIL_SHARE = 0.2

Assignment = NDArray[np.int64]


class Placement(Protocol):
    """Anything that places the responses of a step."""

    name: ClassVar[str]

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        """Replica of each response.

        Args:
            lengths: tokens, [N, n] by prompt group and rollout.
            replicas: R >= 1.

        Returns:
            Replica indices in [0, R), [N, n].

        Raises:
            ValueError: empty, negative or non-finite lengths, or too few replicas for the policy.
        """
        ...


@dataclass(frozen=True)
class UniformGroup:
    """Prompt group g, whole, on replica g mod R: the paper's baseline."""

    name: ClassVar[str] = "uniform_group"

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        tokens, replicas = _step(lengths, replicas)
        return _deal(np.arange(tokens.shape[0]), tokens.shape[1], 0, replicas, "group")


@dataclass(frozen=True)
class VerlDefault:
    """Request j on replica j mod R: what verl's least-in-flight router does with a batch that arrives at once."""

    name: ClassVar[str] = "verl_default"

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        tokens, replicas = _step(lengths, replicas)
        return _deal(np.arange(tokens.shape[0]), tokens.shape[1], 0, replicas, "request")


@dataclass(frozen=True)
class UniformOracle:
    """Prompt groups by falling total length to the replica with the least total length (lowest index on ties)."""

    name: ClassVar[str] = "uniform_oracle"

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        tokens, replicas = _step(lengths, replicas)
        return np.repeat(_least_loaded(tokens.sum(axis=1), replicas)[:, None], tokens.shape[1], axis=1)


@dataclass(frozen=True)
class SeerOracle:
    """Requests, not groups, by falling length to the replica with the least total length (lowest index on ties)."""

    name: ClassVar[str] = "seer_oracle"

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        tokens, replicas = _step(lengths, replicas)
        return _least_loaded(tokens.ravel(), replicas).reshape(tokens.shape)


@dataclass(frozen=True)
class StreamRLOracle:
    """The longest 20 % of requests dealt in falling order over m replicas, the rest in order over the other R - m.

    Equal lengths are ranked by smaller request index.
    """

    m: int
    name: ClassVar[str] = "streamrl_oracle"

    def __post_init__(self) -> None:
        as_count(self.m, "m", 1)

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        tokens, replicas = _step(lengths, replicas)
        bulk = replicas - as_count(self.m, "m", 1, replicas - 1)
        order = np.argsort(-tokens.ravel(), kind="stable")
        size = round(STREAMRL_TAIL_SHARE * tokens.size)
        where = np.empty(tokens.size, dtype=np.int64)
        where[order[:size]] = bulk + np.arange(size) % self.m
        where[np.sort(order[size:])] = np.arange(tokens.size - size) % bulk
        return where.reshape(tokens.shape)


@dataclass(frozen=True)
class TailSieve:
    """Given tail groups on the m top replicas, the others on R - m, round robin inside each pool (paper 3.1).

    Attributes:
        tail_groups: group indices in order of tail signal; the k-th deals as k-th of the tail pool.
        m: tail replicas. 0 only without tail groups, and then every replica serves the bulk pool. A positive m without
            tail groups leaves the tail pool idle.
        tail_granularity: "request" spreads a group's rollouts over its pool (default), "group" keeps it together.
        bulk_granularity: the same for the bulk pool. The paper's letter is "group" for both.
    """

    tail_groups: Sequence[int]
    m: int
    tail_granularity: Granularity = "request"
    bulk_granularity: Granularity = "request"
    name: ClassVar[str] = "tailsieve"

    def __post_init__(self) -> None:
        groups = tuple(as_count(g, "tail_groups", 0) for g in self.tail_groups)
        if len(set(groups)) != len(groups):
            raise ValueError(f"tail_groups must not repeat a group, got {groups}")
        as_count(self.m, "m", 1 if groups else 0)
        for label in ("tail_granularity", "bulk_granularity"):
            if getattr(self, label) not in ("group", "request"):
                raise ValueError(f"{label} must be 'group' or 'request', got {getattr(self, label)!r}")
        object.__setattr__(self, "tail_groups", groups)

    def place(self, lengths: ArrayLike, replicas: int) -> Assignment:
        tokens, replicas = _step(lengths, replicas)
        n_groups, n = tokens.shape
        tail = np.array(self.tail_groups, dtype=np.int64)
        if tail.size and tail.max() >= n_groups:
            raise ValueError(f"tail_groups must be in [0, {n_groups}), got {tail.max()}")
        bulk = np.setdiff1d(np.arange(n_groups), tail, assume_unique=True)
        bulk_replicas = replicas - as_count(self.m, "m", 0, replicas - 1 if bulk.size else replicas)
        where = np.empty((n_groups, n), dtype=np.int64)
        if tail.size:
            where[tail] = _deal(np.arange(tail.size), n, bulk_replicas, self.m, self.tail_granularity)
        if bulk.size:
            where[bulk] = _deal(np.arange(bulk.size), n, 0, bulk_replicas, self.bulk_granularity)
        return where


#: Placements by the name a config or a command line uses; two-pool ones take their pool as arguments.
PLACEMENTS: dict[str, Callable[..., Placement]] = {
    placement.name: placement
    for placement in (UniformGroup, VerlDefault, UniformOracle, StreamRLOracle, SeerOracle, TailSieve)
}


def _step(lengths: ArrayLike, replicas: int) -> tuple[NDArray[np.float64], int]:
    return as_lengths(lengths, ndim=2), as_count(replicas, "replicas", 1)


def _deal(order: NDArray[np.int64], n: int, first: int, size: int, granularity: Granularity) -> Assignment:
    """`first` + `pool_slot` of the groups with these positions in their pool, for all n rollouts, [groups, n]."""
    position = order[:, None] * (1 if granularity == "group" else n)
    session = np.zeros(n, dtype=np.int64) if granularity == "group" else np.arange(n)
    return first + (position + session) % size


def _least_loaded(work: NDArray[np.float64], replicas: int) -> Assignment:
    """Items by falling work (stable), each to the least loaded replica, lowest index on ties, [items]."""
    where = np.empty(work.size, dtype=np.int64)
    heap = [(0.0, replica) for replica in range(replicas)]
    for item in np.argsort(-work, kind="stable").tolist():
        load, replica = heap[0]
        where[item] = replica
        heapq.heapreplace(heap, (load + float(work[item]), replica))
    return where
