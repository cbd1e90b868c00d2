"""How well the simulator predicts real vLLM: 2 models x 3 traces x 4 policies x 3 repeats on two replicas, on the CPU.

    python recipes/fidelity/run.py [--out DIR] [--quick] [--models smollm2,wide] [--repeats 3] [--clock wall]

For each model the engines are started once, calibrated together right before each trace is run, and once more at the
end. ``error`` is the prediction's from the calibration before the trace; ``error_around`` that from the mean of it and
the next, and ``drift`` how much slower the next was: a machine whose speed drifts shows there, and not as the
simulator's error. Everything is written as it comes, and the same command goes on where it was stopped:

    DIR/curve-<model>-<i>.json   the calibration before trace i (from 0); the last one is after all runs
    DIR/runs-<model>.jsonl   every run, with each response's first and last token
    DIR/fidelity.csv         a row per model, trace and policy: measured, predicted, error
    DIR/summary.json         error median and worst, share of the pairs of policies in the right order

The traces are shapes of real ones in ../shared/traces beside the repository (TAILSIEVE_TRACES names another folder);
where they are absent, of the synthetic generator. Lengths are scaled to what a core can run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.cli.output import print_table, say, write_csv, write_json
from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.calibrate import calibrate
from tailsieve_verl.replay.calibration import Calibration, load_calibration, pooled, save_calibration
from tailsieve_verl.replay.engine import EngineSpec, Place, ReplicaProcess, cpu_places, start_replicas
from tailsieve_verl.replay.pick import Picked, pick
from tailsieve_verl.replay.policies import place
from tailsieve_verl.replay.predict import predict
from tailsieve_verl.replay.run import TIE, Run, ranking, study, verdicts
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.synthetic import LengthModel, synthetic_trace
from tailsieve_verl.traces.trace import Trace
from tailsieve_verl.workloads.models import ensure_smollm2, ensure_tiny

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("TAILSIEVE_TRACES", ROOT.parent / "shared" / "traces"))

REPLICAS, GROUPS, ROLLOUTS, PROMPT_TOKENS = 2, 16, 4, 32
POLICIES = ("uniform_group", "verl_default", "seer_oracle", "fixed:q=2,m=1")
#: Mean length over the longest allowed: a long tail that is not all cut.
MEAN_SHARE = 0.28
#: A replica can get all but two groups; between the powers of two the CPU's kernels change their tiles.
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64)

#: Two shapes of the curve: SmolLM2's 30 layers, and four wide ones with random weights, where batching pays more.
MODELS: dict[str, Callable[[Path], Path]] = {
    "smollm2": lambda cache: ensure_smollm2(cache / "smollm2"),
    "wide": lambda cache: ensure_tiny(cache / "wide", layers=4, hidden=1024),
}


@dataclass(frozen=True)
class Shape:
    """A trace: a file of SHARED with what to read of it, or the synthetic one that stands in for it."""

    name: str
    file: str
    read: dict[str, Any]
    stand_in: LengthModel

    def trace(self) -> Trace:
        path = SHARED / self.file
        if path.exists():
            return read_trace(path, **self.read)
        say(f"{path} is absent: {self.name} is synthetic.")
        return synthetic_trace(self.stand_in, prompts=60, samples=8, seed=1)


SHAPES = (
    Shape(
        "math-llama3b",
        "lengths_rg_llama3b_math.csv",
        {"source": "all", "checkpoint": "step_400"},
        LengthModel(p50=420, p90=1100, cap=2048, prompt_share=0.2),
    ),
    Shape(
        "riddles-qwq32b",
        "lengths_misguided_attention.csv",
        {"model": "QwQ-32b"},
        LengthModel(p50=1900, p90=5900, cap=16384, prompt_share=0.7),
    ),
    Shape(
        "puzzles-qwen3b",
        "lengths_rg_qwen3b_puzzles.csv.gz",
        {"source": "all", "checkpoint": "step_0"},
        LengthModel(p50=260, p90=700, cap=2048, prompt_share=0.5),
    ),
)


def load_of(shape: Shape, longest: int) -> Picked:
    """16 groups of 4, scaled to the same mean for every trace; what is then above ``longest`` tokens is cut there.

    So every trace takes about as long, and those with a longer tail have more responses at the limit.
    """
    trace = shape.trace()
    scale = MEAN_SHARE * longest / float(trace.tokens.mean())
    return pick(trace.tokens, trace.prompt, groups=GROUPS, rollouts=ROLLOUTS, seed=0, scale=scale, max_tokens=longest)


def run_model(name: str, options: argparse.Namespace, loads: dict[str, Picked]) -> list[dict[str, Any]]:
    """Calibrate before each trace and once at the end, and run everything on this model; a row per trace and policy."""
    cache = ROOT / ".cache" / "models"
    cache.mkdir(parents=True, exist_ok=True)
    spec = EngineSpec(MODELS[name](cache), device="cpu", max_model_len=1024, max_num_seqs=64, clock=options.clock)
    places = [Place(cores=p.cores[:1]) for p in cpu_places(REPLICAS)]
    runs: dict[str, list[Run]] = {}
    calibrations: list[Calibration] = []
    with start_replicas(spec, places) as replicas:
        for i, (trace, load) in enumerate(loads.items()):
            calibrations.append(calibrated(f"{name}-{i}", replicas, options))
            began = time.monotonic()
            runs[trace] = study(
                load.lengths,
                placed(load),
                replicas,
                repeats=options.repeats,
                prompt_tokens=PROMPT_TOKENS,
                log=options.out / f"runs-{name}.jsonl",
                label=f"{name} {trace} {spec}",
                timeouts_s={p: 60 + 20 * seconds for p, seconds in predicted(load, calibrations[-1]).items()},
            )
            say(f"{name} {trace}: {time.monotonic() - began:.0f} s")
        calibrations.append(calibrated(f"{name}-{len(loads)}", replicas, options))
    around = zip(loads.items(), pairwise(calibrations), strict=True)
    return [row for (trace, load), both in around for row in rows_of(name, trace, load, runs[trace], *both)]


def calibrated(name: str, replicas: list[ReplicaProcess], options: argparse.Namespace) -> Calibration:
    """The calibration in the folder, or a new one."""
    path = options.out / f"curve-{name}.json"
    if path.exists():
        found = load_calibration(path)
        if found.complete and found.clock == options.clock:
            return found
    began = time.monotonic()
    result = calibrate(
        replicas,
        batch_sizes=(1, 8, 32, 64) if options.quick else BATCH_SIZES,
        tokens=16 if options.quick else 48,
        repeats=1,
        long_prompt=256,
        model=name,
        on_result=lambda result: save_calibration(path, result),
    )
    say(f"{name}: calibrated in {time.monotonic() - began:.0f} s")
    return result


def placed(load: Picked) -> dict[str, np.ndarray]:
    """The placement of every policy."""
    return {policy: place(policy, load.lengths, load.history, REPLICAS) for policy in POLICIES}


def predicted(load: Picked, calibration: Calibration) -> dict[str, float]:
    """Makespan of every policy, seconds."""
    return {
        policy: float(predict(load.lengths, where, REPLICAS, calibration, prompt_tokens=PROMPT_TOKENS).max())
        for policy, where in placed(load).items()
    }


def rows_of(
    name: str, trace: str, load: Picked, runs: list[Run], before: Calibration, after: Calibration
) -> list[dict[str, Any]]:
    """A row per policy; the ranking of the whole load stands in each."""
    results = verdicts(runs, predicted(load, before))
    around = verdicts(runs, predicted(load, pooled([before, after])))
    right, pairs = ranking(results)
    shares = {v.policy: np.median([run.cpu_share for run in runs if run.policy == v.policy]) for v in results}
    drift = np.median(np.divide(after.curve.seconds_per_token, before.curve.seconds_per_token)) - 1
    return [
        {
            "model": name,
            "trace": trace,
            "policy": v.policy,
            "measured_s": v.measured_s,
            "low_s": v.low_s,
            "high_s": v.high_s,
            "predicted_s": v.predicted_s,
            "error": v.error,
            "error_around": both.error,
            "drift": float(drift),
            "runs": v.runs,
            "cpu_share": float(shares[v.policy]),
            "pairs": pairs,
            "pairs_right": right,
        }
        for v, both in zip(results, around, strict=True)
    ]


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors and ranking over all loads, and by model."""

    def of(part: list[dict[str, Any]]) -> dict[str, Any]:
        errors, around = (np.abs([row[key] for row in part]) for key in ("error", "error_around"))
        loads = {(row["model"], row["trace"]): (row["pairs_right"], row["pairs"]) for row in part}
        right, pairs = (sum(values) for values in zip(*loads.values(), strict=True))
        return {
            "cells": len(part),
            "error_median": float(np.median(errors)),
            "error_worst": float(errors.max()),
            "error_around_median": float(np.median(around)),
            "error_around_worst": float(around.max()),
            "drift_worst": max((row["drift"] for row in part), key=abs),
            "bias": float(np.median([row["error"] for row in part])),
            "pairs": pairs,
            "pairs_right": right,
            "ranking_right": right / pairs if pairs else None,
            "spread_median": float(np.median([(row["high_s"] - row["low_s"]) / row["measured_s"] for row in part])),
            "cpu_share_median": float(np.median([row["cpu_share"] for row in part])),
        }

    models = list(dict.fromkeys(row["model"] for row in rows))
    return {"all": of(rows), **{name: of([row for row in rows if row["model"] == name]) for name in models}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "fidelity")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--longest", type=int, default=320, help="tokens of the longest response")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU time, on a busy machine")
    parser.add_argument("--quick", action="store_true", help="one trace, one repeat, short lengths: does it work?")
    options = parser.parse_args()
    names = options.models.split(",")
    for name in names:
        if name not in MODELS:
            raise UserError(f"unknown model {name!r}; known are {', '.join(MODELS)}.")
    if options.quick:
        options.repeats, options.longest = 1, 48
    options.out.mkdir(parents=True, exist_ok=True)
    loads = {shape.name: load_of(shape, options.longest) for shape in (SHAPES[:1] if options.quick else SHAPES)}
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    for name in names:
        rows += run_model(name, options, loads)
        write_csv(options.out / "fidelity.csv", rows)
        write_json(options.out / "summary.json", summarise(rows))
    summary = summarise(rows)["all"]
    shown = [
        {
            **{key: row[key] for key in ("model", "trace", "policy", "measured_s", "predicted_s")},
            "error": f"{row['error']:+.1%}",
        }
        for row in rows
    ]
    notes = [
        f"Error of the makespan: median {summary['error_median']:.1%}, worst {summary['error_worst']:.1%}.",
        f"With the calibration around the runs: median {summary['error_around_median']:.1%}, worst "
        f"{summary['error_around_worst']:.1%}; drift up to {summary['drift_worst']:+.1%}.",
        f"Order right in {summary['pairs_right']} of {summary['pairs']} pairs that differ by more than {TIE:.0%}.",
        f"Spread of the repeats: median {summary['spread_median']:.1%}. {time.monotonic() - began:.0f} s.",
        f"Written to {options.out}.",
    ]
    print_table(shown, "Simulator against vLLM", notes)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from there")
