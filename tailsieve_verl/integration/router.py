"""The router: one Ray actor that deals requests to replicas, keeps the step's clock, and fires the cut.

Life of a step, all times by this process's monotonic clock:

    trainer          open_step(groups, pools)                    wait_verdict()            cut()          wait_drained()
    agent workers               acquire / release per turn     group_generated   group_stored
    verdict            wait ... wait ................................ cut ............................ done

verl builds the class with ``ray.remote`` from the YAML file named by ``rollout.router_config_path`` (``router.yaml``
beside this module), so it is a plain class here and can be used without Ray. It decides nothing: dispatch is
``core.dispatch``, the state of the step is ``core.step``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tailsieve_verl.core.dispatch import Dispatcher
from tailsieve_verl.core.plan import TAIL_ROUTES, Granularity, Route
from tailsieve_verl.core.step import StepTracker, Verdict


class LaunchedGroup(NamedTuple):
    """One prompt group of a launch, as the trainer announces it."""

    uid: str
    route: Route
    sessions: int
    slots: tuple[int, ...] | None = None  # index into the pool by session, from a placement of the user's own


@dataclass
class SessionLog:
    """Raw facts of a group's sessions, lists of length n; times in seconds since the step was opened."""

    started_s: list[float | None]
    finished_s: list[float | None]
    tokens: list[int]


@dataclass(frozen=True)
class StepStatus:
    """A verdict, with what the trainer's deadlines need to know."""

    verdict: Verdict
    now_s: float
    idle_s: float
    failed: tuple[tuple[str, str], ...]
    dead: dict[str, str]


@dataclass(frozen=True)
class GroupLog:
    """Everything the router knows of a group at the end of a step."""

    uid: str
    route: Route
    replicas: tuple[int, ...]
    started_s: tuple[float | None, ...]
    finished_s: tuple[float | None, ...]
    tokens: tuple[int, ...]
    generated_s: float | None
    cut: bool
    failed: bool


@dataclass(frozen=True)
class StepLog:
    """The step's raw facts for the observation."""

    cut_s: float | None
    t_tail_s: float | None
    t_bulk_s: float | None
    acquires: int
    acquire_s: float
    groups: tuple[GroupLog, ...] = field(default_factory=tuple)


