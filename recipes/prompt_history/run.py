"""Placement by prompt history against the paper's policy and uniform dispatch, simulated, paired by seed.

    python recipes/prompt_history/run.py [--quick] [--seeds K] [--loads NAME ...] [--out DIR]

Every load is run under every policy on the same streams. What is measured begins with the second pass over the data,
on traces with the second checkpoint. Writes, after each load and R, so that it goes on where it was stopped:

    runs.csv      one row per load, R, policy and seed: step time, bias, prediction error, steps placed by history
    summary.csv   gains over verl's default dispatch and over the cutoff policy, with 95 % intervals over seeds
    gains.png     the same as a picture
    bias.csv      shift of mean, p99 and truncated share: as measured, and as the run itself would have logged it
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from loads import CASES, Case, trace_cases

from tailsieve_verl.cli.output import print_table, progress, write_csv, write_whole
from tailsieve_verl.core.bias import length_bias
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.simulate.costs import SHAPES
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.study import interval

POLICIES = ["uniform_group", "verl_default", "paper", "tailsieve", "history", "history:history_q=1", "auto"]
#: Standard deviation of the log of a step's speed.
NOISE = 0.1
KEYS = ("load", "R", "policy", "seed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, three loads: a minute")
    parser.add_argument("--seeds", type=int, default=6, help="streams of each load (default: 6)")
    parser.add_argument("--loads", nargs="*", help="only loads whose names contain one of these")
    parser.add_argument("--replicas", nargs="*", type=int, help="only these R")
    parser.add_argument("--policies", nargs="*", default=POLICIES, help="as in tailsieve simulate --policy")
    parser.add_argument("--curve", default="dense", choices=list(SHAPES), help="shipped decode curve")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    cases = [*CASES, *trace_cases()]
    if args.quick:
        args.seeds, args.loads = 1, args.loads or ["persistent", "weak tail", "chance"]
        cases = [replace(case, replicas=case.replicas[:1]) for case in cases]
    cases = [c for c in cases if not args.loads or any(word in c.name for word in args.loads)]
    path = args.out / "runs.csv"
    rows = _read(path)
    done = {tuple(str(row[k]) for k in KEYS) for row in rows}
    todo = [
        (case, replicas, policy, seed)
        for case in cases
        for replicas in case.replicas
        if not args.replicas or replicas in args.replicas
        for seed in range(args.seeds)
        for policy in args.policies
        if (case.name, str(replicas), policy, str(seed)) not in done
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    with progress() as bar:
        task = bar.add_task("simulating", total=len(todo))
        for i, (case, replicas, policy, seed) in enumerate(todo):
            bar.update(task, description=f"{case.name} R={replicas} {policy}")
            rows.append(one(case, replicas, policy, seed, EngineCosts(SHAPES[args.curve])))
            bar.advance(task)
            if i + 1 == len(todo) or todo[i + 1][:2] != (case, replicas):
                write_csv(path, rows)
    report(args.out, rows)


def one(case: Case, replicas: int, policy: str, seed: int, costs: EngineCosts) -> dict[str, Any]:
    """A policy on a stream."""
    load = case.workload(seed)
    chosen, placement, _ = parse_policy(policy).build(case.n_groups, replicas)
    run = Rollout(chosen, load, Machine(replicas, costs, NOISE, seed), placement, records=True)
    monitor = LengthMonitor(load.cap)
    steps = []
    for number in range(1, case.steps + 1):
        step = run.step(number)
        steps.append(step)
        if number > case.skip:
            monitor.add(step.observation)
    kept = steps[case.skip :]
    consumed = np.concatenate([s.lengths.ravel() for s in kept])
    first = np.concatenate(
        [load.lengths(s.prompts.tolist(), [0] * s.prompts.size, s.observation.plan.step).ravel() for s in kept]
    )
    true, logged = length_bias(consumed, first, None, load.cap), monitor.bias()
    placed = [s for s in kept if s.observation.plan.by_history]
    errors = [s.decision.prediction_error for s in placed if s.decision.prediction_error is not None]
    assert logged is not None
    return {
        "load": case.name,
        "R": replicas,
        "policy": policy,
        "seed": seed,
        "step_s": float(np.mean([s.observation.generation_s for s in kept])),
        "placed": len(placed) / len(kept),
        "q": float(np.mean([s.observation.plan.counts.tail for s in kept])),
        "error": float(np.mean(errors)) if errors else "",
        "abs_error": float(np.mean(np.abs(errors))) if errors else "",
        **{f"bias_{name}": getattr(true, name) for name in ("mean", "p99", "truncated")},
        **{f"logged_{name}": getattr(logged, name) for name in ("mean", "p99", "truncated")},
    }


def report(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Summaries over seeds."""
    table: dict[tuple[str, int, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        table.setdefault((row["load"], int(row["R"]), row["policy"]), {})[int(row["seed"])] = row
    summary, bias = [], []
    for (load, replicas, policy), mine in table.items():
        line: dict[str, Any] = {"load": load, "R": replicas, "policy": policy, "seeds": len(mine)}
        for name, base in (("group", "uniform_group"), ("verl", "verl_default"), ("cutoff", "tailsieve")):
            theirs = table.get((load, replicas, base), {})
            both = [s for s in mine if s in theirs]
            if both:
                found = interval((float(theirs[s]["step_s"]) / float(mine[s]["step_s"]) for s in both), log=True)
                line |= {f"over_{name}": found.mean, f"over_{name}_low": found.low, f"over_{name}_high": found.high}
        line["placed"] = float(np.mean([float(r["placed"]) for r in mine.values()]))
        for name in ("error", "abs_error"):
            known = [float(r[name]) for r in mine.values() if r[name] not in ("", None)]
            line[name] = float(np.mean(known)) if known else ""
        summary.append(line)
        audit: dict[str, Any] = {"load": load, "R": replicas, "policy": policy}
        for kind in ("bias", "logged"):
            for name in ("mean", "p99", "truncated"):
                found = interval(float(r[f"{kind}_{name}"]) for r in mine.values())
                audit |= {f"{kind}_{name}": found.mean, f"{kind}_{name}_half": (found.high - found.low) / 2}
        bias.append(audit)
    write_csv(out / "summary.csv", summary)
    write_csv(out / "bias.csv", bias)
    write_whole(out / "gains.png", lambda name: _plot(name, summary))
    print_table([_line(s, b) for s, b in zip(summary, bias, strict=True)], "gains over, and bias")


def _line(found: dict[str, Any], bias: dict[str, Any]) -> dict[str, Any]:
    line = {key: found[key] for key in ("load", "R", "policy")}
    for name in ("group", "verl", "cutoff"):
        mean = found.get(f"over_{name}")
        half = None if mean is None else (found[f"over_{name}_high"] - found[f"over_{name}_low"]) / 2
        line[f"vs {name}"] = "" if mean is None else f"{mean:.3f} ±{half:.3f}"
    line["placed"] = f"{found['placed']:.0%}"
    return line | {"mean": f"{bias['bias_mean']:+.1%}", "truncated": f"{bias['bias_truncated']:+.2%}"}


def _plot(name: str, summary: Sequence[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    shown = [p for p in dict.fromkeys(s["policy"] for s in summary) if p not in ("uniform_group", "verl_default")]
    cells = list(dict.fromkeys((s["load"], s["R"]) for s in summary))
    figure = Figure(figsize=(9, 1.2 + 0.42 * len(cells)), layout="constrained")
    axes = figure.subplots()
    for k, policy in enumerate(shown):
        mine = {(s["load"], s["R"]): s for s in summary if s["policy"] == policy and "over_verl" in s}
        at = [i for i, cell in enumerate(cells) if cell in mine]
        gain = np.array([mine[cells[i]]["over_verl"] for i in at])
        ends = np.array([(mine[cells[i]]["over_verl_low"], mine[cells[i]]["over_verl_high"]) for i in at])
        axes.errorbar(
            gain,
            np.array(at) + 0.16 * (k - (len(shown) - 1) / 2),
            xerr=np.nan_to_num(np.abs(ends.T - gain)),
            fmt="o",
            markersize=4,
            capsize=2,
            label=policy,
        )
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(cells)), [f"{load}, R={replicas}" for load, replicas in cells])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks([0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0], ["0.9", "1", "1.1", "1.2", "1.5", "2", "3", "4"])
    axes.minorticks_off()
    axes.set_xlabel("speed over verl's default dispatch (95 % interval over seeds)")
    axes.legend(fontsize=8)
    figure.savefig(name, dpi=150)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
