"""What a calibration measured, and its file: a JSON that `tailsieve_verl.curves.load_curve` reads as a decode curve.

``batch_sizes`` and ``seconds_per_token`` at the top level are the curve at zero context; everything else stands beside
them. A file with these two keys alone, or a CSV, is a calibration without context and prefill cost.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.curves import load_curve
from tailsieve_verl.errors import UserError

if TYPE_CHECKING:
    from tailsieve_verl.simulate.engine import EngineCosts


@dataclass(frozen=True)
class Point:
    """Decode steps at one batch size, the context term taken off; seconds per step.

    Attributes:
        batch_size: b.
        seconds: mean over the steps, hiccups cut (`calibrate.HICCUP`), of short and of long prompts alike.
        median, low, high: median and quartiles over all steps.
        repeats: median of each run.
        steps: how many steps.
    """

    batch_size: int
    seconds: float
    median: float
    low: float
    high: float
    repeats: tuple[float, ...]
    steps: int


@dataclass(frozen=True)
class Calibration:
    """The costs of one replica.

    Attributes:
        curve: tau(b) at zero context; seconds per engine step, which is seconds per token without speculation.
        context_seconds_per_token: k, what a step takes longer per token of context in the running batch.
        prefill_seconds_per_token: seconds per prompt token.
        fixed_seconds: what a run takes beside its steps.
        points: the measurement behind the curve.
        model: folder of the model.
        machine: in words.
        replicas: how many replicas ran the same load at once; more than 1: measured under each other's load.
        versions: of the packages that matter.
        engine: facts of the engine (block_size, kv_tokens, max_num_seqs, ...).
        date: UTC, ISO 8601.
        complete: False in a file that a calibration left when it was stopped.
        cpu_share: CPU time over wall time of the workers; on a CPU, with one core a replica, less than 1 means that
            other processes took the cores. ``None`` where that says nothing.
        clock: "wall", or "cpu" where seconds are of CPU time (`EngineSpec`).
        speculation_depth: draft tokens per step; ``tokens_per_step`` then tells how many came out of one, of the
            random prompts of the measurement. Divide the curve by your own figure.
    """

    curve: DecodeCurve
    context_seconds_per_token: float = 0.0
    prefill_seconds_per_token: float = 0.0
    fixed_seconds: float = 0.0
    points: tuple[Point, ...] = ()
    model: str = ""
    machine: str = ""
    replicas: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    complete: bool = True
    cpu_share: float | None = None
    clock: str = "wall"
    speculation_depth: int | None = None
    tokens_per_step: float = 1.0

    @property
    def largest(self) -> float:
        """Largest batch size measured; beyond it the curve's last slope goes on."""
        return self.curve.batch_sizes[-1]

    def costs(self) -> EngineCosts:
        """For the simulator, with the engine's limits."""
        from tailsieve_verl.simulate.engine import EngineCosts

        return EngineCosts(
            curve=self.curve,
            context_s=self.context_seconds_per_token,
            prefill_s=self.prefill_seconds_per_token,
            max_num_seqs=self.engine.get("max_num_seqs"),
            kv_tokens=self.engine.get("kv_tokens"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, read back by `from_dict`."""
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("curve", "points")}
        return {**self.curve.to_dict(), **rest, "points": [asdict(point) for point in self.points]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_dict`; unknown keys are left out.

        Raises:
            ValueError: keys of the curve missing, or values that it refuses.
        """
        names = {f.name for f in fields(cls)} - {"curve", "points"}
        points = tuple(Point(**{**p, "repeats": tuple(p["repeats"])}) for p in data.get("points", ()))
        rest = {name: value for name, value in data.items() if name in names}
        return cls(curve=DecodeCurve.from_dict(data), points=points, **rest)

    def rows(self) -> list[dict[str, Any]]:
        """A row per batch size, for tables and CSV; seconds. The first two columns are those of a curve in CSV."""
        tau = dict(zip(self.curve.batch_sizes, self.curve.seconds_per_token, strict=True))
        return [
            {
                "batch_size": p.batch_size,
                "seconds_per_token": tau[p.batch_size],
                "low": p.low,
                "high": p.high,
                "median": p.median,
                "spread": (max(p.repeats) - min(p.repeats)) / p.median if p.repeats else 0.0,
                "tokens_per_s": p.batch_size * self.tokens_per_step / tau[p.batch_size],
                "steps": p.steps,
            }
            for p in self.points
        ]


def pooled(calibrations: Sequence[Calibration]) -> Calibration:
    """Mean costs of calibrations of one engine at the same batch sizes, for a machine whose speed drifts.

    Raises:
        ValueError: none, or batch sizes that differ.
    """
    first = calibrations[0] if calibrations else None
    if first is None or any(c.curve.batch_sizes != first.curve.batch_sizes for c in calibrations):
        raise ValueError("calibrations must be at least one, and all at the same batch sizes")

    def mean(name: str) -> float:
        return float(np.mean([getattr(c, name) for c in calibrations]))

    return replace(
        first,
        curve=DecodeCurve(first.curve.batch_sizes, np.mean([c.curve.seconds_per_token for c in calibrations], axis=0)),
        context_seconds_per_token=mean("context_seconds_per_token"),
        prefill_seconds_per_token=mean("prefill_seconds_per_token"),
        fixed_seconds=mean("fixed_seconds"),
        points=(),
    )


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Write the JSON whole or not at all."""
    from tailsieve_verl.cli.output import write_json

    write_json(path, calibration.to_dict())


def load_calibration(path: Path) -> Calibration:
    """Read a calibration, or a bare decode curve in JSON or CSV.

    Raises:
        UserError: no such file, or one that holds no curve.
    """
    try:
        if path.suffix.lower() == ".json":
            load_curve(path)
            return Calibration.from_dict(json.loads(path.read_text(encoding="utf-8-sig")))
        return Calibration(curve=load_curve(path))
    except FileNotFoundError:
        raise UserError(f"there is no curve {path}; tailsieve calibrate --out {path} measures one.") from None
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise UserError(f"{path} holds no calibration: {error}") from None


def machine_words(devices: Sequence[str] = ()) -> str:
    """The machine in words: the accelerators if there are any, the processor and how many cores this process has."""
    names = [name for name in devices if name != "cpu"]
    cores = len(os.sched_getaffinity(0))
    words = f"{_processor()}, {cores} {'core' if cores == 1 else 'cores'}"
    return f"{len(names)} x {names[0]}; {words}" if names else words


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
