"""Policies that need no cost model: a fixed split (with a schedule) and the paper's inner loop alone.

A policy is asked for a plan before each step and shown the facts after it. It owns (q, m) and nothing else: how many
groups are carried comes from the ledger. Same facts in, same decisions out; the state is plain JSON data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from tailsieve_verl.core.accounting import launch_counts
from tailsieve_verl.core.plan import Decision, Granularity, StepObservation, StepPlan

EMA_WEIGHT = 0.3  # of the new rate: a faster average chases the noise of step times, which is about 15 %
MOMENTUM, GAIN = 0.3, 0.5  # damped momentum update of q (paper C.1)
MIN_STEP_CLIP = 4  # a change of q is at most max(4, N/8) groups
UNIT_STEP_AT = 0.25  # a balance point at least this far away moves q by one whole group
HOLD_AFTER_INCREASE, HOLD_AFTER_DECREASE = 1, 2  # steps (paper C.1, "Discrete update")
BALANCED_WITHIN = 0.02  # pools whose times differ by less than 2 % of the step are left alone


@dataclass(frozen=True)
class PolicyContext:
    """What every policy knows of the run: N, R, and how the pools deal their work."""

    n_groups: int
    replicas: int
    tail_placement: Granularity = "request"
    bulk_placement: Granularity = "request"


class Numbers(NamedTuple):
    """What the inner loop computed: balance point, smoothed rates (groups per second), velocity (groups)."""

    q_star: float
    rate_tail: float
    rate_bulk: float
    velocity: float


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


class InnerLoopPolicy:
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
        self._velocity = 0.0
        self._rates: tuple[float, float] | None = None
        self._reason = "start"
        self.ignored = 0

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
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

    def observe(self, observation: StepObservation) -> Decision:
        plan, context = observation.plan, self.context
        hold = self._hold > 0
        self._hold = max(0, self._hold - 1)
        counts = plan.counts
        settled = (
            not hold
            and self.q > 0
            and counts.tail == self.q
            and not counts.residual
            and counts.fresh == context.n_groups
            and not observation.failed
        )
        if not settled:
            return self._decide(plan.step, settled=False, reason=self._why_unsettled(observation, hold))
        t_tail, t_bulk = observation.t_tail_s, observation.t_bulk_s
        if t_tail is None or t_bulk is None or not (0 < t_tail < math.inf and 0 < t_bulk < math.inf):
            self.ignored += 1
            return self._decide(
                plan.step, settled=False, reason=f"pool times {t_tail}, {t_bulk} s make no sense: ignored"
            )
        self._smooth((self.q / t_tail, (context.n_groups - self.q) / t_bulk))
        assert self._rates is not None
        rate_tail, rate_bulk = self._rates
        q_star = context.n_groups * rate_tail / (rate_bulk + rate_tail)
        self._velocity = MOMENTUM * self._velocity + GAIN * (q_star - self.q)
        change = self._whole_step(q_star)
        q_new = min(max(self.q + change, 1), context.n_groups // 2)
        slower = "bulk" if t_bulk > t_tail else "tail"
        numbers = Numbers(q_star, rate_tail, rate_bulk, self._velocity)
        if abs(t_tail - t_bulk) < BALANCED_WITHIN * max(t_tail, t_bulk) or q_new == self.q:
            return self._decide(plan.step, settled=True, reason=f"balanced at q={self.q}", numbers=numbers)
        reason = f"{slower} pool slower ({t_tail:.2f} s tail, {t_bulk:.2f} s bulk): q {self.q} -> {q_new}"
        self._hold = HOLD_AFTER_INCREASE if q_new > self.q else HOLD_AFTER_DECREASE
        self.q, self._rates = q_new, None
        return self._decide(plan.step, settled=True, switched=True, reason=reason, numbers=numbers)

    def state_dict(self) -> dict[str, Any]:
        return {
            "q": self.q,
            "m": self.m,
            "hold": self._hold,
            "velocity": self._velocity,
            "rates": self._rates and list(self._rates),
            "reason": self._reason,
            "ignored": self.ignored,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.q, self.m, self._hold = state["q"], state["m"], state["hold"]
        self._velocity, self._reason, self.ignored = state["velocity"], state["reason"], state["ignored"]
        self._rates = (state["rates"][0], state["rates"][1]) if state["rates"] else None

    def _smooth(self, new: tuple[float, float]) -> None:
        old = self._rates
        if old is None:
            self._rates = new
        else:
            self._rates = (
                old[0] + EMA_WEIGHT * (new[0] - old[0]),
                old[1] + EMA_WEIGHT * (new[1] - old[1]),
            )

    def _whole_step(self, q_star: float) -> int:
        """The damped change in whole groups: clipped, rounded half away from zero, at least one if it is due."""
        clip = max(MIN_STEP_CLIP, self.context.n_groups / 8)
        velocity = min(max(self._velocity, -clip), clip)
        change = int(math.copysign(math.floor(abs(velocity) + 0.5), velocity))
        distance = q_star - self.q
        if change == 0 and abs(distance) >= UNIT_STEP_AT:
            change = 1 if distance > 0 else -1
        return change

    def _why_unsettled(self, observation: StepObservation, hold: bool) -> str:
        counts = observation.plan.counts
        if self.q == 0:
            return "uniform"
        if observation.failed:
            return f"{observation.failed} groups failed: the step's times are not compared"
        if counts.tail != self.q or counts.residual or counts.fresh != self.context.n_groups:
            return f"in transition to q={self.q}"
        return "holding after a change" if hold else "settling"

    def _decide(
        self, step: int, *, settled: bool, reason: str, switched: bool = False, numbers: Numbers | None = None
    ) -> Decision:
        self._reason = reason
        decision = Decision(step=step, q=self.q, m=self.m, settled=settled, switched=switched, reason=reason)
        return decision if numbers is None else replace(decision, **numbers._asdict())
