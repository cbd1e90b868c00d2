"""The answer in words: use TailSieve, try it, or leave it off, and why. Pure: numbers in, sentences out.

gain = now over TailSieve, simulated          held = the same, a second attempt as long as the first

gain < MIN_GAIN                    leave it off: no tail | no room | no split | generation is a small part
gain large, lengths shift          leave it off: the tail is chance, most of the gain is length bias
                                   try it, if most of the gain is held: the user is to accept the shift
gain large, a loss unlikely        use it
gain large, a loss not unlikely    try it: the dump is too small to be sure
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tailsieve_verl.advise.fit import Lengths
from tailsieve_verl.advise.match import TOLERANCE, Match
from tailsieve_verl.simulate.study import Interval

#: Below this a gain is not worth a changed run: a step's own scatter and the controller's thresholds are as large.
MIN_GAIN = 1.03
#: The same for the whole step, of which generation is a part.
MIN_STEP_GAIN = 1.01
#: Lengths trained on may differ by so much: mean and 99th percentile relative, truncated share as a difference. With
#: the lengths of the paper's Table A.3, N = 64, n = 8, R = 8, the shift of mean and p99 is -1 to -2 % and -4 % at its
#: prompt share of 0.65, -4 % and -17 % at 0.3, -9 % and -30 % at 0 (simulated).
MEAN_SHIFT, P99_SHIFT, TRUNCATED_SHIFT = 0.03, 0.12, 0.005
#: A chance of a loss that is worth taking: the controller ends a loss within a few steps.
RISK = 0.1
#: Prompt share of the longest tenth below which a tail is called chance without reserve.
PARTLY = 0.15
#: Share of a gain that must be left with second attempts as long as the first: below it, most of it is length bias.
HELD = 0.5
#: The longest response of a step less than this many times the median one: no tail.
FLAT = 1.5
#: A baseline this near to the lower bound leaves no placement anything to gain.
FULL = 1.05
#: With fewer recorded steps or groups the interval is said to be wide.
FEW_STEPS, FEW_GROUPS = 5, 200

Verdict = Literal["use", "try", "leave"]
Reason = Literal["pays", "unsure", "shift", "chance", "flat", "full", "split", "share"]


@dataclass(frozen=True)
class Findings:
    """What the dump and the simulations say.

    Attributes:
        lengths: the dump in numbers.
        icc, tail_icc: prompt share of the variance, and of being in the longest tenth; None where nothing varies.
        n_groups, replicas: N and R of the machine that was simulated.
        now: routing that TailSieve is compared with.
        q, m: best split found, to start with; None: every split lost.
        gain: step time now over TailSieve's; held: the same with second attempts as long as the first.
        risk: probability that the gain is below 1.
        bias_mean, bias_p99, bias_truncated: lengths trained on against the same prompts' first attempts.
        now_s, tailsieve_s: simulated generation seconds of a step.
        room: makespan now over what no placement can beat.
        idle: share of replica time idle now.
        uniform: share of TailSieve's steps that ran uniform.
        match: simulated against measured times, if a log was given.
        made_up: the decode curve is a shipped shape, not a measured one.
    """

    lengths: Lengths
    icc: Interval | None
    tail_icc: Interval | None
    n_groups: int
    replicas: int
    now: str
    q: int | None
    m: int | None
    gain: Interval
    held: Interval
    risk: float
    bias_mean: Interval
    bias_p99: Interval
    bias_truncated: Interval
    now_s: float
    tailsieve_s: float
    room: float
    idle: float
    uniform: float
    match: Match | None
    made_up: bool

    @property
    def step_gain(self) -> float | None:
        """Speed-up of the whole step, of which generation is the logged share."""
        share = None if self.match is None else self.match.generation_share
        return None if share is None else 1 / (1 - share + share / self.gain.mean)

    @property
    def routed(self) -> bool:
        """Whether the gain is worth having, and most of it is left, with second attempts as long as the first."""
        return self.held.mean >= MIN_GAIN and math.log(self.held.mean) >= HELD * math.log(self.gain.mean)

    @property
    def shifts(self) -> bool:
        """Whether the lengths trained on shift by more than is tolerable."""
        return (
            abs(self.bias_mean.mean) > MEAN_SHIFT
            or abs(self.bias_p99.mean) > P99_SHIFT
            or abs(self.bias_truncated.mean) > TRUNCATED_SHIFT
        )


@dataclass(frozen=True)
class Advice:
    """The answer.

    Attributes:
        verdict: use it, try it, or leave it off; reason: why, as a word.
        headline: the answer in a sentence.
        sentences: the grounds, most important first.
        override: to append to the run's command line; None where there is nothing to try.
    """

    verdict: Verdict
    reason: Reason
    headline: str
    sentences: tuple[str, ...]
    override: str | None


def decide(found: Findings) -> Advice:
    """The answer to a dump."""
    step_gain = found.step_gain
    if found.gain.mean < MIN_GAIN:
        verdict, reason = "leave", _why_no_gain(found)
    elif step_gain is not None and step_gain < MIN_STEP_GAIN:
        verdict, reason = "leave", "share"
    elif found.shifts:
        verdict, reason = ("try", "shift") if found.routed else ("leave", "chance")
    elif found.risk <= RISK:
        verdict, reason = "use", "pays"
    else:
        verdict, reason = "try", "unsure"
    override = None if verdict == "leave" else override_line(found.q, found.m)
    headline = _headline(found, reason, override)
    sentences = [_persistence(found), *_grounds(found, reason), *_certainty(found)]
    return Advice(verdict, reason, headline, tuple(s for s in sentences if s), override)  # type: ignore[arg-type]


def override_line(q: int | None, m: int | None) -> str:
    """What to append to the run's command line."""
    return "+tailsieve=default" + ("" if q is None else f" trainer.v1.tailsieve.q={q} trainer.v1.tailsieve.m={m}")


