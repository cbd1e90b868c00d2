"""Choices that cannot lose a run: a policy that fails leaves it uniform, a placement or selector of the user's own that
fails gives way to ours; each with a warning, for the rest of the process's life.

Failing means to raise, to return nonsense, or, where the class is the user's own, not to return before a deadline.
Only choices are guarded. The books (ledger, step tracker, batch check) are not: if they break, the data can no longer
be trusted, and the run must stop.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tailsieve_verl.core.accounting import launch_counts
from tailsieve_verl.core.arrangement import Arrangement
from tailsieve_verl.core.bias import tail_order
from tailsieve_verl.core.checks import as_count
from tailsieve_verl.core.custom import PlacedGroup, PoolPlacement, TailSelector, checked_order, checked_slots
from tailsieve_verl.core.plan import Decision, GroupRecord, Route, StepObservation, StepPlan
from tailsieve_verl.core.policy import FixedPolicy, Policy, PolicyContext, check_split
from tailsieve_verl.core.steering import Request, SteeredPolicy
from tailsieve_verl.integration.deadline import within
from tailsieve_verl.records.lines import plain

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_PINS: dict[str, Any] = {"standing": {}, "next": None, "reason": ""}


class GuardedPolicy:
    """Passes everything to ``policy`` until it fails, then stays uniform for the rest of the process's life.

    Args:
        policy: decides; callbacks may overrule it (:class:`~tailsieve_verl.core.steering.SteeredPolicy`).
        callbacks: their names, in order.
        deadline_s: longest that a policy of the user's own may take; ``None`` for ours, which do not wait for anything.
    """

    def __init__(self, policy: Policy, *, callbacks: Sequence[str] = (), deadline_s: float | None = None) -> None:
        self.context: PolicyContext = policy.context
        self._steered: SteeredPolicy | None = SteeredPolicy(policy, callbacks)
        self._arrange = getattr(policy, "arrange", None)  # only a policy by prompt history has one
        self._deadline_s = deadline_s
        self._uniform = FixedPolicy(policy.context, 0, 0)
        self.failure: str | None = None

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        steered = self._steered
        if steered is not None:
            try:
                plan = self._bounded(
                    "plan", lambda: steered.plan(step=step, carried=carried, last=last, stream_left=stream_left)
                )
                _check_plan(plan, self.context, step, carried, last=last, stream_left=stream_left)
                return plan
            except Exception as error:
                self._give_up("plan", step, error)
        return self._uniform.plan(step=step, carried=carried, last=last, stream_left=stream_left)

    def arrange(
        self, plan: StepPlan, keys: Sequence[str], routes: Sequence[Route], sessions: Sequence[int]
    ) -> Arrangement | None:
        """Where the requests of a plan by history run; ``None``: its pools deal them."""
        if self._steered is None or self._arrange is None or not plan.by_history:
            return None
        try:
            found: Arrangement | None = self._arrange(plan, keys, routes, sessions)
            if found is not None:
                _check_arrangement(found, plan, routes, sessions)
            return found
        except Exception as error:
            self._give_up("place", plan.step, error)  # the plan itself is sound: its pools are dealt round robin
            return None

    def observe(self, observation: StepObservation) -> Decision:
        return self._decided("judge", observation.plan.step, lambda steered: steered.observe(observation))

    def amend(self, decision: Decision, *, end: bool = True) -> Decision:
        """``decision`` with what callbacks have asked for since; ``end`` if it is final."""
        if self._steered is None:
            return decision
        return self._decided("amend its decision on", decision.step, lambda steered: steered.amend(end=end))

    def request(self, request: Request) -> None:
        """Take in a callback's request; ValueError if it makes no sense, or the policy has failed."""
        if self._steered is None:
            raise ValueError("the policy has failed and the run stays uniform")
        self._steered.request(request)

    def release(self, by: str) -> bool:
        return self._steered is not None and self._steered.release(by)

    def state_dict(self) -> dict[str, Any]:
        """The policy's own state, plain JSON data; ``failed`` alone once it has failed, or if it gives none, so that a
        resume starts it afresh."""
        steered = self._steered
        if steered is None:
            return {"failed": self.failure}
        try:
            state: Any = self._bounded("state_dict", steered.state_dict)
            if self._deadline_s is not None:  # the user's own: a checkpoint must not fail for what it returns
                if not isinstance(state, Mapping):
                    raise TypeError(f"a {type(state).__name__} is no mapping")
                state = json.loads(json.dumps(dict(state), default=plain))
            return state
        except Exception as error:
            said = f"its state cannot be saved: {type(error).__name__}: {error}"
            logger.warning("tailsieve: the policy goes on, but %s; a resume will start it afresh", said, exc_info=error)
            return {"failed": said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) == {"failed"} and isinstance(state["failed"], str):  # the user's own may count what failed
            logger.warning(
                "tailsieve: the policy had failed before the checkpoint (%s); it starts afresh", state["failed"]
            )
            return
        assert self._steered is not None
        try:
            self._steered.load_state_dict(state)
        except Exception as error:
            self._give_up("restore its state for the step after", 0, error)

    def steering_state(self) -> dict[str, Any] | None:
        return self._steered.steering_state() if self._steered is not None else None

    def load_steering_state(self, state: dict[str, Any] | None, *, same: bool = True) -> None:
        """Restore the callbacks' pins, after the policy's state.

        Args:
            same: the policy is the one that the state was saved with; else the split comes from the new one.
        """
        if self._steered is None or state is None:
            return
        try:
            gone = self._steered.load_steering_state(state if same else {**state, "next": None, "reason": ""})
        except Exception as error:
            logger.warning("tailsieve: the pins of the checkpoint do not fit this run and end: %s", error)
            self._steered.load_steering_state(NO_PINS)
            return
        if gone:
            logger.warning("tailsieve: the pins of callbacks that are not configured end: %s", ", ".join(gone))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _decided(self, what: str, step: int, ask: Callable[[SteeredPolicy], Decision]) -> Decision:
        steered = self._steered
        if steered is not None:
            try:
                decision = self._bounded(what, lambda: ask(steered))
                if not isinstance(decision, Decision):
                    raise TypeError(f"a {type(decision).__name__} is no Decision")
                for name in ("q", "m"):
                    as_count(getattr(decision, name), name, 0)
                check_split(decision.q, decision.m, self.context.n_groups, self.context.replicas)
                return replace(decision, extra={str(name): float(x) for name, x in dict(decision.extra).items()})
            except Exception as error:
                self._give_up(what, step, error)
        reason = f"the policy failed ({self.failure}): uniform from here on"
        return Decision(step, 0, 0, settled=False, switched=steered is not None, reason=reason)

    def _bounded(self, what: str, call: Callable[[], T]) -> T:
        if self._deadline_s is None:
            return call()
        return within(self._deadline_s, f"the policy's {what} (callback_deadline_s)", call)

    def _give_up(self, what: str, step: int, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        logger.warning(
            "tailsieve: the policy could not %s step %d (%s); the run goes on under uniform dispatch",
            what,
            step,
            self.failure,
            exc_info=error,
        )
        self._steered = None


class GuardedPlacement:
    """Asks the user's own placement for slots until it fails; without slots the router deals as the plan says."""

    def __init__(self, placement: PoolPlacement, pool: str, deadline_s: float) -> None:
        self._placement: PoolPlacement | None = placement
        self._pool, self._deadline_s = pool, deadline_s

    def slots(self, groups: Sequence[PlacedGroup], replicas: int) -> list[tuple[int, ...]] | None:
        placement = self._placement
        if placement is None or not groups:
            return None
        what = f"{self._pool}_placement {type(placement).__name__}"
        try:
            return within(self._deadline_s, what, lambda: checked_slots(placement, groups, replicas))
        except Exception as error:
            logger.warning(
                "tailsieve: %s failed (%s: %s); its pool is dealt round robin from here on",
                what,
                type(error).__name__,
                error,
                exc_info=error,
            )
            self._placement = None
            return None


class GuardedSelector:
    """Orders the cut groups by the user's own selector until it fails; by our tail signal without one."""

    def __init__(self, selector: TailSelector | None = None, deadline_s: float = 10.0) -> None:
        self._selector, self._deadline_s = selector, deadline_s

    def order(self, cut: Sequence[GroupRecord]) -> list[int]:
        selector = self._selector
        if selector is not None:
            what = f"tail_selector {type(selector).__name__}"
            try:
                return within(self._deadline_s, what, lambda: checked_order(selector, cut))
            except Exception as error:
                logger.warning(
                    "tailsieve: %s failed (%s: %s); most unfinished responses go first from here on",
                    what,
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
                self._selector = None
        return tail_order([sum(not done for done in g.complete) for g in cut], [sum(g.tokens) for g in cut])


def _check_arrangement(found: Arrangement, plan: StepPlan, routes: Sequence[Route], sessions: Sequence[int]) -> None:
    """Raise unless every response has a replica of its pool, and the counts are the plan's."""
    if [len(row) for row in found.replicas] != list(sessions):
        raise ValueError("a placement needs a replica for every response")
    for i, (route, row) in enumerate(zip(routes, found.replicas, strict=True)):
        pool = plan.tail_replicas if route == "tail" or i in found.placed else plan.bulk_replicas
        if not all(int(r) in pool for r in row):
            raise ValueError(f"a placement puts a {route} group on replicas {list(row)}, its pool is {pool}")
    fewer = len(set(found.placed))
    counts = replace(
        plan.counts,
        fresh=plan.counts.fresh - fewer,
        fresh_needed=plan.counts.fresh_needed - fewer,
        placed=fewer,
    )
    if found.plan != replace(plan, counts=counts) or counts.fresh_needed < 0:
        raise ValueError(f"{found.plan.counts} is not {plan.counts} with {fewer} groups placed")
    if any(routes[i] != "fresh" for i in found.placed):
        raise ValueError("only fresh groups can be placed")


def _check_plan(
    plan: StepPlan, context: PolicyContext, step: int, carried: int, *, last: bool, stream_left: int | None
) -> None:
    """Raise unless a plan is one that the accounting allows."""
    if not isinstance(plan, StepPlan):
        raise TypeError(f"a {type(plan).__name__} is no StepPlan")
    size = (plan.step, plan.n_groups, plan.replicas)
    if size != (step, context.n_groups, context.replicas):
        raise ValueError(f"(step, N, R) = {size} is not {(step, context.n_groups, context.replicas)}")
    counts = launch_counts(context.n_groups, carried, plan.q, last=last, stream_left=stream_left)
    if plan.counts != counts:
        raise ValueError(f"{plan.counts} is not what {carried} carried groups and q={plan.q} give: {counts}")
    if not (1 <= plan.m < plan.replicas if counts.tail else plan.m == 0):
        raise ValueError(f"m={plan.m} cannot serve {counts.tail} tail groups on {plan.replicas} replicas")
