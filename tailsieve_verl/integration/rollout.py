"""One rollout step, executed: launch the plan, wait, cut, replace what failed, and report the raw facts.

    open   ledger.open -> router.open_step -> submit to the agent loops
    wait   router.wait_verdict, with health checks and a stall deadline
    cut    router.cut -> abort bulk replicas -> drained -> end sessions -> nothing unfinished -> resume
    done   observation; the ledger is closed once the batch has been checked

The shell decides nothing: every choice is the ledger's or the tracker's. Everything it talks to is passed in, so the
whole step runs in tests against fakes.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailsieve_verl.core.arrangement import Arrangement
from tailsieve_verl.core.custom import PlacedGroup
from tailsieve_verl.core.ledger import Launch, Ledger
from tailsieve_verl.core.plan import ROUTES, TAIL_ROUTES, GroupRecord, GroupStatus, Route, StepObservation, StepPlan
from tailsieve_verl.integration.deadline import ReplicaDiedError, RolloutStalledError
from tailsieve_verl.integration.guarded import GuardedPlacement, GuardedSelector
from tailsieve_verl.integration.prompts import PromptStream, Row, prompt_key, sessions_of
from tailsieve_verl.integration.router import GroupLog, LaunchedGroup, StepLog, StepStatus

logger = logging.getLogger(__name__)

# Aborted requests come back within tens of milliseconds; what has not come back after this is not waited for.
DRAIN_S = 5.0
# A step that waits says so this often: long answers may take a while, but nobody should have to guess.
NOTE_EVERY_S = 600.0
# A step in which two batches' worth of groups fail will not get better by trying; tiny batches may fail this often.
MIN_FAILURES = 8


Arrange = Callable[[StepPlan, Sequence[str], Sequence[Route], Sequence[int]], Arrangement | None]


class RouterPort(Protocol):
    """The router, called synchronously."""

    def open_step(self, *args: Any) -> None: ...
    def add_groups(self, groups: list[LaunchedGroup]) -> None: ...
    def wait_verdict(self, timeout_s: float) -> StepStatus: ...
    def cut(self) -> tuple[str, ...] | None: ...
    def forget_in_flight(self, replicas: range) -> None: ...
    def wait_drained(self, replicas: range, timeout_s: float) -> int: ...
    def step_log(self) -> StepLog: ...


class ReplicaPort(Protocol):
    """The replicas, called synchronously."""

    def abort(self, replicas: Sequence[int]) -> None: ...
    def unfinished(self, replicas: Sequence[int]) -> int: ...
    def resume(self, replicas: Sequence[int]) -> None: ...
    def check(self) -> None: ...


class AgentPort(Protocol):
    """The agent loops, called synchronously."""

    def submit(self, rows: list[tuple[str, Row]]) -> None:
        """Hand (uid, row) pairs to the agent loops without waiting for them."""

    def end_sessions(self, uids: list[str], timeout_s: float) -> dict[str, list[int]]:
        """End the sessions of these groups; returns uid -> sessions that had been generated in full."""

    def check(self) -> None:
        """Raise if a worker is dead."""


@dataclass
class RolloutStep:
    """A step in progress. ``uids`` maps the uid of each launch to its prompt's serial number."""

    plan: StepPlan
    uids: dict[str, int] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    was_cut: bool = False
    stragglers: tuple[str, ...] = ()
    sessions_done: dict[str, list[int]] = field(default_factory=dict)
    dispatch_s: float = 0.0
    abort_s: float = 0.0
    failed: int = 0
    retried: int = 0
    notes: int = 0
    log: StepLog | None = None