def times(gain: Interval) -> str:
    """A speed-up with its interval."""
    return f"{gain.mean:.2f}x" if math.isnan(gain.low) else f"{gain.mean:.2f}x ({gain.low:.2f} to {gain.high:.2f})"


def percent(value: Interval, digits: int = 1) -> str:
    """A signed share with its interval."""
    mean, low, high = (f"{100 * v:+.{digits}f}" for v in (value.mean, value.low, value.high))
    return f"{mean} %" if math.isnan(value.low) else f"{mean} % ({low} to {high})"


def _why_no_gain(found: Findings) -> Reason:
    if found.lengths.stretch < FLAT:
        return "flat"
    if found.room < FULL:
        return "full"
    return "split"


def _headline(found: Findings, reason: Reason, override: str | None) -> str:
    lengths, gain = found.lengths, found.gain
    if reason == "pays":
        return f"Use it: {override} makes generation {times(gain)} as fast as {found.now}."
    if reason == "unsure":
        return (
            f"Try it: {override} is expected to make generation {times(gain)} as fast as {found.now}, "
            "but the dump does not rule out a loss."
        )
    if reason == "shift":
        return (
            f"Try it, if you accept shorter answers: {override} is expected to make generation {times(gain)} as fast "
            f"as {found.now}, {found.held.mean:.2f}x of it by routing alone, but the tail is in part chance."
        )
    if reason == "chance":
        part = "" if found.tail_icc is None or found.tail_icc.mean < PARTLY else "in part "
        return (
            f"Leave it off, because the tail is {part}chance: long answers would be generated again and come out "
            f"shorter, and the simulated gain of {times(gain)} comes with that length bias."
        )
    if reason == "flat":
        return (
            "Leave it off, because there is no tail: the longest answer of a step is "
            f"{lengths.stretch:.1f} times the median one ({lengths.longest} tokens at most, P50 {lengths.p50:.0f})."
        )
    if reason == "full":
        return (
            f"Leave it off, because there is nothing left to gain: {found.now} takes {found.room:.2f} times what no "
            f"placement on {found.replicas} replicas can beat."
        )
    if reason == "share":
        assert found.match is not None
        assert found.match.generation_share is not None
        return (
            f"Leave it off, because generation is {found.match.generation_share:.0%} of a step: {times(gain)} there "
            f"makes the step {found.step_gain:.3f}x."
        )
    return (
        f"Leave it off, because no split of {found.replicas} replicas gains enough over {found.now}: "
        f"{times(gain)}, {MIN_GAIN:.2f}x is the least worth having."
    )


