"""The verdict on a run in words: was it worth it, is the bias of its lengths tolerable, what to change. Pure.

worth it    predicted uniform / measured makespan over settled steps with a tail pool, a 95 % interval over steps
            not known | no (below MIN_GAIN) | yes
            unsure: the interval reaches 1, or uniform steps were faster than predicted, too, and little is left
bias        the run's own figures against its fresh pools, by the limits of ``tailsieve advise``
            not known | tolerable | unsure (within the scatter of so few groups) | not tolerable
change      what follows from both; beside it what the early-warning callback says at the recorded steps
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tailsieve_verl.advise.advice import FULL, MEAN_SHIFT, MIN_GAIN, MIN_STEP_GAIN, P99_SHIFT, TRUNCATED_SHIFT
from tailsieve_verl.compare.speedup import Interval

#: Settled steps with a tail pool below which a gain is not judged: an interval over fewer is as wide as the gain.
FEW_STEPS = 4
#: A tail pool idle for longer than this has replicas that the bulk pool lacks (docs/when-it-helps.md).
IDLE_TAIL = 0.5
#: Moves of the split in more than this share of the steps: the loads, or the clock, are too noisy to follow.
RESTLESS = 0.25
#: A shift within so many standard errors is what chance gives.
ERRORS = 2.0

Worth = Literal["yes", "unsure", "no", "unknown"]
Tolerable = Literal["yes", "unsure", "no", "unknown"]


@dataclass(frozen=True)
class Facts:
    """What the verdict rests on.

    Attributes:
        steps: recorded; split: of them with a tail pool; judged: of those settled, with a prediction.
        moves: changes of the split; failed: prompt groups that were lost.
        predicted: steps with a prediction of uniform routing; steered: whether the policy is one that makes them.
        last_reason: what the policy said last.
        gain: predicted uniform time over measured time of the judged steps; ``None`` without any.
        step_gain: the same for the whole step; ``None`` where the update's time is not known.
        model_error: mean of log(measured / predicted) over the uniform steps; ``None`` with fewer than three.
        room: makespan over what no placement could beat, ratio of means; ``None`` without a bound.
        bias: ``mean``, ``p99``, ``truncated``, ``ks`` at the last step; empty where it is not known.
        bias_error: standard error that chance gives ``bias["mean"]``; ``None`` where it is not known.
        idle: mean idle share by pool, of steps with a tail pool if there are any.
        warnings: of each figure that the early-warning callback named, at which steps, and its last words.
    """

    steps: int
    split: int
    judged: int
    predicted: int = 0
    steered: bool = True
    last_reason: str = ""
    moves: int = 0
    failed: int = 0
    gain: Interval | None = None
    step_gain: float | None = None
    model_error: float | None = None
    room: float | None = None
    bias: Mapping[str, float] = field(default_factory=dict)
    bias_error: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[tuple[tuple[int, ...], str], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The answer: two words for the eye, a sentence for each, the grounds, and what to change, and early warnings."""

    worth: Worth
    tolerable: Tolerable
    headline: str
    bias: str
    grounds: tuple[str, ...]
    change: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(facts: Facts) -> Verdict:
    """The verdict (module docstring)."""
    worth, headline = _worth(facts)
    tolerable, bias = _bias(facts)
    if worth == "yes" and tolerable == "no" and _shorter(facts):
        headline += " But part of that comes from shorter answers, not from routing: see the bias."
    change = tuple(_change(facts, worth, tolerable))
    warnings = tuple(f"{_steps(steps)}: {says}." for steps, says in facts.warnings)
    return Verdict(worth, tolerable, headline, bias, tuple(_grounds(facts)), change, warnings)


def _worth(facts: Facts) -> tuple[Worth, str]:
    if facts.split == 0:
        return _uniform(facts)
    gain = facts.gain
    if gain is None:
        why = (
            f" ({facts.last_reason})." if facts.steered else ", which only the controller makes; see tailsieve compare."
        )
        return "unknown", (
            f"Not known whether it is worth it: {_count(facts.split, 'step')} ran with a tail pool, but no settled one "
            f"has a prediction of uniform routing{why}"
        )
    said = f"{gain.value:.2f}x" if math.isnan(gain.low) else f"{gain.value:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
    against = f"predicted uniform routing over {_count(facts.judged, 'settled step')}"
    if facts.judged < FEW_STEPS:
        return "unsure", f"Too early to say: {said} against {against}; ask again after some more steps."
    if gain.value < MIN_GAIN:
        verb = "slower than" if gain.value < 1 else "hardly faster than"
        return "no", f"Not worth it: generation is {verb} it would be without, {said} against {against}."
    if facts.step_gain is not None and facts.step_gain < MIN_STEP_GAIN:
        return "no", (
            f"Hardly worth it: generation is {said} faster against {against}, but it is so small a part of a step that "
            f"the step gains {facts.step_gain:.3f}x."
        )
    left = gain.value * math.exp(min(facts.model_error or 0.0, 0.0))
    if gain.low < 1 or left < MIN_GAIN:
        why = "the interval reaches 1"
        if gain.low >= 1:
            why = f"uniform steps, too, were faster than predicted, which leaves {left:.2f}x"
        return "unsure", f"Perhaps worth it: {said} against {against}, but {why}."
    whole = "" if facts.step_gain is None else f" A whole step is {facts.step_gain:.2f}x faster."
    return "yes", f"Worth it: generation is {said} faster than {against}.{whole}"