class RolloutRunner:
    """Runs rollout steps (module docstring).

    Args:
        router, replicas, agents: what the step talks to.
        ledger, stream: the books, and the prompts.
        sessions: n, responses in a group.
        stall_deadline_s, health_interval_s, sync_deadline_s: see the configuration schema.
        placements: by pool (``tail``, ``bulk``), placements of the user's own.
        selector: orders the cut groups.
        arrange: places the requests of plans by history (:class:`~tailsieve_verl.core.selector.HistorySelector`).
    """

    def __init__(
        self,
        *,
        router: RouterPort,
        replicas: ReplicaPort,
        ledger: Ledger,
        stream: PromptStream,
        agents: AgentPort,
        sessions: int,
        stall_deadline_s: float,
        health_interval_s: float,
        sync_deadline_s: float,
        placements: Mapping[str, GuardedPlacement] | None = None,
        selector: GuardedSelector | None = None,
        arrange: Arrange | None = None,
    ) -> None:
        self._arrange = arrange
        self._placements, self._selector = placements or {}, selector or GuardedSelector()
        self._router, self._replicas, self._agents = router, replicas, agents
        self._ledger, self._stream = ledger, stream
        self.sessions = sessions
        self._stall_s, self._health_s, self._sync_s = stall_deadline_s, health_interval_s, sync_deadline_s

    def open(self, plan: StepPlan) -> RolloutStep:
        """Launch a step."""
        drawn = self._stream.draw(self._ledger.to_draw(plan))  # verl draws too: not counted as ours
        start = time.monotonic()
        plan, placed, rows = self._arranged(plan, drawn)
        step = RolloutStep(plan)
        launches = self._ledger.open(plan, drawn, placed)
        step.launches = tuple(launches)
        groups = self._placed(step, self._announce(step, launches), rows)
        self._router.open_step(
            plan.counts.batch,
            groups,
            plan.tail_replicas,
            plan.bulk_replicas,
            plan.tail_placement,
            plan.bulk_placement,
        )
        step.dispatch_s = time.monotonic() - start
        self._agents.submit([(group.uid, self._stream.rows[step.uids[group.uid]]) for group in groups])
        return step

    def wait(self, step: RolloutStep) -> list[str]:
        """Bring the step to a complete batch; returns the uids of the batch.

        Raises:
            ReplicaDiedError: a replica or its engine is gone.
            RolloutStalledError: no response was finished for ``stall_deadline_s``.
            RuntimeError: twice as many groups failed as a batch holds.
        """
        while True:
            status = self._router.wait_verdict(self._health_s)
            self._note_failures(step, status.failed)
            if status.dead:
                server, error = next(iter(status.dead.items()))
                raise ReplicaDiedError(f"rollout replica {server} died in step {step.plan.step}: {error}")
            match status.verdict.action:
                case "done":
                    break
                case "cut":
                    self._cut(step)
                case "launch":
                    self._replace(step, status.verdict.launch)
                case "wait":
                    self._still_alive(step, status)
        step.log = self._router.step_log()
        return [g.uid for g in step.log.groups if not g.cut and not g.failed]

    def observation(self, step: RolloutStep) -> StepObservation:
        """The raw facts of a step that :meth:`wait` has brought to its end."""
        log = step.log
        assert log is not None
        generation_s = max(log.t_tail_s or 0.0, log.t_bulk_s or 0.0)
        abort_ended_s = (log.cut_s or 0.0) + step.abort_s
        return StepObservation(
            plan=step.plan,
            t_tail_s=log.t_tail_s,
            t_bulk_s=log.t_bulk_s,
            cut_s=log.cut_s,
            abort_s=min(step.abort_s, max(0.0, abort_ended_s - generation_s)),
            groups=tuple(self._record(step, group) for group in log.groups),
            failed=step.failed,
            retried=step.retried,
            dispatch_us=log.acquire_s / max(log.acquires, 1) * 1e6,
        )

    def events(self, step: RolloutStep) -> list[tuple[Any, ...]]:
        """What happened in a step that :meth:`wait` has brought to its end, in order of time: the callbacks' hook, and
        what it is told beside the plan."""
        log = step.log
        assert log is not None
        found: list[tuple[float, tuple[Any, ...]]] = []
        if log.cut_s is not None and step.stragglers:
            prompts = tuple(step.uids[uid] for uid in step.stragglers)
            found.append((log.cut_s, ("on_cut", prompts, log.cut_s)))
        for pool, seconds in (("tail", log.t_tail_s), ("bulk", log.t_bulk_s)):
            if seconds is not None:
                found.append((seconds, ("on_pool_done", pool, seconds)))
        return [event for _, event in sorted(found, key=lambda entry: entry[0])]

    def close(self, step: RolloutStep, observation: StepObservation) -> None:
        """Settle the accounts: the batch is trained, stragglers are carried in order of their tail signal."""
        trained = [g.prompt for g in observation.groups if g.status == "trained"]
        cut = [g for g in observation.groups if g.status == "cut"]
        self._ledger.close(trained, [cut[i].prompt for i in self._selector.order(cut)])
        self._stream.release(self._ledger.waiting)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _announce(self, step: RolloutStep, launches: Iterable[Launch]) -> list[LaunchedGroup]:
        groups = []
        for launch in launches:
            uid = str(uuid.uuid4())  # of this launch, so that nothing of an earlier attempt can be mistaken for it
            step.uids[uid] = launch.prompt
            row = self._stream.rows[launch.prompt]
            groups.append(LaunchedGroup(uid, launch.route, sessions_of(row, self.sessions)))
        return groups

    def _arranged(self, plan: StepPlan, drawn: Sequence[int]) -> tuple[StepPlan, set[int], Any]:
        """The plan with the groups that a policy by history places, their prompts, and its replicas, if it says any."""
        if self._arrange is None or not plan.by_history:
            return plan, set(), None
        launches = self._ledger.preview(plan, drawn)
        rows = [self._stream.rows[launch.prompt] for launch in launches]
        sessions = [sessions_of(row, self.sessions) for row in rows]
        found = self._arrange(plan, [prompt_key(row) for row in rows], [x.route for x in launches], sessions)
        if found is None:
            return plan, set(), None
        return found.plan, {launches[i].prompt for i in found.placed}, found.replicas

    def _placed(self, step: RolloutStep, groups: list[LaunchedGroup], rows: Any = None) -> list[LaunchedGroup]:
        """The groups with the slots of a plan by history, else of the user's own placements, if there are any."""
        if rows is not None:
            first = {route: step.plan.tail_replicas.start if route in TAIL_ROUTES else 0 for route in ROUTES}
            return [
                group._replace(slots=tuple(int(replica) - first[group.route] for replica in row))
                for group, row in zip(groups, rows, strict=True)
            ]
        pools = {"tail": (True, step.plan.tail_replicas), "bulk": (False, step.plan.bulk_replicas)}
        for pool, placement in self._placements.items():
            is_tail, replicas = pools[pool]
            mine = [i for i, group in enumerate(groups) if (group.route in TAIL_ROUTES) == is_tail]
            keys = [prompt_key(self._stream.rows[step.uids[groups[i].uid]]) for i in mine]
            slots = placement.slots(
                [PlacedGroup(key, groups[i].sessions) for key, i in zip(keys, mine, strict=True)], len(replicas)
            )
            for i, row in zip(mine, slots or (), strict=False):
                groups[i] = groups[i]._replace(slots=row)
        return groups

    def _cut(self, step: RolloutStep) -> None:
        stragglers = self._router.cut()
        if stragglers is None:
            return
        step.stragglers, step.was_cut = stragglers, True
        if not stragglers:
            return
        start = time.monotonic()
        bulk = step.plan.bulk_replicas
        self._replicas.abort(bulk)
        self._router.wait_drained(bulk, DRAIN_S)  # aborted requests bring the tokens they had reached
        step.sessions_done = self._agents.end_sessions(list(stragglers), self._sync_s)
        left = self._router.wait_drained(bulk, DRAIN_S)
        if unfinished := self._replicas.unfinished(bulk):
            raise RolloutStalledError(
                f"{unfinished} requests are still unfinished on the bulk replicas after the abort of "
                f"step {step.plan.step}"
            )
        if left:
            # The engines are the truth: a client that was cancelled while it acquired a replica never releases it.
            logger.warning("tailsieve: %d requests of step %d were never released", left, step.plan.step)
            self._router.forget_in_flight(bulk)
        self._replicas.resume(bulk)
        step.abort_s = time.monotonic() - start

    def _replace(self, step: RolloutStep, count: int) -> None:
        launches, to_draw = self._ledger.extra(count, must_finish=step.was_cut)
        step.retried += len(launches)
        launches += self._ledger.draw_extra(self._stream.draw(to_draw), must_finish=step.was_cut)
        groups = self._announce(step, launches)
        self._router.add_groups(groups)
        self._agents.submit([(group.uid, self._stream.rows[step.uids[group.uid]]) for group in groups])

    def _note_failures(self, step: RolloutStep, failed: Iterable[tuple[str, str]]) -> None:
        for uid, error in failed:
            prompt = step.uids[uid]
            again = self._ledger.fail(prompt)
            step.failed += 1
            fate = "it will be generated again" if again else "it is dropped after too many failures"
            logger.warning("tailsieve: prompt %d failed in step %d (%s); %s", prompt, step.plan.step, error, fate)
        if step.failed > max(2 * step.plan.n_groups, MIN_FAILURES):
            raise RuntimeError(
                f"{step.failed} prompt groups failed in step {step.plan.step}, for a batch of "
                f"{step.plan.n_groups}; the last error was: {list(failed)[-1][1]}"
            )

    def _still_alive(self, step: RolloutStep, status: StepStatus) -> None:
        if status.idle_s > self._stall_s:
            raise RolloutStalledError(
                f"step {step.plan.step} has waited {status.idle_s:.0f} s without a finished response for "
                f"{status.verdict.waiting_for}; raise trainer.v1.tailsieve.stall_deadline_s if that is normal"
            )
        if status.idle_s > (step.notes + 1) * NOTE_EVERY_S:
            step.notes += 1
            logger.warning(
                "tailsieve: step %d has waited %.0f s for %s",
                step.plan.step,
                status.idle_s,
                status.verdict.waiting_for,
            )
        self._replicas.check()
        self._agents.check()

    def _record(self, step: RolloutStep, log: GroupLog) -> GroupRecord:
        status: GroupStatus = "cut" if log.cut else "failed" if log.failed else "trained"
        n = len(log.tokens)
        if status == "trained":
            complete = (True,) * n
        elif log.uid in step.sessions_done:
            done = set(step.sessions_done[log.uid])
            complete = tuple(i in done for i in range(n))
        else:  # every response had been generated before the cut reached the group's worker
            complete = (status == "cut" and all(t is not None for t in log.finished_s),) * n
        return GroupRecord(
            prompt=step.uids[log.uid],
            key=prompt_key(self._stream.rows[step.uids[log.uid]]) if step.uids[log.uid] in self._stream.rows else "",
            route=log.route,
            status=status,
            replicas=log.replicas,
            started_s=log.started_s,
            finished_s=log.finished_s,
            tokens=log.tokens,
            complete=complete,
            generated_s=log.generated_s,
        )
