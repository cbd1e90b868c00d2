"""A finished or running run as its own logs tell it, whichever of them are there.

<run>/tailsieve/steps.jsonl      TailSieve's record: times, lengths of every response, prompts
<run>/metrics*.jsonl, *.jsonl    verl's file logger; or run.log, its console output: a run without the record
<run>/rollouts/<step>.jsonl      trainer.rollout_data_dir: the prompts of a run without the record
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.advise.steplog import GENERATION, MEAN_TOKENS, STEP, read_steplog
from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.errors import UserError
from tailsieve_verl.records.lines import FILE
from tailsieve_verl.records.read import RecordedRun, observation_of, read_run

Floats = NDArray[np.float64]
REWARD = "critic/rewards/mean"


@dataclass(frozen=True)
class RunLog:
    """What a comparison needs to know of a run.

    Attributes:
        label: its name in tables and pictures.
        generation_s: step -> seconds of the rollout, routing and controller included (paper 4.5).
        step_s, reward, length: step -> seconds of the whole step, mean reward, mean response length in tokens.
        lengths: step -> tokens of every response trained on, [N n]; empty without a record.
        bias: the run's own figures against its fresh pools, at its last step; empty without a record.
        stream: serial number -> prompt, in the order of the data; empty without a record.
        dump: folder of the rollout dumps, read only where they are needed (they are large); ``None`` without any.
        shape: n_groups, replicas, n where they are known.
        speculation: what drafted, ``none`` for nothing.
        split: steps in which a tail pool ran.
        by_group: whole groups were dealt, as the paper's uniform routing does.
        observations: what each step's policy was shown, for the decode curve.
    """

    label: str
    path: Path
    generation_s: Mapping[int, float]
    step_s: Mapping[int, float]
    reward: Mapping[int, float]
    length: Mapping[int, float]
    lengths: Mapping[int, Floats] = field(default_factory=dict)
    bias: Mapping[str, float] = field(default_factory=dict)
    stream: Mapping[int, str] = field(default_factory=dict)
    dump: Path | None = None
    shape: Mapping[str, int] = field(default_factory=dict)
    speculation: str = "none"
    split: tuple[int, ...] = ()
    by_group: bool = False
    observations: tuple[StepObservation, ...] = ()

    @property
    def steps(self) -> list[int]:
        return sorted(self.generation_s)

    @property
    def uniform(self) -> bool:
        """Group by group without a tail pool: the paper's baseline."""
        return self.by_group and not self.split


def read_runlog(path: str | Path, label: str | None = None) -> RunLog:
    """Read a run's folder, or one of its log files.

    Raises:
        UserError: nothing there that is a run's log, or a log without a finished step.
    """
    path = Path(path)
    label = label or path.absolute().name
    if not path.exists():
        raise UserError(f"{path} does not exist; give a run's trainer.default_local_dir, or its log.")
    rollouts = path / "rollouts"
    dump = rollouts if next(rollouts.glob("*.jsonl"), None) is not None else None
    if path.is_dir() and (path / FILE).is_file():
        record = read_run(path)
        try:
            return _from_record(label, path, record, dump)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{record.path} has a step that cannot be understood ({type(error).__name__}: {error}); it is damaged, "
                f"or of another version of tailsieve_verl."
            ) from None
    return _from_metrics(label, path, dump)


def _from_record(label: str, path: Path, record: RecordedRun, dump: Path | None) -> RunLog:
    steps = [step for step in record.steps if "trained" in step]
    if not steps:
        raise UserError(f"{record.path} has no finished training step.")
    trained = {step["step"]: step["trained"] for step in steps}
    seconds = {number: _generation(of) for number, of in trained.items()}
    seconds = {number: value for number, value in seconds.items() if np.isfinite(value) and value > 0}
    if not seconds:
        raise UserError(f"{record.path} has no step with a time of generation; it is damaged.")
    observations = {step["step"]: observation_of(step) for step in steps}
    sampled = any("totals" in step for step in steps)  # large steps: not every length is in the record
    lengths = {
        number: np.array([t for g in seen.groups if g.status == "trained" for t in g.tokens], dtype=np.float64)
        for number, seen in observations.items()
    }
    last = trained[max(trained)]
    drafted = any(step.get("drafting") for step in steps)
    return RunLog(
        label,
        path,
        generation_s=seconds,
        step_s=_column(trained, "step_s"),
        reward=_column(trained, "reward"),
        length=_column(trained, "length"),
        lengths={} if sampled else lengths,
        bias={name.removeprefix("bias/"): value for name, value in last.items() if name.startswith("bias/")},
        stream={g.prompt: g.key for seen in observations.values() for g in seen.groups},
        dump=dump,
        shape={key: int(value) for key, value in record.run.items() if key in ("n_groups", "replicas", "n")},
        speculation=str(record.run.get("speculation", "drafts" if drafted else "none")),
        split=tuple(number for number, seen in sorted(observations.items()) if seen.plan.m > 0),
        by_group=all(seen.plan.bulk_placement == "group" for seen in observations.values()),
        observations=tuple(observations[number] for number in sorted(observations)),
    )


def _from_metrics(label: str, path: Path, dump: Path | None) -> RunLog:
    steps: dict[int, dict[str, float]] = {}
    fault = None
    for file in _metric_files(path):
        try:
            found = read_steplog(file).steps
        except UserError as error:  # of a launch that has not finished a step, or never did
            fault = error
            continue
        for number, metrics in found.items():
            steps.setdefault(number, {}).update(metrics)
    if not steps and fault is not None:
        raise fault
    return RunLog(
        label,
        path,
        generation_s=_column(steps, GENERATION),
        step_s=_column(steps, STEP),
        reward=_column(steps, REWARD),
        length=_column(steps, MEAN_TOKENS),
        dump=dump,
    )


def _metric_files(path: Path) -> list[Path]:
    """Files of verl's loggers, oldest first: a resumed run writes a new one."""
    if path.is_file():
        return [path]
    for pattern in ("metrics*.jsonl", "*.jsonl", "*.log"):
        found = sorted(path.glob(pattern), key=lambda file: (file.stat().st_mtime, file.name))
        if found:
            return found
    raise UserError(
        f"{path} holds no log of a run: neither {FILE} (TailSieve's record), nor metrics*.jsonl "
        '(trainer.logger=["file"] with VERL_FILE_LOGGER_PATH there), nor run.log (console output).'
    )


def _generation(trained: Mapping[str, Any]) -> float:
    """Seconds of the rollout stage with routing and controller: verl's timer, and what we do outside of it."""
    timer = trained.get(GENERATION, trained.get("generation_s", np.nan))
    return float(timer) + float(trained.get("dispatch_s", 0.0)) + float(trained.get("decide_s", 0.0))


def _column(steps: Mapping[int, Mapping[str, Any]], name: str) -> dict[int, float]:
    found = {number: float(of[name]) for number, of in sorted(steps.items()) if of.get(name) is not None}
    return {number: value for number, value in found.items() if np.isfinite(value)}
