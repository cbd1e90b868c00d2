"""Policies side by side on the demo task: the same model, data and seeds, one run after the other.

The learning rate is zero, so that every policy serves the same model and lengths stay comparable (``--learn`` trains,
and then lengths drift apart within a few steps). Prints, from the runs' own records, step and generation times over the
steps after the first two (start-up and transition), and the length bias. Two replicas on two shared cores are noisy:
read the spread before the medians.

    python examples/cpu_demo/compare.py --steps 8
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from demo import launch, prepare  # the script beside this one

from tailsieve_verl.records.read import read_steps

POLICIES = {
    "uniform_group": ["+tailsieve=uniform_group"],
    "verl_default": [  # request by request over all replicas, as verl deals a batch
        "+tailsieve=fixed", "trainer.v1.tailsieve.q=0", "trainer.v1.tailsieve.m=0",
    ],
    "fixed": ["+tailsieve=fixed", "trainer.v1.tailsieve.q=2", "trainer.v1.tailsieve.m=1"],
    "default": ["+tailsieve=default"],
}  # fmt: skip
SKIPPED_STEPS = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="training steps a run (default: 8)")
    parser.add_argument("--learn", action="store_true", help="train as in the demo")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES))
    args = parser.parse_args()
    rows = []
    for name in args.policies:
        run = prepare(args.steps, f"compare-{name}")
        frozen = [] if args.learn else ["actor_rollout_ref.actor.optim.lr=0"]
        if code := launch(run, *POLICIES[name], *frozen):
            return code
        rows.append((name, [s["trained"] for s in read_steps(run.out)]))
    print(
        f"\n{'policy':<15}{'generation s':>22}{'step s':>20}{'reward':>9}{'length':>9}{'bias mean':>11}{'bias KS':>9}"
    )
    for name, steps in rows:
        later = steps[SKIPPED_STEPS:]
        last = steps[-1]
        print(
            f"{name:<15}{_spread(later, 'generation_s'):>22}{_spread(later, 'step_s'):>20}"
            f"{statistics.mean(s['reward'] for s in later):>9.3f}{statistics.mean(s['length'] for s in later):>9.1f}"
            f"{100 * last['bias/mean']:>10.1f}%{last['bias/ks']:>9.3f}"
        )
    return 0


def _spread(steps: list[dict[str, float]], name: str) -> str:
    values = [step[name] for step in steps]
    return f"{statistics.median(values):.2f} ({min(values):.1f}-{max(values):.1f})"


if __name__ == "__main__":
    sys.exit(main())
