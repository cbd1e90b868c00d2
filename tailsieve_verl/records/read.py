"""Reads a run's record for the tools that look at runs, also while the run goes on.

What a crash or a resume leaves is mended here: a line that was cut off is skipped, a step that was run again counts
once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tailsieve_verl.core.plan import Candidate, Decision, GroupRecord, LaunchCounts, StepObservation, StepPlan
from tailsieve_verl.errors import UserError
from tailsieve_verl.records.lines import FILE, SCHEMA


@dataclass(frozen=True)
class RecordedRun:
    """A run as it was recorded.

    Attributes:
        path: the file.
        run: what the last ``start`` line says of the run: ``n_groups``, ``replicas``, ``n``; empty before the first.
        steps: the ``step`` lines in order, each with the metrics of its ``trained`` line under ``trained`` if it came.
        skipped: lines that could not be read (cut off by a crash, still being written, or without metrics).
        resumes: how often the run was resumed.
    """

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    steps: tuple[dict[str, Any], ...] = ()
    skipped: int = 0
    resumes: int = 0


def read_run(folder: str | Path) -> RecordedRun:
    """Read the record of a run; one without a finished step has no steps.

    Args:
        folder: the run's checkpoint folder (``trainer.default_local_dir``), or the record file itself.

    Raises:
        UserError: no record there, or one of a newer schema.
    """
    path = Path(folder)
    if not path.is_file():
        path = path / FILE
    steps: dict[int, dict[str, Any]] = {}
    run: dict[str, Any] = {}
    skipped = starts = 0
    try:
        file = path.open(errors="replace")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); name the trainer.default_local_dir of a run that had "
            f"+tailsieve and trainer.v1.tailsieve.record=true."
        ) from None
    with file:
        for text in file:
            line = _parsed(text)
            if line is None:
                skipped += bool(text.strip())
                continue
            number: int = line.get("step", line.get("first_step", 0))
            if line["kind"] == "start":
                _check_schema(path, line)
                starts += 1
                steps = {step: of for step, of in steps.items() if step < number}
                run = {key: value for key, value in line.items() if key not in ("kind", "schema", "first_step")}
            elif line["kind"] == "step":
                steps[number] = line
            elif line["kind"] == "trained" and number in steps:
                metrics = line.get("metrics")
                skipped += not isinstance(metrics, dict)
                steps[number]["trained"] = metrics if isinstance(metrics, dict) else {}
    return RecordedRun(path, run, tuple(steps[number] for number in sorted(steps)), skipped, max(0, starts - 1))


def read_steps(folder: str | Path) -> list[dict[str, Any]]:
    """The steps of :func:`read_run`."""
    return list(read_run(folder).steps)


def observation_of(step: Mapping[str, Any]) -> StepObservation:
    """What the policy was shown of a recorded step; of a sampled one (with ``totals``) only the groups recorded."""
    facts = {key: step[key] for key in ("t_tail_s", "t_bulk_s", "cut_s", "abort_s", "failed", "retried")}
    groups = tuple(_built(GroupRecord, {k: _frozen(v) for k, v in group.items()}) for group in step["groups"])
    plan = {**step["plan"], "counts": _built(LaunchCounts, step["plan"]["counts"])}
    return StepObservation(_built(StepPlan, plan), groups=groups, **facts)


def decision_of(step: Mapping[str, Any]) -> Decision:
    """What the policy decided after a recorded step."""
    candidates = tuple(_built(Candidate, c) for c in step["decision"]["candidates"])
    decision: Decision = _built(Decision, {**step["decision"], "candidates": candidates})
    return decision


def _parsed(text: str) -> dict[str, Any] | None:
    """A line of a kind that has what a reader needs; ``None`` if it is torn."""
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return None
    needed = {"start": "first_step", "step": "step", "trained": "step"}.get(line["kind"])
    return line if needed is None or isinstance(line.get(needed), int) else None


def _check_schema(path: Path, line: Mapping[str, Any]) -> None:
    schema = line.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise UserError(
            f"{path} has schema {schema}, this version of tailsieve_verl reads up to {SCHEMA}; upgrade tailsieve_verl."
        )


def _built(kind: type, values: Mapping[str, Any]) -> Any:
    """An instance from recorded fields; what a later version added is left out."""
    known = {f.name for f in fields(kind)}
    return kind(**{key: value for key, value in values.items() if key in known})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
