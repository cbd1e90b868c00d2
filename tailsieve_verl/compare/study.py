"""The comparison of several runs, as plain rows: what each run did, and how each fares against its baselines.

Baselines: every run against the first one (or the one named); a run that drafts with tail routing also against the one
that drafts by the same method under uniform routing, if it is among them (paper D.1).
Windows: all steps that both have; steps 1 to 8 (D.1); the steps in which the run had a tail pool, if not all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsieve_verl.compare.bias import Bound, LengthShift, length_shift, lower_bound
from tailsieve_verl.compare.runlog import RunLog
from tailsieve_verl.compare.speedup import Speedup, paired_speedup, unpaired_speedup
from tailsieve_verl.compare.streams import difference
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.errors import UserError

#: Paper D.1 compares steps 1 to 8.
EARLY_STEPS = 8
#: A gain over what routing can give by more than the curve's own error: not routing's.
BEYOND = 1.02


@dataclass(frozen=True)
class Comparison:
    """A run against a baseline in a window of steps; ``beyond`` says that routing alone cannot explain it."""

    run: str
    baseline: str
    window: str
    generation: Speedup
    step: Speedup | None
    shift: LengthShift | None
    most: float | None
    beyond: bool


@dataclass(frozen=True)
class Study:
    """Everything that is printed, written and drawn; ``left_out``: a sentence for each run that cannot be compared."""

    runs: tuple[RunLog, ...]
    bounds: dict[str, Bound]
    comparisons: tuple[Comparison, ...]
    remarks: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def compare(
    runs: Sequence[RunLog],
    *,
    baseline: str | None = None,
    unpaired: bool = False,
    early: int = EARLY_STEPS,
    skip: int = 0,
    curve: DecodeCurve | None = None,
) -> Study:
    """Compare runs (module docstring); those that cannot be compared with the baseline are left out.

    Args:
        baseline: a label; the first run if ``None``.
        unpaired: also compare runs of different prompts, by their means alone.
        early: last step of D.1's window.
        skip: leave out so many steps at the start.
        curve: decode curve for the lower bounds; learned from each run's completions if ``None``.

    Raises:
        UserError: fewer than two runs that can be compared, two of one name, an unknown baseline.
    """
    labels = [run.label for run in runs]
    if len(runs) < 2:
        raise UserError("a comparison needs at least two runs.")
    if len(set(labels)) < len(labels):
        raise UserError(f"two runs are called {max(labels, key=labels.count)}; name them apart, as name=folder.")
    if baseline is not None and baseline not in labels:
        raise UserError(f"--baseline {baseline} is none of the runs: {', '.join(labels)}.")
    first = runs[labels.index(baseline)] if baseline else runs[0]
    left = {run.label: why for run in runs if run is not first and (why := _apart(run, first, unpaired, skip))}
    runs = [run for run in runs if run.label not in left]
    if len(runs) < 2:
        raise UserError(next(iter(left.values())))
    bounds = {run.label: bound for run in runs if (bound := lower_bound(run, curve)) is not None}
    found: list[Comparison] = []
    for run in runs:
        for against in _baselines(run, first, runs):
            found += _windows(run, against, bounds, unpaired, early, skip)
    return Study(tuple(runs), bounds, tuple(found), tuple(_remarks(runs, skip)), tuple(left.values()))


def _apart(run: RunLog, first: RunLog, unpaired: bool, skip: int) -> str | None:
    """Why a run cannot be compared with the baseline; ``None`` if it can."""
    why = None if unpaired else difference(run, first)
    if why:
        return (
            f"{run.label} and {first.label} did not train on the same prompts in the same order: {why}; compare "
            f"runs of one data file, seed and batch size, or add --unpaired for their means alone."
        )
    if any(step > skip and step in first.generation_s for step in run.steps):
        return None
    return f"{run.label} and {first.label} have no finished step in common{f' after step {skip}' if skip else ''}."


def summary(study: Study, skip: int = 0) -> list[dict[str, Any]]:
    """One row a run: means over its steps, spread of the generation time, its own bias figures, its bound."""
    rows = []
    for run in study.runs:
        steps = [step for step in run.steps if step > skip]
        times = np.array([run.generation_s[step] for step in steps])
        bound = study.bounds.get(run.label)
        known = [step for step in steps if bound and step in bound.by_step]
        rows.append(
            {
                "run": run.label,
                "steps": len(steps),
                "generation_s": float(times.mean()),
                "least_s": float(times.min()),
                "most_s": float(times.max()),
                "step_s": _mean(run.step_s, steps),
                "reward": _mean(run.reward, steps),
                "length": _mean(run.length, steps),
                "with_split": sum(step in run.split for step in steps) if run.observations else None,
                "bound_s": float(np.mean([bound.by_step[step] for step in known])) if bound and known else None,
                "over_bound": float(np.mean([run.generation_s[s] / bound.by_step[s] for s in known]))
                if bound and known
                else None,
                "bias_mean": run.bias.get("mean"),
                "bias_p99": run.bias.get("p99"),
                "bias_truncated": run.bias.get("truncated"),
                "bias_ks": run.bias.get("ks"),
            }
        )
    return rows


def by_step(study: Study) -> list[dict[str, Any]]:
    """Fig. 7 as rows: a run and a step each."""
    return [
        {
            "run": run.label,
            "step": step,
            "generation_s": run.generation_s[step],
            "step_s": run.step_s.get(step),
            "reward": run.reward.get(step),
            "length": run.length.get(step),
            "split": (step in run.split) if run.observations else None,
            "bound_s": study.bounds[run.label].by_step.get(step) if run.label in study.bounds else None,
        }
        for run in study.runs
        for step in run.steps
    ]


def _baselines(run: RunLog, first: RunLog, runs: Sequence[RunLog]) -> list[RunLog]:
    found = [] if run is first else [first]
    if run.speculation != "none" and not run.uniform:
        found += [
            other
            for other in runs
            if other is not run and other is not first and other.uniform and other.speculation == run.speculation
        ]
    return found


def _windows(
    run: RunLog, against: RunLog, bounds: dict[str, Bound], unpaired: bool, early: int, skip: int
) -> list[Comparison]:
    paired = difference(run, against) is None
    common = [step for step in run.steps if step > skip and step in against.generation_s]
    if not common:
        return []
    split = [step for step in common if step in run.split]
    windows = {"all": common}
    if max(common) > early:
        windows[f"1-{early}"] = [step for step in common if step <= early]
    if split and len(split) < len(common):
        windows["split"] = split
    return [_compared(run, against, name, steps, bounds, paired) for name, steps in windows.items() if steps]


def _compared(
    run: RunLog, against: RunLog, window: str, steps: Sequence[int], bounds: dict[str, Bound], paired: bool
) -> Comparison:
    speedup = paired_speedup if paired else unpaired_speedup
    generation = speedup(steps, [against.generation_s[s] for s in steps], [run.generation_s[s] for s in steps])
    whole = [s for s in steps if s in run.step_s and s in against.step_s]
    step = speedup(whole, [against.step_s[s] for s in whole], [run.step_s[s] for s in whole]) if whole else None
    bound = bounds.get(against.label)
    most = None
    if bound is not None and all(s in bound.by_step for s in steps):
        least = sum(bound.by_step[s] for s in steps)
        most = sum(against.generation_s[s] for s in steps) / least if least > 0 else None
    same_engine = run.speculation == against.speculation
    beyond = most is not None and same_engine and generation.of_means.value > BEYOND * most
    shift = length_shift(run, against, steps) if paired else None
    return Comparison(run.label, against.label, window, generation, step, shift, most if same_engine else None, beyond)


def _remarks(runs: Sequence[RunLog], skip: int) -> list[str]:
    remarks = []
    last = {run.label: run.steps[-1] for run in runs}
    if len(set(last.values())) > 1:
        each = ", ".join(f"{label} {step}" for label, step in last.items())
        remarks.append(f"the runs end at different steps ({each}): only common steps are compared.")
    plain = [run.label for run in runs if not run.observations]
    if plain:
        remarks.append(
            f"no TailSieve record for {', '.join(plain)}: no bound and no length figures; verl alone looks for "
            "finished steps every 2 s, which its generation time contains."
        )
    if skip:
        remarks.append("step 1 is left out." if skip == 1 else f"steps 1 to {skip} are left out.")
    return remarks


def _mean(values: Any, steps: Sequence[int]) -> float | None:
    found = [values[step] for step in steps if step in values]
    mean = float(np.mean(found)) if found else math.nan
    return None if math.isnan(mean) else mean