def _persistence(found: Findings) -> str:
    lengths = found.lengths
    if found.icc is None:
        return "All answers have the same length."
    text = f"The prompt tells {found.icc.mean:.0%} of how long an answer is ({_shares(found.icc)})"
    if found.tail_icc is not None:
        text += f" and {found.tail_icc.mean:.0%} of whether it is among the longest tenth ({_shares(found.tail_icc)})"
    text += "; 0 is chance."
    if lengths.epoch_auc is not None:
        text += (
            f" An epoch later the longest tenth of {lengths.repeated} prompts is found again with an AUC of "
            f"{lengths.epoch_auc:.2f} (0.5 is chance)."
        )
    return text


def _shares(share: Interval) -> str:
    return f"{share.low:.0%} to {share.high:.0%}"


def _grounds(found: Findings, reason: Reason) -> list[str]:
    bias = (
        f"Answers trained on would differ from first answers by {percent(found.bias_mean)} in the mean, "
        f"{percent(found.bias_p99)} in p99, and {percent(found.bias_truncated)} in the share truncated"
    )
    held = f"with second attempts as long as the first it is {times(found.held)}"
    if reason == "chance":
        return [
            f"{bias}: the policy would learn from shorter answers than it gives. Of {times(found.gain)}, {held}.",
            f"If you accept that: {override_line(found.q, found.m)}, and watch tailsieve/bias/mean.",
        ]
    if reason in ("pays", "unsure", "shift"):
        step = "" if found.step_gain is None else f" A whole step becomes {found.step_gain:.2f}x."
        return [
            f"A step's generation takes {found.now_s:.3g} s now and {found.tailsieve_s:.3g} s then, simulated; {held}."
            + step,
            f"{bias}" + (": tailsieve/bias/mean shows it." if reason == "shift" else "."),
            *(
                [
                    f"The chance of a loss is {found.risk:.0%}; the controller goes back to uniform routing when a "
                    "split is slower, so a loss lasts a few steps."
                ]
                if found.gain.low < 1
                else []
            ),
        ]
    grounds = [f"Simulated gain {times(found.gain)}; {held}."]
    if reason == "split":
        grounds.append(
            f"{found.now} takes {found.room:.2f} times the lower bound and leaves {found.idle:.0%} of the replicas' "
            "time idle, but taking replicas from the bulk costs as much as it saves; more replicas or larger batches "
            "can change that (--replicas, --groups)."
        )
    if found.shifts and reason != "flat":
        grounds.append(f"{bias}.")
    return grounds


def _certainty(found: Findings) -> list[str]:
    lengths = found.lengths
    words = []
    if lengths.steps < FEW_STEPS or lengths.groups < FEW_GROUPS:
        words.append(
            f"The dump has {_count(lengths.steps, 'step')} and {lengths.groups} prompt groups: with so few the "
            "intervals are wide, and rarer lengths than it holds cannot be foreseen."
        )
    if found.gain.mean < MIN_GAIN <= found.gain.high and lengths.stretch >= FLAT:
        words.append(f"The interval reaches {found.gain.high:.2f}x: ask again with more steps.")
    if found.match is not None:
        words.append(_matched(found.match))
    if found.made_up:
        words.append("The decode curve is made up: `tailsieve calibrate` measures yours, --curve reads it.")
    return words


def _matched(match: Match) -> str:
    if match.steps < 2:
        return f"One logged step sets the scale of the costs ({match.scale:.3g}); it cannot tell whether they fit."
    missed = f"the log's by {match.error:.0%} (worst {match.worst:.0%} of {match.steps} steps)"
    text = f"{missed}, costs scaled by {match.scale:.3g}"
    if not match.good:
        return (
            f"Simulated step times do NOT match: they miss {text}; the curve, --replicas or --now is not the run's, or "
            "much of the time is not decoding."
        )
    if match.telling:
        return f"Simulated step times match: they miss {text}."
    why = "steps so alike" if match.spread <= TOLERANCE else "a scale so far from 1"
    return f"Simulated step times miss {text}; {why} cannot tell whether the curve has the engine's shape."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
