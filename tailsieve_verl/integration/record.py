"""The run's record: one JSON line a step in ``tailsieve/steps.jsonl`` under the checkpoint folder.

Crash-safe: a line is written whole and flushed; a torn last line is ignored by the reader. After a resume the steps
that are run again are appended again; the reader keeps the last of each step and drops later ones of the abandoned run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailsieve_verl.core.plan import Decision, StepObservation

logger = logging.getLogger(__name__)

SCHEMA = 1
FILE = Path("tailsieve") / "steps.jsonl"


class RunRecord:
    """Appends steps to the record of a run.

    Args:
        folder: the run's checkpoint folder (``trainer.default_local_dir``).
        enabled: False writes nothing.
    """

    def __init__(self, folder: str | Path, *, enabled: bool = True) -> None:
        self.path = Path(folder) / FILE
        self._enabled = enabled

    def start(self, config: Mapping[str, Any], *, first_step: int) -> None:
        """Mark where a run, or a resumed run, begins: earlier lines from ``first_step`` on are void."""
        self._append({"kind": "start", "schema": SCHEMA, "first_step": first_step, **config})

    def step(
        self,
        observation: StepObservation,
        decision: Decision,
        *,
        batch: Mapping[int, Any],
        metrics: Mapping[str, float],
        drafting: Mapping[int, Any] | None = None,
    ) -> None:
        """Append a finished step.

        Args:
            batch: by prompt, what the store said of the trained groups.
            drafting: by replica, what its engine reported of its drafts.
        """
        counts = observation.plan.counts
        self._append(
            {
                "kind": "step",
                "step": observation.plan.step,
                "plan": {**dataclasses.asdict(observation.plan), "left_over": counts.left_over},
                "t_tail_s": observation.t_tail_s,
                "t_bulk_s": observation.t_bulk_s,
                "cut_s": observation.cut_s,
                "abort_s": observation.abort_s,
                "failed": observation.failed,
                "retried": observation.retried,
                "groups": [dataclasses.asdict(group) for group in observation.groups],
                "batch": {str(prompt): facts._asdict() for prompt, facts in batch.items()},
                "decision": dataclasses.asdict(decision),
                "metrics": dict(metrics),
                **({"drafting": {str(rank): report for rank, report in drafting.items()}} if drafting else {}),
            }
        )

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append what is known only when the training step is over: reward, lengths, step time."""
        self._append({"kind": "trained", "step": step, "metrics": dict(metrics)})

    def _append(self, line: dict[str, Any]) -> None:
        if not self._enabled:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A crash may have torn the line before a start: that one begins on a line of its own.
            head = "\n" if line["kind"] == "start" and self.path.exists() else ""
            with self.path.open("a") as file:
                file.write(head + json.dumps(line, default=_plain) + "\n")
        except OSError as error:  # a full disk must not end a training run
            self._enabled = False
            logger.warning("tailsieve: the record %s cannot be written any more: %s", self.path, error)


def read_steps(folder: str | Path) -> list[dict[str, Any]]:
    """Steps of a run in order, each with the metrics of its ``trained`` line under ``trained`` (if it came).

    Raises:
        FileNotFoundError: if the run left no record.
    """
    steps: dict[int, dict[str, Any]] = {}
    for text in (Path(folder) / FILE).read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # torn by a crash
        if line["kind"] == "start":
            steps = {number: step for number, step in steps.items() if number < line["first_step"]}
        elif line["kind"] == "step":
            steps[line["step"]] = line
        elif line["step"] in steps:
            steps[line["step"]]["trained"] = line["metrics"]
    return [steps[number] for number in sorted(steps)]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # numpy and torch scalars
        return value.item()
    raise TypeError(f"cannot record a {type(value).__name__}")
