"""Who chooses the groups that are kept apart: the cutoff (the paper), the prompts' history, or whichever is faster.

    cutoff    the controller alone: a group is known to be long once it is late
    history   every request of a step is placed by its prompt's history before the first token (`history_placement`);
              nothing is cut, so nothing is generated again and no length is re-rolled. With a deferral q > 0 the
              tail pool runs what was carried and what is known to be longest, and the q latest of the rest are cut
    auto      each step the one with the lesser makespan, as far as past steps tell

Under `history` and `auto` the cutoff rule runs as long as the decode curve is not known, or fewer than half of the
last step's prompts were. A prompt that is not known is placed by the mean of all, with their scatter in the scenarios.

How `auto` judges. After a step all its lengths are known; those that were cut one step later, as draws beyond what
they had reached, by a level that their second run tells too. So what verl's default dispatch and what placement by
history would have taken is replayed on the decode curve, on the very lengths that came and by the predictions made
before they came: the prediction's own error is in it, and paired steps share their noise. What the cutoff took is
measured in the same steps, the step's slowness taken out. While history is in charge that measurement ages, and the
controller's prediction, corrected by what it missed, takes its place. Every `control_every` steps one step runs under
verl's default dispatch: if placed steps take longer than their replay and control steps do not, the difference counts
against history.

Invariants: a plan by history leaves q groups over, none by default; switching needs no accounting of its own, because
it is a change of q like any other; the same observations give the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.controller import Controller
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history_placement import Layout, dealt, dealt_seconds, lay_out, lay_out_deferred, verl_default
from tailsieve_verl.core.length_forecast import Forecast, LengthForecast
from tailsieve_verl.core.outer import best_split
from tailsieve_verl.core.plan import Decision, GroupRecord, Route, StepObservation, StepPlan
from tailsieve_verl.core.policy import make_plan
from tailsieve_verl.core.steering import Pins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Share of a step's prompts that must have a history for it to be placed by it.
LEAST_KNOWN = 0.5
#: Steps that a judgement rests on, and the fewest.
JUDGED, LEAST_JUDGED = 24, 3
#: Steps between two changes of who plans, unless the present one is `CLEARLY` (log) slower: each change costs a step.
HOLD, CLEARLY = 8, 0.05
#: Steps after which a measurement of the cutoff counts half, the corrected prediction the other half.
HALF_LIFE = 20.0
#: Log gain that a split predicted to be better than the controller's present one does not have: the best of many
#: predictions is too good, and the controller takes its time to get there.
UNSURE = 0.03
#: Standard deviation of a step's gain (log) as long as few steps tell, and for how many of them it counts.
PRIOR_SPREAD, PRIOR_STEPS = 0.05, 2
#: Gain (log) that the cutoff must promise over history for `auto` to go back to it.
LEAVE_GAIN = 0.01
#: Least predicted gain over verl's default dispatch for which requests are placed in blocks: they are fitted to the
#: scenarios that predict it, and so a little too good.
LEAST_GAIN = 0.02
#: Gain for which a placed step's tail pool takes another replica or gives one up.
LEAST_MOVE = 0.01
#: Log gain of the cutoff that is not seen, per share of the groups that it cuts: what they would have taken is imputed,
#: and was found up to 3 % too low where a tenth to a sixth of them were cut.
CENSORED = 0.15
#: Draws of the lengths that were cut, and their seed.
DRAWS, SEED = 8, 20_261_130


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


@dataclass(frozen=True)
class Arrangement:
    """How a step's launches run.

    Attributes:
        plan: the step's plan with the placed groups in its counts.
        placed: which of the launches are placed, by position.
        replicas: of each response, [G, n].
    """

    plan: StepPlan
    placed: tuple[int, ...]
    replicas: Ints


class _Judged(NamedTuple):
    """A step in logs of its time over what verl's default dispatch would have taken.

    ``cutoff`` is NaN unless the cutoff ran it in its steady state.
    """

    step: int
    history: float
    cutoff: float


class _Facts(NamedTuple):
    """A step to be replayed: lists by group and response; measured times in logs, NaN if not measured."""

    step: int
    keys: list[str]
    tokens: list[list[int]]
    complete: list[list[bool]]
    where: list[list[int]]
    by_history: float
    by_cutoff: float


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
        self._judged: list[_Judged] = []
        self._cutoff: list[float] = []  # log gains of the cutoff when it last ran
        self._missed: list[float] = []  # and by how much they were more than predicted
        self._cutoff_step = 0
        self._placed: list[float] = []  # log of measured over replayed time, placed and control steps
        self._control: list[float] = []
        self._since_control = 0
        self._held_until = 0
        self._pinned = False
        self._m = 1  # tail replicas of a step with a deferral
        self._reason = "start"
        self._layout: tuple[int, Layout] | None = None
        self._pending: _Facts | None = None

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
            layout = self._best_of(scenarios, forecast.work, curve)
        else:
            groups = tuple(np.array([route == name for route in routes]) for name in ("tail", "residual"))
            if len(keys) - int(groups[0].sum() + groups[1].sum()) <= counts.left_over:
                return None
            work = forecast.work
            layout = lay_out_deferred(scenarios, work, plan.replicas, curve, counts.left_over, plan.m, *groups)
            if plan.m:
                self._look_around(scenarios, work, plan, curve, groups, layout.mean_s)
        placed = tuple(
            i for i, route in enumerate(routes) if route == "fresh" and layout.tail is not None and layout.tail[i]
        )
        self._layout = (plan.step, layout)
        fewer = len(placed)
        counts = replace(counts, fresh=counts.fresh - fewer, fresh_needed=counts.fresh_needed - fewer, placed=fewer)
        return Arrangement(replace(plan, counts=counts), placed, layout.replicas)

    def _best_of(self, scenarios: Floats, work: Floats, curve: DecodeCurve) -> Layout:
        """Blocks by predicted length, or verl's default dispatch where they are not predicted to gain over it."""
        blocks = lay_out(scenarios, work, self.context.replicas, curve)
        default = dealt(scenarios, self.context.replicas, curve)
        return blocks if blocks.mean_s < (1.0 - LEAST_GAIN) * default.mean_s else default

    def _look_around(
        self,
        scenarios: Floats,
        work: Floats,
        plan: StepPlan,
        curve: DecodeCurve,
        groups: tuple[Any, ...],
        present_s: float,
    ) -> None:
        """Take one replica more or fewer for the next step's tail pool if that is predicted to gain."""
        m = plan.m + (1 if plan.step % 2 else -1)
        if 1 <= m < plan.replicas:
            other = lay_out_deferred(scenarios, work, plan.replicas, curve, plan.counts.left_over, m, *groups)
            if other.mean_s < (1.0 - LEAST_MOVE) * present_s:
                self._m = m

    def observe(self, observation: StepObservation) -> Decision:
        """Take in a step and choose who plans the next one."""
        plan, evidence = observation.plan, self.controller.evidence
        ours = self._is_ours(plan)
        facts, known = self._facts(observation, evidence.curve)
        if ours:
            evidence.take_in(_as_fresh(observation))
            decision = Decision(plan.step, 0, 0, settled=True, switched=False, reason="")
        else:
            decision = self.controller.observe(observation)
        self.forecast.observe(plan.step, observation.groups)
        self._known = known
        judged = self._judge_what_ended(facts, observation, evidence.curve)
        if judged is not None:
            self._judged = [*self._judged, judged][-JUDGED:]
            if not math.isnan(judged.cutoff):
                self._cutoff = [*self._cutoff, judged.cutoff][-JUDGED:]
                self._missed = [*self._missed, judged.cutoff - self._cutoff_prediction(plan.step)][-JUDGED:]
                self._cutoff_step = plan.step
        if ours:
            self._note_check(observation, evidence.curve)
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
        if len(self._judged) < LEAST_JUDGED:
            return False, f"cutoff: history has been replayed on {len(self._judged)} steps only"
        check, words = self._check()
        gain = [j.history + check for j in self._judged]
        pairs = [(g, j.cutoff) for g, j in zip(gain, self._judged, strict=True) if not math.isnan(j.cutoff)]
        if not self.by_history and len(pairs) >= LEAST_JUDGED:
            cutoff, how = float(np.mean([c for _, c in pairs])), "measured"
            over, error = _mean([h - c for h, c in pairs])
        else:
            cutoff, how = self._cutoff_prediction(step), "predicted"
            if len(self._cutoff) >= LEAST_JUDGED:  # what was measured before ages, what the prediction misses less so
                fresh = 0.5 ** ((step - self._cutoff_step) / HALF_LIFE)
                cutoff += float(np.mean(self._missed))
                cutoff, how = cutoff + fresh * (float(np.mean(self._cutoff)) - cutoff), "measured and predicted"
            over, error = _mean([h - cutoff for h in gain])
        if self.by_history:
            placed = over < LEAVE_GAIN or (step < self._held_until and over < CLEARLY)
        else:
            placed = over + error < 0.0 and step >= self._held_until
        said = f"{_share(float(np.mean(gain)))} by history, {_share(cutoff)} by the cutoff ({how})"
        return placed, f"{'history' if placed else 'cutoff'}: {said}, +- {error:.1%}{words}"

    def _check(self) -> tuple[float, str]:
        """What placed steps take beyond their replay that control steps do not (log), if that is significant."""
        if len(self._control) < 2 or len(self._placed) < 2:
            return 0.0, ""
        over = float(np.mean(self._placed) - np.mean(self._control))
        error = math.sqrt(sum(float(np.var(x, ddof=1)) / len(x) for x in (self._placed, self._control)))
        if over <= 2.0 * error:
            return 0.0, ""
        return over, f", placed steps measured {over:.1%} slower than replayed"

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

    def _facts(self, observation: StepObservation, curve: DecodeCurve | None) -> tuple[_Facts | None, float]:
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
        return _Facts(
            step=plan.step,
            keys=keys,
            tokens=[list(g.tokens) for g in groups],
            complete=[list(g.complete) for g in groups],
            where=layout.replicas.tolist(),
            by_history=measured if plan.by_history and carried else math.nan,
            by_cutoff=math.nan if self._is_ours(plan) else measured,
        ), share

    def _judge(self, facts: _Facts, observation: StepObservation, curve: DecodeCurve) -> _Judged:
        """Replay a step, cut responses completed by what their groups were in ``observation``, when they ran again."""
        tokens, complete = np.array(facts.tokens, dtype=np.float64), np.array(facts.complete, dtype=np.bool_)
        forecast, replicas = self.forecast.predict(facts.keys, observation.plan.step), self.context.replicas
        again = {
            g.key: g.tokens for g in observation.groups if g.route in ("tail", "residual") and g.status == "trained"
        }
        for i in np.flatnonzero(~complete.all(axis=1)).tolist():
            if (second := again.get(facts.keys[i])) is not None:
                forecast.known[i], forecast.error[i] = True, 0.0
                forecast.level[i] = np.log(np.maximum(second, 1)).mean()
        draws = 1 if complete.all() else DRAWS
        lengths = self.forecast.beyond(tokens, complete, forecast, draws, SEED + facts.step)
        default = verl_default(tokens.shape[0], tokens.shape[1], replicas)
        dealt_s, placed_s = (
            float(dealt_seconds(lengths, where, replicas, curve).mean()) for where in (default, np.array(facts.where))
        )
        reference = math.log(dealt_s)
        by_history = math.log(placed_s) if math.isnan(facts.by_history) else facts.by_history
        cut = 1.0 - float(complete.all(axis=1).mean())
        return _Judged(facts.step, by_history - reference, facts.by_cutoff - reference - CENSORED * cut)

    def _judge_what_ended(
        self, facts: _Facts | None, observation: StepObservation, curve: DecodeCurve | None
    ) -> _Judged | None:
        """Judge the step before, whose cut groups have run again by now, or this one if nothing was cut in it."""
        if curve is None:
            return None
        due, self._pending = self._pending, None
        if facts is not None and due is None and all(map(all, facts.complete)):
            return self._judge(facts, observation, curve)
        self._pending = facts
        return None if due is None else self._judge(due, observation, curve)

    def _laid_out(self, forecast: Forecast, n: int, step: int, curve: DecodeCurve) -> Layout:
        scenarios = self.forecast.scenarios(forecast, n, self.config.scenarios, SEED + step)
        return self._best_of(scenarios, forecast.work, curve)

    def _is_ours(self, plan: StepPlan) -> bool:
        """Whether a plan is one of :meth:`plan`'s own: placed, or a control step."""
        return plan.by_history or self.by_history

    def _note_check(self, observation: StepObservation, curve: DecodeCurve | None) -> None:
        control = not observation.plan.by_history
        self._since_control = 0 if control else self._since_control + 1
        if curve is None or observation.failed or not observation.generation_s > 0:
            return
        where = np.array([r for g in observation.groups for r in g.replicas], dtype=np.int64)
        tokens = np.array([t for g in observation.groups for t in g.tokens], dtype=np.float64)
        if (where < 0).any():
            return
        replayed = float(dealt_seconds(tokens[None, None], where[None], self.context.replicas, curve)[0])
        kept = self._control if control else self._placed
        kept.append(math.log(observation.generation_s / replayed))
        del kept[:-JUDGED]

    def _reported(
        self, decision: Decision, observation: StepObservation, judged: _Judged | None, before: bool, reason: str
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
            "judged": [[j.step, j.history, None if math.isnan(j.cutoff) else j.cutoff] for j in self._judged],
            "cutoff": [list(self._cutoff), list(self._missed), self._cutoff_step],
            "placed": list(self._placed),
            "control": list(self._control),
            "since_control": self._since_control,
            "held_until": self._held_until,
            "m": self._m,
            "pending": self._pending and [None if x != x else x for x in self._pending],
            "reason": self._reason,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore; the state of a controller alone, of a run that selected by the cutoff, restores just that."""
        if "controller" not in state:
            self.controller.load_state_dict(dict(state))
            return
        self.controller.load_state_dict(state["controller"])
        self.by_history, self._known = state["by_history"], state["known"]
        self._judged = [_Judged(s, h, math.nan if c is None else c) for s, h, c in state["judged"]]
        self._cutoff, self._missed, self._cutoff_step = state["cutoff"]
        self._placed, self._control = list(state["placed"]), list(state["control"])
        self._since_control, self._held_until = state["since_control"], state["held_until"]
        self._reason, self._m = state["reason"], state["m"]
        self._layout = None
        self._pending = state["pending"] and _Facts._make(math.nan if x is None else x for x in state["pending"])


def _as_fresh(observation: StepObservation) -> StepObservation:
    """With placed groups as what they are to the controller: part of the step's fresh pool."""
    if not observation.plan.counts.placed:
        return observation
    groups = (replace(g, route="fresh") if g.route == "placed" else g for g in observation.groups)
    return replace(observation, groups=tuple(groups))


def slowness(groups: Sequence[GroupRecord], curve: DecodeCurve) -> float:
    """Log of how much longer the replicas took than the curve says for the tokens that they gave; 0 if unknown."""
    rows = [
        (replica, tokens, ended)
        for g in groups
        for replica, tokens, ended in zip(g.replicas, g.tokens, g.finished_s, strict=True)
        if replica >= 0 and ended is not None and tokens > 0
    ]
    if not rows:
        return 0.0
    replica = np.array([row[0] for row in rows])
    tokens, ended = (np.array([row[k] for row in rows], dtype=np.float64) for k in (1, 2))
    total, weight = 0.0, 0.0
    for r in np.unique(replica).tolist():
        mine = replica == r
        replayed = float(dealt_seconds(tokens[mine][None, None], np.zeros((1, int(mine.sum())), int), 1, curve)[0])
        measured = float(ended[mine].max())
        if measured > 0:
            total += float(tokens[mine].sum()) * math.log(measured / replayed)
            weight += float(tokens[mine].sum())
    return total / weight if weight else 0.0


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; few values say little of their own spread, so a prior one counts with them."""
    x = np.asarray(values)
    weight = PRIOR_STEPS + x.size - 1
    variance = (PRIOR_STEPS * PRIOR_SPREAD**2 + float(((x - x.mean()) ** 2).sum())) / weight
    return float(x.mean()), math.sqrt(variance / x.size)


def _share(log_gain: float) -> str:
    """A log ratio of times as a gain."""
    return f"{1.0 - math.exp(log_gain):+.1%}"
