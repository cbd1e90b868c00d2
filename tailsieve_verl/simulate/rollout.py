"""Simulated rollout steps, by the parts of a real run: its policies, ledger, step tracker and placements.

    policy.plan -> ledger.open -> placement -> engines -> step tracker (cut) -> ledger.close -> policy.observe

Only the engines (`simulate.engine`) and the lengths (`simulate.workload`) stand in for something real.

Invariants
    * Every invariant of the ledger and the tracker is checked here as in a run: they are the same objects.
    * A cut group is generated again from its prompt with lengths of its own; the tail pool is never cut.
    * Times are seconds since the step began; the makespan excludes abort and controller time, as in a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.bias import tail_order
from tailsieve_verl.core.ledger import Launch, Ledger
from tailsieve_verl.core.placement import Placement, TailSieve
from tailsieve_verl.core.plan import Decision, GroupRecord, StepObservation, StepPlan
from tailsieve_verl.core.policy import Policy
from tailsieve_verl.core.selector import HistorySelector
from tailsieve_verl.core.step import StepTracker
from tailsieve_verl.simulate.drafting import Drafting
from tailsieve_verl.simulate.engine import EngineCosts, Outcome, simulate_replicas
from tailsieve_verl.simulate.workload import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """R replicas and what their steps cost.

    Attributes:
        replicas: R.
        costs: of one replica.
        noise: standard deviation of the log of a step's speed, the same for all replicas of a step.
        seed: of the noise.
    """

    replicas: int
    costs: EngineCosts
    noise: float = 0.0
    seed: int = 0

    def slowness(self, step: int) -> float:
        """Factor on the times of a step."""
        if not self.noise:
            return 1.0
        return float(np.exp(np.random.default_rng((self.seed, 7, step)).normal() * self.noise))


@dataclass(frozen=True)
class PoolDrafts:
    """How the replicas of each pool draft; without a split all are bulk. ``None``: plain decoding.

    Attributes:
        sampled: whether drafts are accepted one by one.
    """

    bulk: Drafting | None = None
    tail: Drafting | None = None
    sampled: bool = False


@dataclass(frozen=True)
class SimulatedStep:
    """A step: what was planned, seen and decided, and what only a simulation knows.

    Attributes:
        observation, decision: as in a run; group records only if asked for.
        prompts: serial numbers of the batch, [batch].
        lengths: their responses, [batch, n] tokens.
        idle_tail, idle_bulk: share of the pool's replica time before the makespan in which it had nothing to do.
        preemptions: requests that lost their KV cache.
        most_requests: on one replica, running or waiting.
    """

    observation: StepObservation
    decision: Decision
    prompts: NDArray[np.int64]
    lengths: Floats
    idle_tail: float | None
    idle_bulk: float
    preemptions: int
    most_requests: int


@dataclass
class Rollout:
    """Runs the steps of one policy.

    Args:
        placement: places a uniform policy's whole step, for example with lengths known (oracles); without one the
            plan's two pools are dealt round robin as the router does.
        records: whether observations carry group records, which a controller needs.
        drafts: of the pools; they follow a replica that changes pool, as in a run.
    """

    policy: Policy
    workload: Workload
    machine: Machine
    placement: Placement | None = None
    records: bool = True
    drafts: PoolDrafts = PoolDrafts()
    ledger: Ledger = field(default_factory=Ledger)
    attempts: dict[int, int] = field(default_factory=dict)

    def step(self, number: int, *, last: bool = False) -> SimulatedStep:
        """Run one step and show it to the policy."""
        plan = self.policy.plan(step=number, carried=len(self.ledger.carried), last=last)
        first = self.ledger.drawn
        drawn = range(first, first + self.ledger.to_draw(plan))
        plan, placed, rows = self._arranged(plan, self.ledger.preview(plan, drawn))
        launches = self.ledger.open(plan, drawn, placed)
        prompts = [launch.prompt for launch in launches]
        lengths = self.workload.lengths(prompts, [self.attempts.pop(p, 0) for p in prompts], number)
        factor = self.machine.slowness(number)
        where = self._place(plan, lengths) if rows is None else rows
        outcome = self._engines(plan, prompts, lengths, where)
        end = outcome.finish.reshape(lengths.shape) * factor
        tracker = self._track(plan, launches, end)
        assert tracker.cut_s is not None
        cut = np.array([tracker.groups[str(p)].cut for p in prompts])
        tokens = lengths
        if cut.any():
            stopped = self._engines(plan, prompts, lengths, where, tracker.cut_s / factor).reached
            stopped = stopped.reshape(lengths.shape)
            tokens = np.where(cut[:, None] & (end > tracker.cut_s), stopped, lengths)
        self._close(prompts, cut, end, tokens, tracker.cut_s)
        groups = self._records(launches, cut, end, tokens, where, tracker.cut_s) if self.records else ()
        observation = StepObservation(
            plan, tracker.pool_time_s(tail=True), tracker.pool_time_s(tail=False), tracker.cut_s, 0.0, groups
        )
        idle_tail, idle_bulk = _idle(plan, outcome.busy * factor, observation)
        return SimulatedStep(
            observation,
            self.policy.observe(observation),
            np.array(prompts)[~cut],
            lengths[~cut],
            idle_tail,
            idle_bulk,
            int(outcome.preemptions.sum()),
            int(np.bincount(where.ravel()).max()),
        )

    def _arranged(self, plan: StepPlan, launches: list[Launch]) -> tuple[StepPlan, set[int], NDArray[np.int64] | None]:
        """The plan with the groups that a policy by history places, their prompts, and its replicas, if it says any."""
        if self.placement is not None or not isinstance(self.policy, HistorySelector):
            return plan, set(), None
        keys = [str(name) for name in self.workload.identity([launch.prompt for launch in launches]).tolist()]
        routes = [launch.route for launch in launches]
        found = self.policy.arrange(plan, keys, routes, [self.workload.n] * len(keys))
        if found is None:
            return plan, set(), None
        return found.plan, {launches[i].prompt for i in found.placed}, found.replicas

    def _place(self, plan: StepPlan, lengths: Floats) -> NDArray[np.int64]:
        if self.placement is not None:
            return self.placement.place(lengths, self.machine.replicas)
        tail = range(plan.counts.tail)  # the ledger launches the tail groups first
        return TailSieve(tail, plan.m, plan.tail_placement, plan.bulk_placement).place(lengths, plan.replicas)

    def _engines(
        self,
        plan: StepPlan,
        prompts: list[int],
        lengths: Floats,
        where: NDArray[np.int64],
        until: float = np.inf,
    ) -> Outcome:
        n = lengths.shape[1]
        drafting = None
        if self.drafts.bulk is not None or self.drafts.tail is not None:
            tail = set(plan.tail_replicas)
            drafting = [self.drafts.tail if r in tail else self.drafts.bulk for r in range(self.machine.replicas)]
        return simulate_replicas(
            lengths,
            where,
            self.machine.replicas,
            self.machine.costs,
            prompt_tokens=np.repeat(self.workload.prompt_tokens(prompts), n),
            share=np.repeat(np.arange(len(prompts)), n),
            until=until,
            drafting=drafting,
            sample=_step_seed(self.machine.seed, plan.step) if self.drafts.sampled else None,
        )

    def _track(self, plan: StepPlan, launches: list[Launch], end: Floats) -> StepTracker:
        """Show the tracker every completion in order; cut when it says so."""
        tracker = StepTracker(plan.counts.batch, [(str(launch.prompt), launch.route) for launch in launches])
        done = end.max(axis=1)
        for i in np.argsort(done, kind="stable").tolist():
            uid, now = str(launches[i].prompt), float(done[i])
            tracker.generated(uid, now)
            tracker.stored(uid)
            if tracker.cut_s is None and tracker.verdict().action == "cut":
                tracker.cut(now)
        return tracker

    def _close(self, prompts: list[int], cut: NDArray[np.bool_], end: Floats, tokens: Floats, cut_s: float) -> None:
        stragglers = np.flatnonzero(cut)
        unfinished = (end[stragglers] > cut_s).sum(axis=1).tolist()
        order = tail_order(unfinished, tokens[stragglers].sum(axis=1).tolist())
        carried = [prompts[stragglers[i]] for i in order]
        self.attempts.update(dict.fromkeys(carried, 1))
        self.ledger.close([p for p, straggles in zip(prompts, cut.tolist(), strict=True) if not straggles], carried)

    def _records(
        self,
        launches: list[Launch],
        cut: NDArray[np.bool_],
        end: Floats,
        tokens: Floats,
        where: NDArray[np.int64],
        cut_s: float,
    ) -> tuple[GroupRecord, ...]:
        seen = np.where(cut[:, None], np.minimum(end, cut_s), end)
        complete = ~cut[:, None] | (end <= cut_s)
        started = (0.0,) * end.shape[1]
        names = self.workload.identity([launch.prompt for launch in launches]).tolist()
        columns = zip(
            launches,
            names,
            cut.tolist(),
            where.tolist(),
            seen.tolist(),
            np.rint(tokens).astype(np.int64).tolist(),
            complete.tolist(),
            end.max(axis=1).tolist(),
            strict=True,
        )
        return tuple(
            GroupRecord(
                prompt=launch.prompt,
                key=str(name),
                route=launch.route,
                status="cut" if straggles else "trained",
                replicas=tuple(replicas),
                started_s=started,
                finished_s=tuple(finished),
                tokens=tuple(length),
                complete=tuple(whole),
                generated_s=None if straggles else done,
            )
            for launch, name, straggles, replicas, finished, length, whole, done in columns
        )


def _step_seed(seed: int, step: int) -> int:
    """The same for every policy of a seed."""
    return int(np.random.SeedSequence((seed, 11, step)).generate_state(1, np.uint64)[0])


def _idle(plan: StepPlan, busy: Floats, observation: StepObservation) -> tuple[float | None, float]:
    """Idle share of the tail and the bulk pool; bulk replicas are aborted at the cut."""
    makespan = observation.generation_s
    cut_s = observation.cut_s or makespan
    bulk = np.minimum(busy[list(plan.bulk_replicas)], cut_s)
    tail = busy[list(plan.tail_replicas)] if plan.m else None
    return (None if tail is None else float(1 - tail.mean() / makespan)), float(1 - bulk.mean() / makespan)
