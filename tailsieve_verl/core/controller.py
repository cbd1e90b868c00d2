"""The hierarchical controller: inner loop over q, outer loop over m, uniform as a boundary (docs/controller.md).

    observe(step)
      +- take in       decode curve from completions, history from the fresh pool, slowness of each pool
      +- guard         measured or predicted clearly worse than uniform: act at once
      +- settled?      no: hold
      +- inner loop    q moves if the predicted makespan falls by 2 %
      +- outer loop    else m moves by one towards the best candidate, or routing becomes uniform, if that gains 3 %
      +- in uniform    re-enter at the best predicted split if that gains 5 %
    plan()             the split decided on

Until the decode curve is trusted there is no prediction, and the inner loop works alone.

Invariants
    * (q, m) is (0, 0) or 1 <= q <= N/2, 1 <= m < R, m <= most_m (a configured start may have a larger q).
    * A decision moves at most one replica, except to (0, 0) and from it.
    * While it is held to a split (`hold_to`) nothing moves what is held, the guard included.
    * Only a settled step changes the split, except by the guard.
    * At most `switch_limit` changes in any `SWITCH_WINDOW` steps, the guard's included.
    * Measurements that make no sense, and steps with failed groups, are counted and never fed to the loops.
    * No clock, no I/O; the same observations give the same decisions, also after a resume from `state_dict`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tailsieve_verl.core.controller_config import ControllerConfig
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.evidence import Evidence
from tailsieve_verl.core.guard import Guard
from tailsieve_verl.core.inner import BalanceLoop, hold_after, sane_time
from tailsieve_verl.core.outer import best_split, candidates, marginal_capacity
from tailsieve_verl.core.plan import Candidate, Decision, Granularity, StepObservation
from tailsieve_verl.core.policy import OwnSplit, PolicyContext, check_split, in_transition
from tailsieve_verl.core.predict import Prediction, Predictor
from tailsieve_verl.core.steering import FREE, Pins

__all__ = ["Controller", "ControllerConfig"]

SWITCH_WINDOW = 100  # steps over which switches are counted
GUARD_RESERVE = 2  # switches of the limit kept for the guard and for leaving to uniform
# Gain asked for on top when the outer loop lowers q by all of N: what groups that were cut would have taken is imputed,
# which is accurate to 1 % where few were, but was found up to 10 % too low where it was a quarter of them.
CENSORED_DOUBT = 0.3
MOST_DETOUR = 1.05  # a replica may move through a split predicted this much slower than the present one

METRICS = (
    *("m_tail", "m_bulk", "predicted_s", "prediction_error", "predicted_uniform_s", "lower_bound_s", "confidence"),
)


class Controller(OwnSplit):
    """Decides (q, m) step by step (module docstring).

    Args:
        config: settings.
        n_groups, replicas: N and R.
        tail_placement, bulk_placement: how the pools deal their work.
        curve: a measured decode curve; without one it is learned from completions.

    Raises:
        ValueError: a start that is no split of N groups on R replicas.
    """

    def __init__(
        self,
        config: ControllerConfig,
        n_groups: int,
        replicas: int,
        *,
        tail_placement: Granularity = "request",
        bulk_placement: Granularity = "request",
        curve: DecodeCurve | None = None,
    ) -> None:
        check_split(config.q, config.m, n_groups, replicas)
        self.config = config
        self.context = PolicyContext(n_groups, replicas, tail_placement, bulk_placement, config.most_m)
        self.q, self.m = config.q, config.m
        if config.most_m is not None and config.m > config.most_m:
            raise ValueError(f"m={config.m} must be at most {config.most_m}, the replicas that can be in the tail pool")
        self.evidence = Evidence(n_groups, replicas, tail_placement, bulk_placement, curve, config.most_m)
        self.ignored = 0
        self._loop = BalanceLoop(n_groups)
        self._hold = 0
        self._reason = "start"
        self._expected: float | None = None  # makespan predicted for the next step
        self._guard = Guard(config)
        self._switches: list[int] = []
        self._pins = FREE

    # ---- policy protocol ------------------------------------------------------------------------------------------

    def observe(self, observation: StepObservation) -> Decision:
        """Take in a step and decide on the next one's split."""
        plan = observation.plan
        held = self._hold > 0
        self._hold = max(0, self._hold - 1)
        trouble = self._trouble(observation)
        if trouble:
            self.ignored += 1
            self._expected = None
            return self._report(Decision(plan.step, self.q, self.m, False, False, trouble))
        if self.evidence.note_depths(observation):  # rates and excess were measured under other draft depths
            self._loop.restart()
            self._guard.restart()
        hiccup = self.evidence.take_in(observation)
        predictor = self.evidence.predictor(plan.step + 1)
        decision = self._decide(self._facts(observation, predictor, hiccup), predictor, observation, held)
        self._expected = predictor.split(self.q, self.m).mean_s if predictor is not None else None
        return self._report(decision)

    def hold_to(self, pins: Pins, step: int) -> tuple[int, int]:
        """Keep to ``pins`` from here on; returns the split. What was decided after ``step`` and is undone by it was no
        switch, and the split that it moves to is settled like after one."""
        self._pins = pins
        q, m = pins.applied(self.q, self.m, self.context)
        if (q, m) != (self.q, self.m):
            self._switches = [s for s in self._switches if s != step]
            self._place(q, m)
            self._expected = None
        return q, m

    # ---- taking in ------------------------------------------------------------------------------------------------

    def _trouble(self, observation: StepObservation) -> str:
        """Why a step cannot be used; empty if it can."""
        if observation.failed:
            return f"{observation.failed} groups failed: the step's times are not compared"
        times = {"tail": observation.t_tail_s, "bulk": observation.t_bulk_s}
        needed = ["tail"] * bool(observation.plan.counts.tail) + ["bulk"]
        bad = [f"{pool} pool time {times[pool]} s" for pool in needed if not sane_time(times[pool])]
        return " and ".join(bad) + " makes no sense: ignored" if bad else ""

    def _facts(self, observation: StepObservation, predictor: Predictor | None, hiccup: float) -> Decision:
        """A decision to stay, with what is known whatever is decided."""
        measured = observation.generation_s
        error = None
        if self._expected is not None and not in_transition(observation.plan, self.q, self.m):
            error = measured / self._expected - 1.0
        uniform = predictor.uniform().mean_s if predictor is not None else None
        if uniform is not None and observation.plan.m and not in_transition(observation.plan, self.q, self.m):
            self._guard.note(math.log(measured / uniform) - hiccup)
        return Decision(
            step=observation.plan.step,
            q=self.q,
            m=self.m,
            settled=False,
            switched=False,
            reason="",
            predicted_s=self._expected if error is not None else None,
            prediction_error=error,
            predicted_uniform_s=uniform,
            lower_bound_s=self.evidence.lower_bound(observation),
            confidence=self.evidence.confidence,
        )

    # ---- deciding -------------------------------------------------------------------------------------------------

    def _decide(
        self, decision: Decision, predictor: Predictor | None, observation: StepObservation, held: bool
    ) -> Decision:
        steady = not in_transition(observation.plan, self.q, self.m)
        if predictor is not None and self.config.guard and self.q and self._pins.free:
            acted = self._guarded(decision, predictor)
            if acted is not None:
                return acted
        if held or not steady:
            return replace(decision, reason="holding after a change" if steady else f"in transition to q={self.q}")
        decision = replace(decision, settled=True)
        if self.q == 0:
            return self._from_uniform(decision, predictor)
        return self._from_split(decision, predictor, observation)

    def _guarded(self, decision: Decision, predictor: Predictor) -> Decision | None:
        """Act at once if the split is clearly worse than uniform, by prediction or by measurement."""
        if not self._may_switch(decision.step, self.config.switch_limit):
            return None
        uniform, present = predictor.uniform(), predictor.split(self.q, self.m)
        if why := self._guard.by_prediction(present, uniform, known=self.evidence.history.groups > 0):
            options = [predictor.best_q(m) for m in (self.m - 1, self.m, self.m + 1) if 1 <= m <= predictor.largest_m]
            best = min(options, key=lambda p: p.mean_s)
            if not self._worth(best, uniform, self.config.enter_gain):
                best = uniform  # the safe way out of a split that is not known well
            return self._switch(decision, best, why)
        if why := self._guard.by_measurement(decision.step, uniform):
            return self._switch(decision, uniform, why)
        return None

    def _from_split(self, decision: Decision, predictor: Predictor | None, observation: StepObservation) -> Decision:
        """Inner loop, then outer loop."""
        t_tail, t_bulk = observation.t_tail_s, observation.t_bulk_s
        assert t_tail is not None
        assert t_bulk is not None
        q_alone, why, numbers = self._loop.balance(self.q, t_tail, t_bulk)
        decision = replace(decision, **numbers._asdict())
        allowed = self._may_switch(decision.step, self.config.switch_limit - GUARD_RESERVE)
        if predictor is None:
            if q_alone == self.q or not allowed:
                return replace(decision, reason=f"{why if q_alone == self.q else 'switch limit'} (curve not known yet)")
            return self._switch_to(decision, q_alone, self.m, f"{why} (curve not known yet)")
        present = predictor.split(self.q, self.m)
        target, reason = None, ""
        if self._pins.q is None:
            target, reason = self._inner(predictor, present, numbers.q_star)
        if target is None:
            found = candidates(predictor, present, reoptimise=self._reoptimise, far=self.config.search_far)
            m_tail, m_bulk = marginal_capacity(predictor, self.q, self.m)
            decision = replace(decision, candidates=tuple(c for _, c in found), m_tail=m_tail, m_bulk=m_bulk)
            options = [p for p, c in found if c.feasible and self._pins.allows(p.q, p.m)]
            target, reason = self._outer(predictor, present, options)
        if target is None:
            return replace(decision, reason=reason)
        if not allowed:
            return replace(
                decision, reason=f"{reason}, but {self.config.switch_limit} switches in 100 steps are enough"
            )
        return self._switch(decision, target, reason)

    def _inner(self, predictor: Predictor, present: Prediction, q_star: float) -> tuple[Prediction | None, str]:
        """The next q for the present m, if it is worth a change."""
        loop, q, m = self._loop, self.q, self.m
        proposal = loop.proposal(q, q_star)
        if not self.config.predicted_test:
            if proposal == q or 1.0 - loop.makespan(proposal) / loop.makespan(q) < self.config.inner_gain:
                return None, f"balanced at q={q} by constant rates"
            return predictor.split(proposal, m), f"q {q} -> {proposal} by constant rates, q*={q_star:.1f}"
        options = [predictor.best_q(m, q - loop.clip, min(q + loop.clip, predictor.n_groups // 2))]
        if proposal != q:
            options.append(predictor.split(proposal, m))
        best = min(options, key=lambda p: p.mean_s)
        if best.q == q or not self._worth(best, present, self.config.inner_gain):
            return None, f"q={q} is within {self.config.inner_gain:.0%} of the best for m={m}"
        return best, f"q {q} -> {best.q}: predicted {present.mean_s:.2f} -> {best.mean_s:.2f} s, q*={q_star:.1f}"

    def _outer(
        self, predictor: Predictor, present: Prediction, options: list[Prediction]
    ) -> tuple[Prediction | None, str]:
        """The next m, one replica towards the best candidate, or uniform."""
        best = min(options, key=lambda p: p.mean_s)
        stay = f"({self.q}, {self.m}) is within {self.config.outer_gain:.0%} of the best predicted"
        least = self.config.outer_gain + CENSORED_DOUBT * max(0, self.q - best.q) / self.context.n_groups
        if not self._worth(best, present, least) or (best.q, best.m) == (self.q, self.m):
            return None, stay
        times = f"predicted {present.mean_s:.2f} -> {best.mean_s:.2f} s"
        if best.m == 0:
            return best, f"uniform is better: {times}"
        m = self.m + (best.m > self.m) - (best.m < self.m)
        step = best
        if m != best.m:
            step = predictor.best_q(m) if self._reoptimise else predictor.split(self.q, m)
            if step.mean_s > MOST_DETOUR * present.mean_s:
                uniform = predictor.uniform()
                passable = uniform.mean_s <= MOST_DETOUR * present.mean_s
                if passable and self.config.reenter and self._worth(best, uniform, self.config.enter_gain):
                    return uniform, f"to ({best.q}, {best.m}) by way of uniform: {times}"
                return None, f"m={best.m} would be better ({times}), but m={m} on the way is not"
        return step, f"m {self.m} -> {m} towards ({best.q}, {best.m}): {times}"

    def _from_uniform(self, decision: Decision, predictor: Predictor | None) -> Decision:
        """Re-entry."""
        if predictor is None:
            return replace(decision, reason="uniform until the decode curve is known")
        if not self.config.reenter:
            return replace(decision, reason="uniform")
        if decision.step < self._guard.barred_until:
            return replace(
                decision, reason=f"uniform: a split was measured worse, next look at step {self._guard.barred_until}"
            )
        best, uniform = best_split(predictor), predictor.uniform()
        found = [p for p in (best, uniform) if p is not None]
        decision = replace(decision, candidates=tuple(Candidate(p.q, p.m, p.mean_s) for p in found))
        if best is None or not self._worth(best, uniform, self.config.enter_gain):
            seen = "no split" if best is None else f"({best.q}, {best.m}) at {best.mean_s:.2f} s"
            return replace(decision, reason=f"uniform at {uniform.mean_s:.2f} s, best split: {seen}")
        if not self._may_switch(decision.step, self.config.switch_limit - GUARD_RESERVE):
            return replace(decision, reason="uniform: switch limit")
        why = f"uniform -> ({best.q}, {best.m}): predicted {uniform.mean_s:.2f} -> {best.mean_s:.2f} s"
        return self._switch(decision, best, why)

    def _worth(self, new: Prediction, old: Prediction, least: float) -> bool:
        """Whether a predicted gain is large enough, the noise of the prediction considered."""
        gain, error = new.gain_over(old)
        return gain >= least + self.config.noise_margin * error

    @property
    def _reoptimise(self) -> bool:
        return self.config.reoptimise_q and self._pins.q is None

    def _may_switch(self, step: int, limit: int) -> bool:
        return sum(s > step - SWITCH_WINDOW for s in self._switches) < max(1, limit)

    def _switch(self, decision: Decision, to: Prediction, reason: str) -> Decision:
        return self._switch_to(decision, to.q, to.m, reason)

    def _switch_to(self, decision: Decision, q: int, m: int, reason: str) -> Decision:
        if (q, m) == (self.q, self.m):
            return replace(decision, reason=reason)
        if not self._pins.allows(q, m):
            return replace(decision, reason=f"{reason}, but the split is pinned")
        self._switches = [*(s for s in self._switches if s > decision.step - SWITCH_WINDOW), decision.step]
        self._place(q, m)
        return replace(decision, q=q, m=m, switched=True, reason=reason)

    def _place(self, q: int, m: int) -> None:
        """Make (q, m) the split; what was measured under the old one is void."""
        self._hold = hold_after(self.q, q)
        self._loop.restart()
        self._guard.restart()
        self.q, self.m = q, m

    def _report(self, decision: Decision) -> Decision:
        """Remember the reason for the plan, and list the numbers for the metrics."""
        self._reason = decision.reason
        extra = {name: float(value) for name in METRICS if (value := getattr(decision, name)) is not None}
        return replace(decision, extra={**extra, "ignored": float(self.ignored)})

    # ---- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "q": self.q,
            "m": self.m,
            "hold": self._hold,
            "reason": self._reason,
            "ignored": self.ignored,
            "loop": self._loop.state_dict(),
            "evidence": self.evidence.state_dict(),
            "expected": self._expected,
            "switches": list(self._switches),
            **self._guard.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_split(state["q"], state["m"], self.context.n_groups, self.context.replicas)
        self.q, self._hold = state["q"], state["hold"]
        self.m = min(state["m"], self.context.largest_m)  # engines may have been launched with another band
        self._reason, self.ignored, self._expected = state["reason"], state["ignored"], state["expected"]
        self._loop.load_state_dict(state["loop"])
        self.evidence.load_state_dict(state["evidence"])
        self._guard.load_state_dict(state)
        self._switches = list(state["switches"])
