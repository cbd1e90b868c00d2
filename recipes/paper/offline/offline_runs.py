"""Policies side by side on one load: what Tables 1 and 4 measure.

Every policy of a seed sees the same prompts, the same first lengths, and the same slowness of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from offline_common import NamedCurve, Replayed, run_steps, seconds, start, synthetic

from tailsieve_verl.core.bias import LengthBias, length_bias
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.simulate.workload import Workload
from tailsieve_verl.traces.synthetic import LengthModel

#: Standard deviation of the log of a step's speed; the controller has to see through it.
NOISE = 0.1
GROUP_ROW, VERL_ROW, BOUND_ROW = "uniform by group", "verl's default", "lower bound, uniform's lengths"
REPLAYED_ROW, BEST_ROW = "TailSieve, lengths replayed", "best fixed split in hindsight"
#: The paper's rows and ours, by policy; {half} is R/2.
ROWS = {
    GROUP_ROW: "uniform_group",
    VERL_ROW: "verl_default",
    "uniform oracle": "uniform_oracle",
    "StreamRL-style oracle": "streamrl_oracle:m={half}",
    "Seer-style oracle": "seer_oracle",
    "fixed split N/8, R/2": "fixed",
    "TailSieve, fixed replicas": "inner_loop:m={half}",
    "TailSieve, preset paper": "paper",
    "TailSieve": "tailsieve",
}


@dataclass(frozen=True)
class Measured:
    """A policy on one stream, first steps left out.

    Attributes:
        seconds: makespans, [steps].
        q, m: mean split that ran.
        switches: changes of the split over the whole run.
        bias: lengths trained on against the same prompts' first ones.
        truncated: share of the responses trained on that ran into the limit.
    """

    seconds: np.ndarray
    q: float
    m: float
    switches: int
    bias: LengthBias
    truncated: float


@dataclass(frozen=True)
class Cell:
    """Where policies are compared: a load, a curve, N and R, and how long."""

    load: str
    model: LengthModel
    named: NamedCurve
    n_groups: int
    replicas: int
    steps: int
    skip: int

    @property
    def label(self) -> str:
        return f"{self.named.name}, R={self.replicas}"


def measure(cell: Cell, policy: str, workload: Workload, seed: int) -> Measured:
    """Run one policy on one stream."""
    text = policy.format(half=cell.replicas // 2)
    rollout = start(text, workload, cell.n_groups, cell.replicas, cell.named, noise=NOISE, seed=seed)
    steps = run_steps(rollout, cell.steps)
    kept = steps[cell.skip :]
    consumed = np.concatenate([step.lengths.ravel() for step in kept])
    first = [
        workload.lengths(step.prompts.tolist(), [0] * step.prompts.size, step.observation.plan.step) for step in kept
    ]
    splits = np.array([(step.observation.plan.counts.tail, step.observation.plan.m) for step in kept])
    return Measured(
        seconds(kept),
        *splits.mean(axis=0).tolist(),
        sum(step.decision.switched for step in steps),
        length_bias(consumed, np.concatenate([x.ravel() for x in first]), None, workload.cap),
        float(np.mean(consumed >= workload.cap)),
    )


def compare(
    cell: Cell,
    seeds: Sequence[int],
    tick: Callable[[], object],
    *,
    replay: bool = False,
    splits: Sequence[tuple[int, int]] = (),
    bounds: int = 4,
) -> list[dict]:
    """One row per policy, speed-ups as mean and standard deviation over seeds.

    Args:
        tick: called after each run.
        replay: also TailSieve on lengths that a second generation repeats.
        splits: fixed (q, m) of which the fastest over all seeds is a row.
        bounds: steps of uniform's batches whose lower bound is computed; 0 leaves the row out.
    """
    found: dict[str, list[Measured]] = {row: [] for row in ROWS}
    fixed: dict[tuple[int, int], list[Measured]] = {split: [] for split in splits}
    over_bound = []
    for seed in seeds:
        workload = synthetic(cell.model, seed)
        for row, policy in ROWS.items():
            found[row].append(measure(cell, policy, workload, seed))
            tick()
        if replay:
            found.setdefault(REPLAYED_ROW, []).append(measure(cell, "tailsieve", Replayed(workload), seed))
            tick()
        for q, m in splits:
            fixed[q, m].append(measure(cell, f"fixed:q={q},m={m}", workload, seed))
            tick()
        if bounds:
            over_bound.append(_over_bound(cell, workload, bounds))
    if fixed:
        best = min(fixed, key=lambda split: sum(run.seconds.sum() for run in fixed[split]))
        found[BEST_ROW] = fixed[best]
    rows = [_row(cell, name, runs, found) for name, runs in found.items()]
    if over_bound:
        verl = [_ratio(v, g) for v, g in zip(found[VERL_ROW], found[GROUP_ROW], strict=True)]
        rows.append(_bound_row(rows[0], over_bound, verl))
    return rows


def runs_per_seed(replay: bool, splits: Sequence[tuple[int, int]]) -> int:
    """How often `compare` ticks for a seed."""
    return len(ROWS) + replay + len(splits)


def _ratio(mine: Measured, baseline: Measured) -> float:
    return float(baseline.seconds.sum() / mine.seconds.sum())


def _row(cell: Cell, name: str, runs: list[Measured], found: dict[str, list[Measured]]) -> dict:
    over = {
        key: np.array([_ratio(run, base) for run, base in zip(runs, found[row], strict=True)])
        for key, row in (("over_group", GROUP_ROW), ("over_verl", VERL_ROW))
    }
    row: dict = {
        "load": cell.load,
        "curve": cell.named.name,
        "R": cell.replicas,
        "N": cell.n_groups,
        "policy": name,
    }
    for key, values in over.items():
        row |= {key: float(values.mean()), f"{key}_sd": _deviation(values)}
    return row | {
        "step_s": float(np.mean([run.seconds.mean() for run in runs])),
        "q": float(np.mean([run.q for run in runs])),
        "m": float(np.mean([run.m for run in runs])),
        "switches": float(np.mean([run.switches for run in runs])),
        "mean_bias": float(np.mean([run.bias.mean for run in runs])),
        "truncated": float(np.mean([run.truncated for run in runs])),
    }


def _over_bound(cell: Cell, workload: Workload, count: int) -> float:
    """Uniform by group over what no placement of the same batches could beat."""
    steps = run_steps(start(ROWS[GROUP_ROW], workload, cell.n_groups, cell.replicas, cell.named), count)
    least = [makespan_lower_bound(step.lengths.ravel(), cell.replicas, cell.named.curve) for step in steps]
    return float(seconds(steps).sum() / sum(least))


def _bound_row(group: dict, over_bound: list[float], verl: list[float]) -> dict:
    """The bound as a row like a policy's."""
    values = np.array(over_bound)
    over_verl = values / np.array(verl)
    return dict.fromkeys(group) | {
        **{key: group[key] for key in ("load", "curve", "R", "N", "truncated")},
        "policy": BOUND_ROW,
        "over_group": float(values.mean()),
        "over_group_sd": _deviation(values),
        "over_verl": float(over_verl.mean()),
        "over_verl_sd": _deviation(over_verl),
    }


def _deviation(values: np.ndarray) -> float:
    """Standard deviation over seeds; 0 with one seed."""
    return float(values.std(ddof=1)) if values.size > 1 else 0.0


def pivot(rows: Sequence[dict], columns: Sequence[str], key: str = "over_group") -> list[dict]:
    """Policies down, cells across: ``mean +- deviation`` of `key`.

    Args:
        columns: keys of a row whose values name its column.
    """
    table: dict[str, dict] = {}
    for row in rows:
        cell = ", ".join(f"{c}={row[c]}" if len(c) == 1 else str(row[c]) for c in columns)
        line = table.setdefault(row["policy"], {"policy": row["policy"]})
        line[cell] = f"{row[key]:.3f} +- {row[f'{key}_sd']:.3f}"
    return list(table.values())
