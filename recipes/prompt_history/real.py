"""Real verl on the CPU: the demo task over several passes, placed by history, by the cutoff, and dealt uniformly.

    python recipes/prompt_history/real.py [--repeats K] [--epochs E]      # on a machine with nothing else to do

SmolLM2-135M, two vLLM replicas, 48 prompts in batches of 8: six steps a pass. The policy is not updated: on two cores
an update takes three quarters of a step, and what is measured is generation. Policies take turns, so that a change of
the machine's speed meets all of them. What is compared is the generation time of the same steps from the second pass
on (its first step left out, in which history is still learning that the prompts are known), summed over a run and
paired by repeat. Writes results/real.csv (one row per policy and repeat) and prints the ratios; a run that is there is
kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "cpu_demo"))

from demo import CACHE, launch

from tailsieve_verl.cli.output import print_table, write_csv
from tailsieve_verl.records.read import read_steps
from tailsieve_verl.simulate.study import interval
from tailsieve_verl.workloads import counting
from tailsieve_verl.workloads.cpu_run import CpuRun
from tailsieve_verl.workloads.models import ensure_smollm2

HERE = Path(__file__).resolve().parent
OURS = "trainer.v1.tailsieve"
POLICIES = {
    "verl_default": ["+tailsieve=fixed", f"{OURS}.q=0", f"{OURS}.m=0"],
    "uniform_group": ["+tailsieve=uniform_group"],
    "cutoff": ["+tailsieve=default", f"{OURS}.q=1"],
    "history": ["+tailsieve=history"],
    "history_q1": ["+tailsieve=history", f"{OURS}.history_q=1"],
    "auto": ["+tailsieve=auto"],
}
#: No update of the actor, and no second look at its probabilities.
FROZEN = [
    "trainer.critic_warmup=1000", "algorithm.rollout_correction.bypass_mode=True",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
]  # fmt: skip
PROMPTS, N = 48, 8
#: Longest answer: the counting task's, in SmolLM2's tokens.
LIMIT = 160


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    rows = []
    for repeat in range(args.repeats):
        for policy in args.policies:
            folder = CACHE / "runs" / "prompt_history" / f"{policy}-{repeat}"
            steps = args.epochs * PROMPTS // N
            if not _there(folder, steps) and run_one(folder, policy, steps, repeat):
                print(f"real: {policy}, repeat {repeat} failed and is left out", file=sys.stderr)
                continue
            rows.append(row(folder, policy, repeat))
    if not rows:
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    write_csv(args.out / "real.csv", rows)
    print_table([line(policy, rows) for policy in args.policies], "generation time from the second pass on")
    return 0


def _there(folder: Path, steps: int) -> bool:
    return (folder / "tailsieve" / "steps.jsonl").is_file() and len(read_steps(folder)) == steps


def run_one(folder: Path, policy: str, steps: int, repeat: int) -> int:
    """One training run; returns its exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    model, data = CACHE / "models" / "smollm2", CACHE / "data" / "prompt_history"
    ensure_smollm2(model)
    counting.write(data, train=PROMPTS, val=8, seed=0)
    run = CpuRun(model=model, data=data, out=folder, n_groups=N, steps=steps, max_response=LIMIT)
    return launch(run, *POLICIES[policy], *FROZEN, f"data.seed={repeat}")


def row(folder: Path, policy: str, repeat: int) -> dict[str, Any]:
    """What a run's record says of the measured steps."""
    kept = [s for s in read_steps(folder) if s["step"] > PROMPTS // N + 1]
    groups = [g for s in kept for g in s["groups"] if g["status"] == "trained"]
    return {
        "policy": policy,
        "repeat": repeat,
        "steps": len(kept),
        "generation_s": float(sum(s["metrics"]["generation_s"] for s in kept)),
        "placed": float(np.mean([bool(s["plan"].get("by_history")) for s in kept])),
        "tokens": float(np.mean([t for g in groups for t in g["tokens"]])),
        "error": float(np.mean([s["metrics"].get("prediction_error") or np.nan for s in kept])),
    }


def line(policy: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A policy's gains over the others' runs of the same repeat."""
    mine = {r["repeat"]: r for r in rows if r["policy"] == policy}
    found: dict[str, Any] = {
        "policy": policy,
        "s": " ".join(f"{r['generation_s']:.1f}" for r in mine.values()),
        "tokens": " ".join(f"{r['tokens']:.0f}" for r in mine.values()),
        "placed": " ".join(f"{r['placed']:.0%}" for r in mine.values()),
    }
    for base in ("uniform_group", "verl_default", "cutoff"):
        theirs = {r["repeat"]: r for r in rows if r["policy"] == base}
        ratios = [theirs[k]["generation_s"] / mine[k]["generation_s"] for k in mine if k in theirs]
        found[f"vs {base}"] = str(interval(ratios, log=True)) if ratios else ""
    return found


if __name__ == "__main__":
    sys.exit(main())
