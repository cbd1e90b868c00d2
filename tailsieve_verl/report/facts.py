"""From a run's view to the facts of its verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tailsieve_verl.callbacks.early_warning import EarlyWarning
from tailsieve_verl.compare.speedup import paired_speedup
from tailsieve_verl.core.lengths import DEFAULT_WINDOW
from tailsieve_verl.report.verdict import Facts
from tailsieve_verl.report.view import RunView, StepView

#: Uniform steps below which the prediction's own error is not judged.
FEW_UNIFORM = 3


def facts_of(view: RunView) -> Facts:
    """What :func:`~tailsieve_verl.report.verdict.judge` needs to know."""
    steps = view.steps
    split = [step for step in steps if step.split]
    judged = [step for step in split if step.decision.settled and _predicted(step)]
    bounded = [step for step in steps if step.lower_bound_s and step.seen.generation_s > 0]
    gain = None
    if judged:
        numbers = [step.step for step in judged]
        gain = paired_speedup(numbers, [_predicted(s) or 0.0 for s in judged], _times(judged)).of_means
    return Facts(
        steps=len(steps),
        split=len(split),
        judged=len(judged),
        moves=sum(step.moved for step in steps),
        failed=sum(step.seen.failed for step in steps),
        predicted=sum(_predicted(step) is not None for step in steps),
        steered=view.run.get("policy", "controller") == "controller"
        and ("policy" in view.run or any(step.decision.confidence is not None for step in steps)),
        last_reason=steps[-1].decision.reason,
        gain=gain,
        step_gain=_step_gain(judged),
        model_error=_model_error(steps),
        room=sum(_times(bounded)) / sum(s.lower_bound_s or 0.0 for s in bounded) if bounded else None,
        bias={
            name.removeprefix("bias/"): value
            for name, value in _last(steps, "bias/mean").items()
            if name.startswith("bias/")
        },
        bias_error=bias_error(steps),
        idle=mean_idle(split or steps),
        warnings=tuple(early_warnings(steps)),
    )


def bias_error(steps: Sequence[StepView]) -> float | None:
    """Standard error that chance gives the relative bias of the mean, of the last responses that are looked at.

    Lengths trained on and those of whole fresh pools are of the same groups but for the k that were generated again
    (routes tail and residual), G in all: their means differ by a sum of k differences of two group means, over G. Of a
    sampled step only the groups recorded count.
    """
    total, responses = [], 0
    again = []
    for step in reversed(steps):
        for group in step.seen.groups:
            if group.status != "trained" or not group.tokens:
                continue
            mean = sum(group.tokens) / len(group.tokens)
            total.append(mean)
            responses += len(group.tokens)
            if group.route in ("tail", "residual"):
                again.append(mean)
        if responses >= DEFAULT_WINDOW:
            break
    if len(again) < 2 or not sum(total):
        return None
    return float(np.std(again, ddof=1)) * math.sqrt(2 * len(again)) / sum(total)


def mean_idle(steps: Sequence[StepView]) -> dict[str, float]:
    """Mean idle share by pool, of the steps that have the pool."""
    found = {}
    for pool in ("tail", "bulk"):
        shares = [s.metrics[f"idle_fraction/{pool}"] for s in steps if f"idle_fraction/{pool}" in s.metrics]
        if shares:
            found[pool] = float(np.mean(shares))
    return found


def early_warnings(steps: Iterable[StepView]) -> list[tuple[tuple[int, ...], str]]:
    """What the early-warning callback says by its defaults: of each figure, at which steps, and its last words."""
    watch = EarlyWarning()
    at: dict[str, list[int]] = {}
    words: dict[str, str] = {}
    for step in steps:
        for name, says in watch.warnings(step.metrics).items():
            at.setdefault(name, []).append(step.step)
            words[name] = says
    return [(tuple(numbers), words[name]) for name, numbers in at.items()]


def _step_gain(judged: Sequence[StepView]) -> float | None:
    """Whole steps with the predicted uniform time in place of the measured one, over whole steps."""
    known = [step for step in judged if step.step_s]
    if not known:
        return None
    took = sum(step.step_s or 0.0 for step in known)
    return (took + sum((_predicted(s) or 0.0) - s.seen.generation_s for s in known)) / took


def _model_error(steps: Sequence[StepView]) -> float | None:
    errors = [
        math.log(step.seen.generation_s / predicted)
        for step in steps
        if not step.split and (predicted := _predicted(step)) and step.seen.generation_s > 0
    ]
    return float(np.mean(errors)) if len(errors) >= FEW_UNIFORM else None


def _predicted(step: StepView) -> float | None:
    value = step.decision.predicted_uniform_s
    return value if value and step.seen.generation_s > 0 else None


def _times(steps: Sequence[StepView]) -> list[float]:
    return [step.seen.generation_s for step in steps]


def _last(steps: Sequence[StepView], name: str) -> dict[str, float]:
    return next((dict(step.metrics) for step in reversed(steps) if name in step.metrics), {})
