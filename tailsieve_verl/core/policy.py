"""Policies that need no cost model: a fixed split (with a schedule) and the paper's inner loop alone.

A policy is asked for a plan before each step and shown the facts after it. It owns (q, m) and nothing else: how many
groups are carried comes from the ledger. Same facts in, same decisions out; the state is plain JSON data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tailsieve_verl.core.accounting import launch_counts
from tailsieve_verl.core.inner import BalanceLoop, Numbers, hold_after, sane_time
from tailsieve_verl.core.plan import Decision, Granularity, StepObservation, StepPlan


@dataclass(frozen=True)
class PolicyContext:
    """What every policy knows of the run: N, R, how the pools deal their work, and the most replicas that the tail pool
    may have where engines were launched in bands of draft depths (``None``: all but one)."""

    n_groups: int
    replicas: int
    tail_placement: Granularity = "request"
    bulk_placement: Granularity = "request"
    most_m: int | None = None

    @property
    def largest_m(self) -> int:
        """Most replicas of the tail pool; the bulk pool keeps one."""
        return self.replicas - 1 if self.most_m is None else min(self.most_m, self.replicas - 1)


class Policy(Protocol):
    """What the trainer and the simulator ask of a policy."""

    context: PolicyContext

    def plan(
        self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None
    ) -> StepPlan: ...

    def observe(self, observation: StepObservation) -> Decision: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def check_split(q: int, m: int, n_groups: int, replicas: int) -> None:
    """Raise ValueError unless (q, m) is uniform (0, 0) or a real split: 1 <= q < N and 1 <= m < R."""
    if q == 0 and m == 0:
        return
    if not 1 <= q < n_groups:
        raise ValueError(f"q={q} must be between 1 and {n_groups - 1} (N - 1), or 0 together with m=0 for uniform")
    if not 1 <= m < replicas:
        raise ValueError(f"m={m} must be between 1 and {replicas - 1} (R - 1), or 0 together with q=0 for uniform")


def make_plan(
    context: PolicyContext,
    q: int,
    m: int,
    *,
    step: int,
    carried: int,
    last: bool,
    stream_left: int | None,
    reason: str,
) -> StepPlan:
    """The step's plan for a split; without tail groups every replica serves the bulk pool."""
    counts = launch_counts(context.n_groups, carried, q, last=last, stream_left=stream_left)
    return StepPlan(
        step=step,
        n_groups=context.n_groups,
        replicas=context.replicas,
        q=q,
        m=m if counts.tail else 0,
        counts=counts,
        tail_placement=context.tail_placement,
        bulk_placement=context.bulk_placement,
        reason=reason,
    )


def in_transition(plan: StepPlan, q: int, m: int | None = None) -> bool:
    """Whether a step ran another load than the steady one of q: q tail groups, N fresh ones, nothing residual.

    With ``m`` also whether it ran them on another tail pool, as a step of a split that was overruled does.
    """
    counts = plan.counts
    elsewhere = m is not None and counts.tail > 0 and plan.m != m
    return elsewhere or counts.tail != q or counts.residual > 0 or counts.fresh != plan.n_groups


class FixedPolicy:
    """(q, m) from the configuration, changed at given steps; (0, 0) is uniform routing.

    Args:
        schedule: ``{step: (q, m)}`` from which step on a split holds.
    """

    def __init__(
        self, context: PolicyContext, q: int, m: int, schedule: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        self.context = context
        self._splits = {1: (q, m), **(schedule or {})}
        for split in self._splits.values():
            check_split(*split, context.n_groups, context.replicas)

    def split_at(self, step: int) -> tuple[int, int]:
        return self._splits[max(s for s in self._splits if s <= step)]

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        q, m = self.split_at(step)
        reason = "scheduled" if step in self._splits and step > 1 else "fixed"
        return make_plan(
            self.context, q, m, step=step, carried=carried, last=last, stream_left=stream_left, reason=reason
        )

    def observe(self, observation: StepObservation) -> Decision:
        step = observation.plan.step
        now, then = self.split_at(step), self.split_at(step + 1)
        return Decision(
            step=step, q=then[0], m=then[1], settled=True, switched=now != then, reason="fixed by the configuration"
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state  # a fixed split follows from the step number alone


class OwnSplit:
    """The `plan` of a policy that keeps the split it decided on, and why, as attributes."""

    context: PolicyContext
    q: int
    m: int
    _reason: str

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        """The plan of the next step."""
        return make_plan(
            self.context,
            self.q,
            self.m,
            step=step,
            carried=carried,
            last=last,
            stream_left=stream_left,
            reason=self._reason,
        )


class InnerLoopPolicy(OwnSplit):
    """Completion-time balance for a fixed m (paper 3.2 and C.1): moves q until both pools finish together.

    Deviates from the letter in one test: the paper applies a change only if the predicted makespan improves enough, and
    with constant rates as the only prediction that test never leaves q = 1. Here a change is applied when the pools are
    out of balance; the controller with a cost model predicts the makespan instead.
    """

    def __init__(self, context: PolicyContext, q: int, m: int) -> None:
        check_split(q, m, context.n_groups, context.replicas)
        self.context = context
        self.q, self.m = q, m
        self._hold = 0
        self._loop = BalanceLoop(context.n_groups)
        self._reason = "start"
        self.ignored = 0

    def observe(self, observation: StepObservation) -> Decision:
        plan = observation.plan
        hold = self._hold > 0
        self._hold = max(0, self._hold - 1)
        if hold or self.q == 0 or observation.failed or in_transition(plan, self.q, self.m):
            return self._decide(plan.step, settled=False, reason=self._why_unsettled(observation, hold))
        t_tail, t_bulk = observation.t_tail_s, observation.t_bulk_s
        if not (sane_time(t_tail) and sane_time(t_bulk)):
            self.ignored += 1
            return self._decide(
                plan.step, settled=False, reason=f"pool times {t_tail}, {t_bulk} s make no sense: ignored"
            )
        assert t_tail is not None
        assert t_bulk is not None
        q_new, reason, numbers = self._loop.balance(self.q, t_tail, t_bulk)
        switched = q_new != self.q
        if switched:
            self._hold = hold_after(self.q, q_new)
            self.q = q_new
            self._loop.restart()
        return self._decide(plan.step, settled=True, switched=switched, reason=reason, numbers=numbers)

    def state_dict(self) -> dict[str, Any]:
        return {
            "q": self.q,
            "m": self.m,
            "hold": self._hold,
            "reason": self._reason,
            "ignored": self.ignored,
            **self._loop.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.q, self.m, self._hold = state["q"], state["m"], state["hold"]
        self._reason, self.ignored = state["reason"], state["ignored"]
        self._loop.load_state_dict(state)

    def _why_unsettled(self, observation: StepObservation, hold: bool) -> str:
        if self.q == 0:
            return "uniform"
        if observation.failed:
            return f"{observation.failed} groups failed: the step's times are not compared"
        if in_transition(observation.plan, self.q, self.m):
            return f"in transition to q={self.q}"
        return "holding after a change" if hold else "settling"

    def _decide(
        self, step: int, *, settled: bool, reason: str, switched: bool = False, numbers: Numbers | None = None
    ) -> Decision:
        self._reason = reason
        decision = Decision(step=step, q=self.q, m=self.m, settled=settled, switched=switched, reason=reason)
        return decision if numbers is None else replace(decision, **numbers._asdict())
