"""A record of one's own: the lines of the run's record (``records/lines.py``) in a file of one's choice.

The run keeps its own record in any case; this one is for another place or another size, for example on a shared disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tailsieve_verl.callbacks.base import Callback, RunInfo
from tailsieve_verl.core.plan import Decision, StepObservation
from tailsieve_verl.integration.record import LineFile
from tailsieve_verl.records.lines import MOST_REQUESTS, start_line, step_line, trained_line


class JsonlRecorder(Callback):
    """Writes each step as a line; :func:`tailsieve_verl.records.read.read_run` reads the file.

    Args:
        path: the file, absolute or under the run's folder.
        most_requests: requests of a step to write out; the groups beyond are sampled.

    Raises:
        ValueError: most_requests below 1.
    """

    observer: ClassVar[bool] = True

    def __init__(self, path: str, most_requests: int = MOST_REQUESTS) -> None:
        if most_requests < 1:
            raise ValueError(f"most_requests must be at least 1, got {most_requests}")
        self._path, self._most_requests = Path(path), most_requests
        self._file: LineFile | None = None
        self._observation: StepObservation | None = None

    def on_run_start(self, info: RunInfo) -> None:
        self._file = LineFile(Path(info.folder) / self._path)
        run = {"n_groups": info.n_groups, "replicas": info.replicas, "n": info.sessions}
        self._file.append(start_line, run, info.first_step)

    def on_step_observed(self, observation: StepObservation) -> None:
        self._observation = observation

    def on_decision(self, decision: Decision) -> None:
        if self._file is not None and self._observation is not None:
            self._file.append(step_line, self._observation, decision, most_requests=self._most_requests)

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._file is not None:
            self._file.append(trained_line, step, metrics)
