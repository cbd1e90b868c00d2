"""Writes the run's record (:mod:`tailsieve_verl.records.lines`) under the checkpoint folder.

Crash-safe: a line is written by one call and handed to the operating system at once; the reader ignores a torn one.
After a resume the steps that are run again are appended again, and the reader drops those of the abandoned run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tailsieve_verl.core.plan import Decision, StepObservation
from tailsieve_verl.records.lines import FILE, MOST_REQUESTS, plain, start_line, step_line, trained_line

logger = logging.getLogger(__name__)


class LineFile:
    """A file of JSON lines that is only ever appended to, and that never ends a run.

    Args:
        path: the file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = False

    def append(self, make: Callable[..., Mapping[str, Any]], *args: Any, **kwargs: Any) -> None:
        """Write the line that ``make`` gives, unless writing has failed before."""
        if self.failed:
            return
        try:
            line = make(*args, **kwargs)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A crash may have torn the line before a start: that one begins on a line of its own.
            head = "\n" if line["kind"] == "start" and self.path.exists() else ""
            text = head + json.dumps(line, default=plain) + "\n"
            with self.path.open("a") as file:
                file.write(text)
        except Exception as error:  # neither a full disk nor what somebody's policy put into a decision ends a run
            self.failed = True
            logger.warning("tailsieve: the record %s cannot be written any more: %s", self.path, error)


class RunRecord:
    """Appends the steps of a run to its record.

    Args:
        folder: the run's checkpoint folder (``trainer.default_local_dir``).
        enabled: False writes nothing.
        most_requests: requests of a step to write out (:func:`~tailsieve_verl.records.lines.sampled`).
    """

    def __init__(self, folder: str | Path, *, enabled: bool = True, most_requests: int = MOST_REQUESTS) -> None:
        self.path = Path(folder) / FILE
        self._file = LineFile(self.path) if enabled else None
        self._most_requests = most_requests

    def start(self, run: Mapping[str, Any], *, first_step: int) -> None:
        """Mark where a run, or a resumed run, begins."""
        if self._file is not None:
            self._file.append(start_line, run, first_step)

    def step(
        self,
        observation: StepObservation,
        decision: Decision,
        *,
        batch: Mapping[int, Any],
        metrics: Mapping[str, float],
        drafting: Mapping[int, Any] | None = None,
    ) -> None:
        """Append a finished rollout; the arguments are those of :func:`~tailsieve_verl.records.lines.step_line`."""
        if self._file is not None:
            self._file.append(
                step_line,
                observation,
                decision,
                batch=batch,
                metrics=metrics,
                drafting=drafting,
                most_requests=self._most_requests,
            )

    def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append what is known only when the training step is over."""
        if self._file is not None:
            self._file.append(trained_line, step, metrics)
