"""How placement by history and the cutoff have done lately, both against verl's default dispatch of the same lengths.

After a step all its lengths are known; those that were cut one step later, as draws beyond what they had reached, by a
level that their second run tells too. So what verl's default dispatch and what placement by history would have taken
is replayed on the decode curve, on the very lengths that came and by the predictions made before they came: the
prediction's own error is in it, and paired steps share their noise. What the cutoff took is measured in the same
steps, the step's slowness taken out. While history is in charge that measurement ages, and the controller's
prediction, corrected by what it missed, takes its place. Control steps under verl's default dispatch check the replay:
if placed steps take longer than theirs and control steps do not, the difference counts against history.

Invariants: gains are logs of a time over verl's default, so below 0 is faster; the same observations give the same
judgement; bounded memory; plain JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history_placement import dealt_seconds, verl_default
from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.core.plan import GroupRecord, StepObservation

#: Steps that a judgement rests on, and the fewest.
JUDGED, LEAST_JUDGED = 24, 3
#: Steps after which a measurement of the cutoff counts half, the corrected prediction the other half.
HALF_LIFE = 20.0
#: Standard deviation of a step's gain (log) as long as few steps tell, and for how many of them it counts.
PRIOR_SPREAD, PRIOR_STEPS = 0.05, 2
#: Log gain of the cutoff that is not seen, per share of the groups that it cuts: what they would have taken is imputed,
#: and was found up to 3 % too low where a tenth to a sixth of them were cut.
CENSORED = 0.15
#: Draws of the lengths that were cut, and their seed.
DRAWS, SEED = 8, 20_261_130


class Judged(NamedTuple):
    """A step in logs of its time over what verl's default dispatch would have taken.

    ``cutoff`` is NaN unless the cutoff ran it in its steady state.
    """

    step: int
    history: float
    cutoff: float


class Facts(NamedTuple):
    """A step to be replayed: lists by group and response; measured times in logs, NaN if not measured."""

    step: int
    keys: list[str]
    tokens: list[list[int]]
    complete: list[list[bool]]
    where: list[list[int]]
    by_history: float
    by_cutoff: float


class Comparison(NamedTuple):
    """History against the cutoff: log of their times' ratio, its standard error, and both gains in words."""

    over: float
    error: float
    words: str


