"""Who chooses the groups that are kept apart: the cutoff (the paper), the prompts' history, or whichever is faster.

    cutoff    the controller alone: a group is known to be long once it is late
    history   every request of a step is placed by its prompt's history before the first token (`history_placement`);
              nothing is cut, so nothing is generated again and no length is re-rolled. With a deferral q > 0 the
              tail pool runs what was carried and what is known to be longest, and the q latest of the rest are cut
    auto      each step the one with the lesser makespan, as far as past steps tell

Under `history` and `auto` the cutoff rule runs as long as the decode curve is not known, or fewer than half of the
last step's prompts were. A prompt that is not known is placed by the mean of all, with their scatter in the scenarios.

How `auto` judges: `core/history_judge.py`. Who has taken over stays for `HOLD` steps unless it is clearly slower.

Invariants: a plan by history leaves q groups over, none by default; switching needs no accounting of its own, because
it is a change of q like any other; the same observations give the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tailsieve_verl.core.arrangement import Arrangement, blocks_or_default, deferred
from tailsieve_verl.core.controller import Controller
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history_judge import SEED, Facts, Judge, Judged, slowness
from tailsieve_verl.core.history_placement import Layout
from tailsieve_verl.core.length_forecast import Forecast, LengthForecast
from tailsieve_verl.core.outer import best_split
from tailsieve_verl.core.plan import Decision, Route, StepObservation, StepPlan
from tailsieve_verl.core.policy import make_plan
from tailsieve_verl.core.steering import Pins

#: Share of a step's prompts that must have a history for it to be placed by it.
LEAST_KNOWN = 0.5
#: Steps between two changes of who plans, unless the present one is `CLEARLY` (log) slower: each change costs a step.
HOLD, CLEARLY = 8, 0.05
#: Log gain that a split predicted to be better than the controller's present one does not have: the best of many
#: predictions is too good, and the controller takes its time to get there.
UNSURE = 0.03
#: Gain (log) that the cutoff must promise over history for `auto` to go back to it.
LEAVE_GAIN = 0.01


@dataclass(frozen=True)
class SelectorConfig:
    """Settings.

    Attributes:
        name: ``history`` or ``auto``.
        q: groups that a placed step leaves over, the surprises; 0 trains every prompt in the step it is drawn.
        scenarios: draws of a step's lengths that a placement is made for.
        control_every: under ``auto``, steps between two control steps.
    """

    name: Literal["history", "auto"] = "auto"
    q: int = 0
    scenarios: int = 48
    control_every: int = 50

    def __post_init__(self) -> None:
        if self.name not in ("history", "auto"):
            raise ValueError(f"selector must be history or auto, got {self.name!r}")
        if self.q < 0:
            raise ValueError(f"q must be at least 0, got {self.q}")
        if not 1 <= self.scenarios <= 1024:
            raise ValueError(f"scenarios must be in 1..1024, got {self.scenarios}")
        if self.control_every < 2:
            raise ValueError(f"control_every must be at least 2, got {self.control_every}")


class HistorySelector:
    """A controller and a history, and which of them plans the next step (module docstring).

    Args:
        controller: plans by the cutoff, and knows the decode curve.
        forecast: what is known of prompts; it is kept up to date here.
    """

    def __init__(
        self, controller: Controller, config: SelectorConfig | None = None, forecast: LengthForecast | None = None
    ) -> None:
        self.config = config or SelectorConfig()
        if self.config.q >= controller.context.n_groups:
            raise ValueError(f"q must be below the {controller.context.n_groups} groups of a step, got {self.config.q}")
        self.context = controller.context
        self.forecast = forecast or LengthForecast()
        self.controller = controller
        self.by_history = False
        self._known = 0.0  # share of the last step's prompts
        self.judge = Judge(controller.context.replicas)
        self._since_control = 0
        self._held_until = 0
        self._pinned = False
        self._m = 1  # tail replicas of a step with a deferral
        self._reason = "start"
        self._layout: tuple[int, Layout] | None = None

    # ---- policy protocol ------------------------------------------------------------------------------------------

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        """The next step: the controller's, or uniform counts with every request placed by history."""
        if not self.by_history:
            return self.controller.plan(step=step, carried=carried, last=last, stream_left=stream_left)
        control = self._control_due
        plan = make_plan(
            replace(self.context, bulk_placement="request"),
            0 if control else self.config.q,
            self._m,
            step=step,
            carried=carried,
            last=last,
            stream_left=stream_left,
            reason="control step under verl's default dispatch" if control else self._reason,
        )
        return plan if control else replace(plan, by_history=True)

    def arrange(
        self, plan: StepPlan, keys: Sequence[str], routes: Sequence[Route], sessions: Sequence[int]
    ) -> Arrangement | None:
        """Where each request of a step runs; ``None`` if the plan's pools deal them.

        Args:
            keys, routes: prompts of the groups and why they run, in launch order.
            sessions: responses of each; only groups of one size are placed.
        """
        curve = self.controller.evidence.curve
        if not plan.by_history or curve is None or not keys or len(set(sessions)) != 1:
            return None
        forecast = self.forecast.predict(keys, plan.step)
        counts = plan.counts
        if forecast.known_share < LEAST_KNOWN or (counts.tail and not counts.left_over):
            return None
        scenarios = self.forecast.scenarios(forecast, sessions[0], self.config.scenarios, SEED + plan.step)
        if not counts.left_over:
            layout = blocks_or_default(scenarios, forecast.work, plan.replicas, curve)
        else:
            tail, residual = (np.array([route == name for route in routes]) for name in ("tail", "residual"))
            if len(keys) - int(tail.sum() + residual.sum()) <= counts.left_over:
                return None
            layout, m = deferred(scenarios, forecast.work, plan, curve, self._m, tail, residual)
            self._m = min(m, self.context.largest_m)
        placed = tuple(
            i for i, route in enumerate(routes) if route == "fresh" and layout.tail is not None and layout.tail[i]
        )
        self._layout = (plan.step, layout)
        fewer = len(placed)
        counts = replace(counts, fresh=counts.fresh - fewer, fresh_needed=counts.fresh_needed - fewer, placed=fewer)
        return Arrangement(replace(plan, counts=counts), placed, layout.replicas)

    def observe(self, observation: StepObservation) -> Decision:
        """Take in a step and choose who plans the next one."""
        plan, evidence = observation.plan, self.controller.evidence
        ours = self._is_ours(plan)
        facts, known = self._facts(observation, evidence.curve)
        if ours:
            evidence.note_depths(observation)  # or the curve would stay that of the table the cutoff last ran under
            evidence.take_in(_as_fresh(observation))
            decision = Decision(plan.step, 0, 0, settled=True, switched=False, reason="")
        else:
            decision = self.controller.observe(observation)
        self.forecast.observe(plan.step, observation.groups)
        self._known = known
        predicted = self._cutoff_prediction(plan.step)
        judged = self.judge.take_in(facts, observation, self.forecast, evidence.curve, predicted)
        if ours:
            control = not plan.by_history
            self._since_control = 0 if control else self._since_control + 1
            self.judge.note_check(observation, evidence.curve, control=control)
        before = self.by_history
        self.by_history, reason = self._choose(plan.step)
        if self.by_history != before:
            self._held_until = plan.step + HOLD
        self._reason = reason
        return self._reported(decision, observation, judged, before, reason)

    def hold_to(self, pins: Pins, step: int) -> tuple[int, int]:
        """Keep the controller to ``pins``; while anything is pinned the cutoff runs. Returns the split."""
        split = self.controller.hold_to(pins, step)
        self._pinned = not pins.free
        if self._pinned:
            self.by_history = False
        return self._own_split if self.by_history else split

    @property
    def _own_split(self) -> tuple[int, int]:
        return (self.config.q, self._m) if self.config.q else (0, 0)

    # ---- choosing -------------------------------------------------------------------------------------------------

    @property
    def _control_due(self) -> bool:
        return self.config.name == "auto" and self._since_control + 1 >= self.config.control_every

    def _choose(self, step: int) -> tuple[bool, str]:
        """Whether the next step is placed by history, and why."""
        if self._pinned:
            return False, "cutoff: the split is pinned"
        if self.controller.evidence.curve is None:
            return False, "cutoff: the decode curve is not known yet"
        if not self.forecast.ready or self._known < LEAST_KNOWN:
            return False, f"cutoff: {self._known:.0%} of the prompts have a history"
        if self.config.name == "history":
            return True, f"history: {self._known:.0%} of the prompts are known"
        found = self.judge.compare(step, self._cutoff_prediction(step), by_history=self.by_history)
        if found is None:
            return False, "cutoff: history has been replayed on too few steps"
        if self.by_history:
            placed = found.over < LEAVE_GAIN or (step < self._held_until and found.over < CLEARLY)
        else:
            placed = found.over + found.error < 0.0 and step >= self._held_until
        return placed, f"{'history' if placed else 'cutoff'}: {found.words}"

    def _cutoff_prediction(self, step: int) -> float:
        """Log gain of the cutoff over uniform as the controller's model predicts it for its split or a better one."""
        predictor = self.controller.evidence.predictor(step + 1)
        if predictor is None:
            return 0.0
        uniform, best = predictor.uniform(), best_split(predictor)
        options = [predictor.split(self.controller.q, self.controller.m).mean_s]
        if best is not None:
            options.append(best.mean_s * math.exp(UNSURE))
        return math.log(min(options) / uniform.mean_s)

    # ---- judging --------------------------------------------------------------------------------------------------

    def _facts(self, observation: StepObservation, curve: DecodeCurve | None) -> tuple[Facts | None, float]:
        """What is to be replayed of a step, with history's placement by what was known before; and the known share."""
        plan = observation.plan
        drawn = (g for g in observation.groups if g.route in ("fresh", "placed"))
        groups = [g for g in drawn if g.status != "failed" and any(g.tokens)]
        if not groups:
            return None, self._known
        keys = [g.key for g in groups]
        forecast = self.forecast.predict(keys, plan.step)
        share, n = forecast.known_share, len(groups[0].tokens)
        if curve is None or share < LEAST_KNOWN or any(len(g.tokens) != n for g in groups) or not self.forecast.ready:
            return None, share
        carried, steady = plan.counts.tail, plan.counts.residual == 0 and plan.counts.tail == plan.counts.left_over
        measured = math.nan
        if steady and not observation.failed and observation.generation_s > 0:
            measured = math.log(observation.generation_s) - slowness(observation.groups, curve)
        layout = None if self._layout is None or self._layout[0] != plan.step else self._layout[1]
        if layout is None or layout.tail is not None or layout.replicas.shape != (len(groups), n):
            layout = self._laid_out(forecast, n, plan.step, curve)  # what it would have been
        return Facts(
            step=plan.step,
            keys=keys,
            tokens=[list(g.tokens) for g in groups],
            complete=[list(g.complete) for g in groups],
            where=layout.replicas.tolist(),
            by_history=measured if plan.by_history and carried else math.nan,
            by_cutoff=math.nan if self._is_ours(plan) else measured,
        ), share

    def _laid_out(self, forecast: Forecast, n: int, step: int, curve: DecodeCurve) -> Layout:
        scenarios = self.forecast.scenarios(forecast, n, self.config.scenarios, SEED + step)
        return blocks_or_default(scenarios, forecast.work, self.context.replicas, curve)

    def _is_ours(self, plan: StepPlan) -> bool:
        """Whether a plan is one of :meth:`plan`'s own: placed, or a control step."""
        return plan.by_history or self.by_history

    def _reported(
        self, decision: Decision, observation: StepObservation, judged: Judged | None, before: bool, reason: str
    ) -> Decision:
        extra = {
            **decision.extra,
            "history/known": self._known,
            "history/prompts": float(len(self.forecast.history)),
            "history/placed": float(observation.plan.by_history),
            "history/reliability": self.forecast.reliability,
        }
        predicted = error = None
        if judged is not None:
            extra["history/gain"] = 1.0 - math.exp(judged.history)
        if self._layout is not None and self._layout[0] == observation.plan.step:
            predicted = self._layout[1].mean_s
            error = observation.generation_s / predicted - 1.0
            extra |= {"predicted_s": predicted, "prediction_error": error}
            decision = replace(decision, predicted_s=predicted, prediction_error=error)
        now = self.by_history
        if now:
            decision = replace(decision, q=self._own_split[0], m=self._own_split[1])
        switched = decision.switched if not now and not before else now != before
        words = reason if now or not decision.reason else f"{decision.reason} ({reason})"
        return replace(decision, switched=switched, reason=words, extra=extra)

    # ---- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data; the history is saved apart, see :attr:`forecast`."""
        return {
            "controller": self.controller.state_dict(),
            "by_history": self.by_history,
            "known": self._known,
            "judge": self.judge.state_dict(),
            "since_control": self._since_control,
            "held_until": self._held_until,
            "m": self._m,
            "reason": self._reason,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; the state of a controller alone, of a run that selected by the cutoff, restores just that."""
        if "controller" not in state:
            self.controller.load_state_dict(dict(state))
            return
        self.controller.load_state_dict(state["controller"])
        self.by_history, self._known = state["by_history"], state["known"]
        self.judge.load_state_dict(state["judge"])
        self._since_control, self._held_until = state["since_control"], state["held_until"]
        self._reason, self._m = state["reason"], state["m"]
        self._layout = None


def _as_fresh(observation: StepObservation) -> StepObservation:
    """With placed groups as what they are to the controller: part of the step's fresh pool."""
    if not observation.plan.counts.placed:
        return observation
    groups = (replace(g, route="fresh") if g.route == "placed" else g for g in observation.groups)
    return replace(observation, groups=tuple(groups))
