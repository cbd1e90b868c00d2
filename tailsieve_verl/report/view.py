"""A recorded run as the report sees it: series over steps, from the record alone.

Invariants
    * Steps are in order, each once; a step whose update is not over has everything but ``step_s``.
    * Generation time is the makespan of the rollout, which is what the predictions speak of.
    * The bound is the one that the policy recorded; where none did, that of the lengths trained on at the decode speed
      that the run's completions show (:mod:`tailsieve_verl.compare.bias`), for a selection of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.compare.bias import lower_bound
from tailsieve_verl.compare.runlog import RunLog
from tailsieve_verl.core.lengths import DEFAULT_WINDOW, LengthMonitor
from tailsieve_verl.core.metrics import idle_fractions
from tailsieve_verl.core.plan import Decision, StepObservation
from tailsieve_verl.errors import UserError
from tailsieve_verl.records.read import RecordedRun, decision_of, observation_of, read_run

Floats = NDArray[np.float64]

#: Steps whose bound is computed where the record has none; each takes some 25 ms.
BOUND_STEPS = 40
#: Last steps that the decode curve of such a bound is learned from.
CURVE_STEPS = 100


@dataclass(frozen=True)
class StepView:
    """A step: what ran, what was decided after it, and the figures of both.

    Attributes:
        seen: plan, times and groups; of a sampled step only the groups recorded.
        decision: on the next step.
        metrics: by name without ``tailsieve/``; with those of the update once it is over.
        lower_bound_s: seconds, see the module docstring; ``None`` where it is not known.
        totals: what all groups of a sampled step did; ``None`` where all groups are recorded.
        before: split (q, m) in force before the decision: the last one decided on, which a step in transition does not
            run yet.
    """

    seen: StepObservation
    decision: Decision
    metrics: Mapping[str, float]
    lower_bound_s: float | None
    totals: Mapping[str, Any] | None
    before: tuple[int, int]

    @property
    def step(self) -> int:
        return self.seen.plan.step

    @property
    def split(self) -> bool:
        """Whether a tail pool ran."""
        return self.seen.plan.m > 0

    @property
    def moved(self) -> bool:
        """Whether another split was decided on."""
        return (self.decision.q, self.decision.m) != self.before

    @property
    def step_s(self) -> float | None:
        return self.metrics.get("step_s")


@dataclass(frozen=True)
class RunView:
    """A run, finished or going on.

    Attributes:
        label: its name; path: of the record.
        run: what the record's last start says: n_groups, replicas, n, policy, speculation where they are known.
        steps: at least one.
        skipped: lines that could not be read; resumes: how often the run was resumed.
        trained_on: lengths of the last responses trained on, [C] tokens.
        fresh: lengths of the responses of whole fresh pools and their weights, [K, 2]; cut ones are completed
            (:mod:`tailsieve_verl.core.lengths`).
    """

    label: str
    path: Path
    run: Mapping[str, Any]
    steps: tuple[StepView, ...]
    skipped: int
    resumes: int
    trained_on: Floats
    fresh: Floats

    @property
    def sampled(self) -> bool:
        """Whether of some steps only a sample of the groups was recorded."""
        return any(step.totals is not None for step in self.steps)


#: What reading a line raises that has other values than a run writes.
DAMAGED = (KeyError, TypeError, AttributeError, ValueError)


def read_view(folder: str | Path, label: str | None = None, *, first: int = 1, last: int | None = None) -> RunView:
    """Read a run's folder (``trainer.default_local_dir``), or the record file itself.

    Args:
        first, last: steps to report on.

    Raises:
        UserError: no record there, a newer schema, or no finished rollout among the steps.
    """
    record = read_run(folder)
    steps = [step for step in record.steps if first <= step["step"] <= (last or step["step"])]
    if not steps:
        raise UserError(_why_empty(record))
    try:
        return _view(record, steps, label or _name(record.path))
    except DAMAGED as error:
        raise no_run(record.path, error) from None


def no_run(path: Path, error: Exception) -> UserError:
    """What is wrong with a record whose lines hold other things than a run writes."""
    return UserError(
        f"{path} holds lines that are no step of a run ({type(error).__name__}: {error}); name the "
        "trainer.default_local_dir of a run that had +tailsieve."
    )


def _view(record: RecordedRun, steps: list[dict[str, Any]], label: str) -> RunView:
    seen = [observation_of(step) for step in steps]
    decisions = [decision_of(step) for step in steps]
    bounds = {d.step: d.lower_bound_s for d in decisions if d.lower_bound_s is not None}
    if not bounds and not any("totals" in step for step in steps):
        bounds = _bounds(record, seen)
    monitor = LengthMonitor()
    for one in seen:
        monitor.add(one)
    lengths = monitor.state_dict()
    views: list[StepView] = []
    before = (decisions[0].q, decisions[0].m) if not decisions[0].switched else (seen[0].plan.q, seen[0].plan.m)
    for step, observation, decision in zip(steps, seen, decisions, strict=True):
        metrics = {**step.get("metrics", {}), **step.get("trained", {})}
        if "totals" not in step:
            shares = idle_fractions(observation)
            metrics = {**{f"idle_fraction/{pool}": share for pool, share in shares.items()}, **metrics}
        bound = bounds.get(observation.plan.step)
        views.append(StepView(observation, decision, metrics, bound, step.get("totals"), before))
        before = decision.q, decision.m
    return RunView(
        label,
        record.path,
        record.run,
        tuple(views),
        record.skipped,
        record.resumes,
        np.array(lengths["consumed"][-DEFAULT_WINDOW:], dtype=np.float64),
        np.array(lengths["reference"], dtype=np.float64).reshape(-1, 2),
    )


def _bounds(record: RecordedRun, seen: list[StepObservation]) -> dict[int, float]:
    chosen = np.unique(np.linspace(0, len(seen) - 1, BOUND_STEPS).astype(int))
    lengths = {
        seen[i].plan.step: np.array([t for g in seen[i].groups if g.status == "trained" for t in g.tokens], float)
        for i in chosen
    }
    shape = {"replicas": seen[-1].plan.replicas}
    log = RunLog("", record.path, {}, {}, {}, {}, lengths=lengths, shape=shape, observations=tuple(seen[-CURVE_STEPS:]))
    found = lower_bound(log)
    return {} if found is None else dict(found.by_step)


def _name(path: Path) -> str:
    return path.resolve().parent.parent.name if path.parent.name == "tailsieve" else path.stem


def _why_empty(record: RecordedRun) -> str:
    if record.steps:
        known = [step["step"] for step in record.steps]
        return (
            f"{record.path} has steps {min(known)} to {max(known)}, none of those asked for; change --first or --last."
        )
    if record.skipped and not record.run:
        return f"{record.path} is no record of a run; name the trainer.default_local_dir of a run that had +tailsieve."
    cut = f" ({record.skipped} unreadable line{'s' if record.skipped > 1 else ''})" if record.skipped else ""
    return f"{record.path} has no finished rollout yet{cut}; ask again when the run's first step is over."