class Judge:
    """Judges steps that have ended (module docstring).

    Args:
        replicas: R.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self.judged: list[Judged] = []
        self.placed: list[float] = []  # log of measured over replayed time, placed and control steps
        self.control: list[float] = []
        self._cutoff: list[float] = []  # log gains of the cutoff when it last ran
        self._missed: list[float] = []  # and by how much they were more than predicted
        self._cutoff_step = 0
        self._pending: Facts | None = None

    def take_in(
        self,
        facts: Facts | None,
        observation: StepObservation,
        forecast: LengthForecast,
        curve: DecodeCurve | None,
        predicted: float,
    ) -> Judged | None:
        """Judge the step before, whose cut groups have run again by now, or this one if nothing was cut in it.

        Args:
            facts: of the step of ``observation``; ``None`` if it cannot be replayed.
            forecast: after it has taken in ``observation``.
            predicted: log gain that the controller predicts for the cutoff.
        """
        if curve is None:
            return None
        due, self._pending = self._pending, None
        if facts is not None and due is None and all(map(all, facts.complete)):
            due = facts
        else:
            self._pending = facts
        if due is None:
            return None
        found = self._judge(due, observation, forecast, curve)
        self.judged = [*self.judged, found][-JUDGED:]
        if not math.isnan(found.cutoff):
            self._cutoff = [*self._cutoff, found.cutoff][-JUDGED:]
            self._missed = [*self._missed, found.cutoff - predicted][-JUDGED:]
            self._cutoff_step = observation.plan.step
        return found

    def note_check(self, observation: StepObservation, curve: DecodeCurve | None, *, control: bool) -> None:
        """Compare a step that nothing cut with its own replay."""
        if curve is None or observation.failed or not observation.generation_s > 0:
            return
        where = np.array([r for g in observation.groups for r in g.replicas], dtype=np.int64)
        tokens = np.array([t for g in observation.groups for t in g.tokens], dtype=np.float64)
        if (where < 0).any():
            return
        replayed = float(dealt_seconds(tokens[None, None], where[None], self._replicas, curve)[0])
        kept = self.control if control else self.placed
        kept.append(math.log(observation.generation_s / replayed))
        del kept[:-JUDGED]

    def compare(self, step: int, predicted: float, *, by_history: bool) -> Comparison | None:
        """History against the cutoff for the step after ``step``; ``None`` before enough has been judged.

        Args:
            predicted: as for :meth:`take_in`.
            by_history: whether history is in charge.
        """
        if len(self.judged) < LEAST_JUDGED:
            return None
        check, words = self._check()
        gain = [j.history + check for j in self.judged]
        pairs = [(g, j.cutoff) for g, j in zip(gain, self.judged, strict=True) if not math.isnan(j.cutoff)]
        if not by_history and len(pairs) >= LEAST_JUDGED:
            cutoff, how = float(np.mean([c for _, c in pairs])), "measured"
            over, error = _mean([h - c for h, c in pairs])
        else:
            cutoff, how = predicted, "predicted"
            if len(self._cutoff) >= LEAST_JUDGED:
                fresh = 0.5 ** ((step - self._cutoff_step) / HALF_LIFE)
                cutoff += float(np.mean(self._missed))
                cutoff, how = cutoff + fresh * (float(np.mean(self._cutoff)) - cutoff), "measured and predicted"
            over, error = _mean([h - cutoff for h in gain])
        said = f"{_share(float(np.mean(gain)))} by history, {_share(cutoff)} by the cutoff ({how})"
        return Comparison(over, error, f"{said}, +- {error:.1%}{words}")

    def _check(self) -> tuple[float, str]:
        """What placed steps take beyond their replay that control steps do not (log), if that is significant."""
        if len(self.control) < 2 or len(self.placed) < 2:
            return 0.0, ""
        over = float(np.mean(self.placed) - np.mean(self.control))
        error = math.sqrt(sum(float(np.var(x, ddof=1)) / len(x) for x in (self.placed, self.control)))
        if over <= 2.0 * error:
            return 0.0, ""
        return over, f", placed steps measured {over:.1%} slower than replayed"

    def _judge(self, facts: Facts, observation: StepObservation, history: LengthForecast, curve: DecodeCurve) -> Judged:
        """Replay a step, cut responses completed by what their groups were in ``observation``, when they ran again."""
        tokens, complete = np.array(facts.tokens, dtype=np.float64), np.array(facts.complete, dtype=np.bool_)
        forecast, replicas = history.predict(facts.keys, observation.plan.step), self._replicas
        again = {
            g.key: g.tokens for g in observation.groups if g.route in ("tail", "residual") and g.status == "trained"
        }
        for i in np.flatnonzero(~complete.all(axis=1)).tolist():
            if (second := again.get(facts.keys[i])) is not None:
                forecast.known[i], forecast.error[i] = True, 0.0
                forecast.level[i] = np.log(np.maximum(second, 1)).mean()
        draws = 1 if complete.all() else DRAWS
        lengths = history.beyond(tokens, complete, forecast, draws, SEED + facts.step)
        default = verl_default(tokens.shape[0], tokens.shape[1], replicas)
        dealt_s, placed_s = (
            float(dealt_seconds(lengths, where, replicas, curve).mean()) for where in (default, np.array(facts.where))
        )
        reference = math.log(dealt_s)
        by_history = math.log(placed_s) if math.isnan(facts.by_history) else facts.by_history
        cut = 1.0 - float(complete.all(axis=1).mean())
        return Judged(facts.step, by_history - reference, facts.by_cutoff - reference - CENSORED * cut)

    def state_dict(self) -> dict[str, Any]:
        return {
            "judged": [[_or_none(x) for x in j] for j in self.judged],
            "cutoff": [list(self._cutoff), list(self._missed), self._cutoff_step],
            "checks": [list(self.placed), list(self.control)],
            "pending": self._pending and [_or_none(x) for x in self._pending],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.judged = [Judged._make(_or_nan(x) for x in j) for j in state["judged"]]
        self._cutoff, self._missed, self._cutoff_step = state["cutoff"]
        self.placed, self.control = state["checks"]
        pending = state["pending"]
        self._pending = None if pending is None else Facts._make(_or_nan(x) for x in pending)


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


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value
