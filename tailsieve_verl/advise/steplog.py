"""What verl logged of each step: the lines of its console logger, or the file of its `file` logger.

Console (verl 0.9.1, `LocalLogger`), with whatever Ray puts before it:   step:3 - timing_s/gen:14.03 - ...
File (`FileLogger`, trainer.logger=["file"]), JSON lines:                {"step": 3, "data": {"timing_s/gen": 14.03}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailsieve_verl.errors import UserError

#: Seconds of generation and of the whole step; mean response length in tokens, end token included; longest response.
GENERATION, STEP = "timing_s/gen", "timing_s/step"
MEAN_TOKENS, MOST_TOKENS = "response_length/mean", "response_length/max"
_LINE = re.compile(r"\bstep:(\d+) - (.+)")
# A value may be a NumPy scalar's repr.
_METRIC = re.compile(r"(?:^| - )([\w./@-]+):(?:np\.\w+\()?([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))\)?(?= - |\s*$)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class StepLog:
    """Metrics by training step."""

    path: str
    steps: Mapping[int, Mapping[str, float]]

    def get(self, name: str, steps: Iterable[int]) -> dict[int, float]:
        """A metric at those of the steps that have a finite value of it."""
        found = {step: self.steps.get(step, {}).get(name, np.nan) for step in steps}
        return {step: value for step, value in found.items() if np.isfinite(value)}


def read_steplog(path: str | Path) -> StepLog:
    """Read either kind; of a step that is there twice (a resumed run) the last values count.

    Raises:
        UserError: no such file, or one without a step's generation time.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}): give the run's console output or its metrics file."
        ) from None
    steps: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        step, metrics = _from_json(line) if line.startswith("{") else _from_console(line)
        if metrics:
            steps.setdefault(step, {}).update(metrics)
    if not any(GENERATION in metrics for metrics in steps.values()):
        raise UserError(
            f"{path} has no {GENERATION} of any step: give the console output of the verl run, or the file that "
            'trainer.logger=["file"] writes.'
        )
    return StepLog(str(path), steps)


def _from_console(line: str) -> tuple[int, dict[str, float]]:
    found = _LINE.search(_COLOUR.sub("", line))
    if found is None:
        return 0, {}
    return int(found[1]), {name: float(value) for name, value in _METRIC.findall(found[2])}


def _from_json(line: str) -> tuple[int, dict[str, float]]:
    try:
        entry = json.loads(line)
        step, data = int(entry["step"]), entry["data"]
        return step, {k: float(v) for k, v in data.items() if isinstance(v, int | float)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, {}