class TailSieveRouter:
    """Load balancer with verl's interface plus the step's events (see the module docstring).

    Args:
        servers: server id -> actor handle, in order of replica rank.
        config: the YAML that named this class; unused.
    """

    def __init__(self, servers: dict[str, Any], config: dict[str, Any] | None = None) -> None:
        del config
        self._servers = dict(servers)
        self._ids = list(servers)
        self._index = {server_id: i for i, server_id in enumerate(self._ids)}
        self._dispatch = Dispatcher(max(1, len(self._ids)))
        self._tracker: StepTracker | None = None
        self._logs: dict[str, SessionLog] = {}
        self._failed: list[tuple[str, str]] = []
        self._dead: dict[str, str] = {}
        self._opened = self._last_event = time.monotonic()
        self._acquires = 0
        self._acquire_ns = 0
        self._changed = asyncio.Event()

    # ---- requests -------------------------------------------------------------------------------------------------

    def acquire_server(self, request_id: str, uid: str | None = None, session: int = 0) -> str | None:
        """Server id for a request, or ``None`` if its group was cut."""
        start = time.perf_counter_ns()
        replica = self._dispatch.acquire(request_id, uid, session)
        if uid is not None and replica is not None:
            log = self._logs[uid]
            if log.started_s[session] is None:
                log.started_s[session] = time.monotonic() - self._opened
        self._acquires += 1
        self._acquire_ns += time.perf_counter_ns() - start
        return None if replica is None else self._ids[replica]

    def release_server(
        self,
        server_id: str,
        uid: str | None = None,
        session: int = 0,
        tokens: int = 0,
        error: str | None = None,
    ) -> None:
        """A request has left its replica, with the tokens it generated; ``error`` if the replica is gone."""
        log = self._logs.get(uid) if uid is not None else None
        if uid is None or log is not None:  # loads were counted anew since an earlier step's request was acquired
            self._dispatch.release(self._index[server_id])
        if error is not None:
            self._dead.setdefault(server_id, error)
            self._changed.set()
        if log is not None:
            self._last_event = time.monotonic()
            log.finished_s[session] = self._last_event - self._opened
            log.tokens[session] += tokens
        if self._tracker is None or self._tracker.cut_s is not None:
            self._changed.set()  # somebody may be waiting for the replicas to drain

    def session_restarted(self, uid: str, session: int) -> None:
        """A response has failed and is generated again: what it had generated before is no part of its length."""
        log = self._logs.get(uid)
        if log is not None:
            log.started_s[session] = log.finished_s[session] = None
            log.tokens[session] = 0

    # ---- groups ---------------------------------------------------------------------------------------------------

    def group_generated(self, uid: str) -> None:
        """Every response of a group has been generated (rewards may still be on their way)."""
        if self._tracker is not None and uid in self._tracker.groups:
            self._last_event = time.monotonic()
            self._tracker.generated(uid, self._last_event - self._opened)
            self._changed.set()

    def group_stored(self, uid: str, error: str | None = None) -> None:
        """A group has ended: all its trajectories are stored, or it failed with ``error``."""
        tracker = self._tracker
        if tracker is None or uid not in tracker.groups:
            return
        self._last_event = time.monotonic()
        if error is None:
            tracker.stored(uid)
        elif tracker.fail(uid):
            self._dispatch.close([uid])
            self._failed.append((uid, error))
        self._changed.set()

    # ---- the step -------------------------------------------------------------------------------------------------

    def open_step(
        self,
        batch: int,
        groups: list[LaunchedGroup],
        tail_replicas: range,
        bulk_replicas: range,
        tail_placement: Granularity,
        bulk_placement: Granularity,
    ) -> None:
        """Start the step's clock and announce its groups, in order, before any of them is submitted."""
        self._dispatch.open()
        self._logs.clear()
        self._failed.clear()
        self._acquires = self._acquire_ns = 0
        self._bulk_replicas, self._bulk_placement = bulk_replicas, bulk_placement
        self._tracker = StepTracker(batch, [(g.uid, g.route) for g in groups])
        tail = [g for g in groups if g.route in TAIL_ROUTES]
        bulk = [g for g in groups if g.route not in TAIL_ROUTES]
        if tail:
            self._register(tail, tail_replicas, tail_placement, planned=True)
        self._register(bulk, bulk_replicas, bulk_placement, planned=True)
        self._opened = self._last_event = time.monotonic()
        self._changed.set()

    def add_groups(self, groups: list[LaunchedGroup]) -> None:
        """Announce replacements of failed groups; they go to the least loaded bulk replicas."""
        assert self._tracker is not None
        self._tracker.add([(g.uid, g.route) for g in groups])
        self._register(groups, self._bulk_replicas, self._bulk_placement, planned=False)
        self._changed.set()

    async def wait_verdict(self, timeout_s: float) -> StepStatus:
        """Return as soon as there is something to do, or after ``timeout_s``. Failures are reported once each."""
        assert self._tracker is not None
        deadline = time.monotonic() + timeout_s
        while True:
            self._changed.clear()
            verdict = self._tracker.verdict()
            left = deadline - time.monotonic()
            if verdict.action != "wait" or self._failed or self._dead or left <= 0:
                break
            await self._wait_change(left)
        failed, self._failed = tuple(self._failed), []
        now = time.monotonic()
        return StepStatus(verdict, now - self._opened, now - self._last_event, failed, dict(self._dead))

    def cut(self) -> tuple[str, ...] | None:
        """Fire the cut: select the batch, refuse the stragglers' further requests, return their uids.

        ``None`` if a group has failed since the verdict, so that there is more to wait for.
        """
        assert self._tracker is not None
        if self._tracker.verdict().action != "cut":
            return None
        stragglers = self._tracker.cut(time.monotonic() - self._opened)
        self._dispatch.close(stragglers)
        return stragglers

    def forget_in_flight(self, replicas: range) -> None:
        """Take the loads of replicas that are known to be empty back to zero."""
        self._dispatch.loads.reset(replicas)

    async def wait_drained(self, replicas: range, timeout_s: float) -> int:
        """Wait until no request is in flight on ``replicas``; returns how many still are."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0 and self._dispatch.in_flight(replicas):
            self._changed.clear()
            await self._wait_change(left)
        return self._dispatch.in_flight(replicas)

    def step_log(self) -> StepLog:
        """The raw facts of the step."""
        assert self._tracker is not None
        tracker = self._tracker
        groups = []
        for uid, group in tracker.groups.items():
            log = self._logs[uid]
            groups.append(
                GroupLog(
                    uid=uid,
                    route=group.route,
                    replicas=tuple(self._dispatch.groups[uid].replicas),
                    started_s=tuple(log.started_s),
                    finished_s=tuple(log.finished_s),
                    tokens=tuple(log.tokens),
                    generated_s=group.generated_s,
                    cut=group.cut,
                    failed=group.failed,
                )
            )
        return StepLog(
            cut_s=tracker.cut_s,
            t_tail_s=tracker.pool_time_s(tail=True),
            t_bulk_s=tracker.pool_time_s(tail=False),
            acquires=self._acquires,
            acquire_s=self._acquire_ns * 1e-9,
            groups=tuple(groups),
        )

    # ---- verl's load balancer interface ---------------------------------------------------------------------------

    def get_handles(self) -> dict[str, Any]:
        """All servers by id; clients ask once."""
        return dict(self._servers)

    def get_all_servers(self) -> list[str]:
        return list(self._ids)

    def get_total_inflight(self) -> int:
        return self._dispatch.in_flight(range(len(self._ids)))

    def get_status(self) -> dict[str, Any]:
        loads = {server_id: self._dispatch.loads.load[i] for i, server_id in enumerate(self._ids)}
        return {"servers": loads, "total_inflight": sum(loads.values()), "active_servers": len(loads)}

    def clear_sticky_cache(self) -> dict[str, Any]:
        status = self.get_status()
        return {"cleared_entries": 0, "server_loads": status["servers"]}

    def require_acquire_fields(self) -> list[str]:
        return []

    def require_release_fields(self) -> list[str]:
        return []

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _register(self, groups: list[LaunchedGroup], pool: range, placement: Granularity, *, planned: bool) -> None:
        for group in groups:
            n = group.sessions
            self._logs[group.uid] = SessionLog([None] * n, [None] * n, [0] * n)
        self._dispatch.add(
            [g.uid for g in groups],
            [g.sessions for g in groups],
            pool,
            placement,
            planned=planned,
            slots=[g.slots for g in groups],
        )

    async def _wait_change(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