def _uniform(facts: Facts) -> tuple[Worth, str]:
    said = "No tail pool ran" if facts.steered else "This run was uniform"
    if facts.room is not None and facts.room <= FULL:
        return "no", f"{said}, and there is nothing to gain: a step takes {facts.room:.2f} times what none could beat."
    if not facts.steered:
        return (
            "unknown",
            f"{said} by its configuration, so there is no gain to judge; tailsieve advise says what a split may give.",
        )
    if not facts.predicted:
        return "unknown", f"Too early to say: {said.lower()} in {_count(facts.steps, 'step')} ({facts.last_reason})."
    return "no", f"{said}: no split was predicted to be enough faster. It cost nothing, and gained nothing."


def _bias(facts: Facts) -> tuple[Tolerable, str]:
    if facts.split == 0:
        return "yes", "Nothing was cut, so the lengths trained on are those of uniform routing."
    if "mean" not in facts.bias:
        return "unknown", "The record has no bias figures."
    beyond = _beyond(facts)
    error = facts.bias_error
    figures = (
        f"mean {_percent(facts.bias['mean'])}, 99th percentile {_percent(facts.bias.get('p99', 0.0))}, truncated "
        f"{100 * facts.bias.get('truncated', 0.0):+.2f} points"
    )
    limits = f"limits {MEAN_SHIFT:.0%}, {P99_SHIFT:.0%} and {100 * TRUNCATED_SHIFT:.1f} points"
    if not beyond:
        return "yes", f"The bias of lengths is tolerable: {figures} against whole fresh pools ({limits})."
    if beyond == ["mean"] and error is not None and abs(facts.bias["mean"]) <= ERRORS * error:
        return "unsure", (
            f"Too few groups to judge the bias of lengths: {figures} ({limits}), and chance alone scatters the mean by "
            f"{error:.1%}."
        )
    return "no", (
        f"The bias of lengths is not tolerable ({', '.join(beyond)}): {figures} against whole fresh pools ({limits})."
    )


def _beyond(facts: Facts) -> list[str]:
    limits = {"mean": MEAN_SHIFT, "p99": P99_SHIFT, "truncated": TRUNCATED_SHIFT}
    return [name for name, limit in limits.items() if abs(facts.bias.get(name, 0.0)) > limit]


def _shorter(facts: Facts) -> bool:
    """Whether what is beyond its limit is so because answers are shorter."""
    return any(facts.bias[name] < 0 for name in _beyond(facts))


def _grounds(facts: Facts) -> list[str]:
    moved = _count(facts.moves, "time")
    found = [f"{facts.split} of {_count(facts.steps, 'step')} ran with a tail pool; the split moved {moved}."]
    if facts.room is not None:
        found.append(f"Generation takes {facts.room:.2f} times what no placement of the same responses could beat.")
    if facts.model_error is not None:
        found.append(
            f"Where the run was uniform, it took {abs(math.expm1(facts.model_error)):.1%} "
            f"{'more' if facts.model_error > 0 else 'less'} time than predicted."
        )
    if facts.idle:
        shares = " and ".join(f"{share:.0%} of the {pool} pool's" for pool, share in facts.idle.items())
        found.append(f"Idle: {shares} replica time.")
    return found


def _change(facts: Facts, worth: Worth, tolerable: Tolerable) -> list[str]:
    found = []
    if tolerable == "no" and not _shorter(facts):
        found.append(
            "Longer answers are trained on than fresh pools have, which running stragglers again does not explain: "
            "look at the lengths, and whether they change from step to step."
        )
    elif tolerable == "no":
        found.append(
            "Raise q, or run uniform for a while (trainer.v1.tailsieve.policy=uniform_group) and compare the rewards."
        )
    if worth == "no" and facts.split:
        found.append(
            "Leave +tailsieve out, or ask tailsieve advise what other numbers of replicas and groups would give."
        )
    if facts.idle.get("tail", 0.0) > IDLE_TAIL and facts.split:
        found.append(
            f"The tail pool idles for {facts.idle['tail']:.0%} of a step: fewer tail replicas, or more groups to them."
        )
    if facts.steps >= 10 and facts.moves > RESTLESS * facts.steps:
        found.append(
            f"The split moved in {facts.moves} of {facts.steps} steps: times are noisy, or lengths drift; a fixed "
            "split (policy=fixed with q and m) may do better."
        )
    if facts.failed:
        found.append(f"{_count(facts.failed, 'prompt group')} failed: look for the errors in the run's log.")
    return found


def _steps(steps: Sequence[int]) -> str:
    """``Step 3``, or ``Steps 3, 9 and 4 more, at the last``."""
    if len(steps) == 1:
        return f"Step {steps[0]}"
    named = ", ".join(str(step) for step in steps[:FEW_STEPS])
    more = f" and {len(steps) - FEW_STEPS} more" if len(steps) > FEW_STEPS else ""
    return f"Steps {named}{more}; the last time"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
