"""How near the controller comes to the best fixed split where rare responses run away, free of the luck of a seed.

    PYTHONPATH=. python benchmarks/runaway_regret.py [seeds] [replicas] [noise]

The truth is the expected makespan of every fixed split, over pools drawn from the load of tests/core/closed_loop.py
(dense curve, N = 64). A run is judged by the mean expected makespan of the splits it ran in the last 40 of 120 steps,
over that of the best split; the makespans it happened to see are shown beside it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from tailsieve_verl.core.history import Scenarios
from tailsieve_verl.core.predict import Predictor
from tests.core.closed_loop import DENSE, LOADS, N, fixed
from tests.core.test_closed_loop import LAST, controlled, most_switches, starts, worst_window

LOAD = LOADS["runaway"]
POOLS, CHUNK, MOST_Q = 2000, 250, 24
#: Prompts of the truth, far from those of the runs.
FIRST = 10**6


def expected(replicas: int) -> dict[tuple[int, int], float]:
    """Expected makespan of each fixed split, and of uniform."""
    splits = [(0, 0), *((q, m) for m in range(1, replicas) for q in range(1, MOST_Q + 1))]
    total = dict.fromkeys(splits, 0.0)
    for start in range(0, POOLS, CHUNK):
        prompts = range(FIRST + start * N, FIRST + (start + CHUNK) * N)
        runs = (np.array([LOAD.one(p, attempt, 0) for p in prompts]).reshape(CHUNK, N, -1) for attempt in (0, 1))
        model = Predictor(Scenarios(*runs), DENSE, N, replicas)
        for split in splits:
            total[split] += model.split(*split).mean_s * CHUNK / POOLS
    return total


def main(seeds: int, replicas: int, noise: float) -> None:
    truth = expected(replicas)
    best = min(truth, key=lambda split: truth[split])
    print(
        f"R={replicas}, noise {noise}: best split {best}, {truth[best]:.2f} s; uniform {truth[0, 0]:.2f} s", flush=True
    )
    regret, ours, theirs, speed, switches, window = [], [], [], [], 0, 0.0
    for seed in range(1, seeds + 1):
        load = replace(LOAD, seed=seed)
        uniform, fair = (fixed(*split, load, replicas, noise=noise) for split in ((0, 0), best))
        for start in starts(replicas):
            result = controlled(start, load, replicas, noise=noise)
            ran = [(min(q, MOST_Q), m) for q, m in result.splits[-LAST:]]
            regret.append(np.mean([truth[split] for split in ran]) / truth[best])
            ours.append(result.last(LAST))
            theirs.append(fair.last(LAST))
            speed.append(np.mean(uniform.seconds) / np.mean(result.seconds))
            switches, window = max(switches, most_switches(result)), max(window, worst_window(result, uniform))
    print(
        f"expected over the best: mean {np.mean(regret):.3f}, 90 % of runs {np.quantile(regret, 0.9):.3f}, worst "
        f"{max(regret):.3f}; realised {np.mean(ours) / np.mean(theirs):.3f}; most switches in 100 steps {switches}, "
        f"worst 15 steps over uniform {window:.2f}, speed over uniform {np.mean(speed):.2f}"
    )


if __name__ == "__main__":
    seeds, replicas, noise = [*sys.argv[1:], *("10", "8", "0.0")[len(sys.argv) - 1 :]]
    main(int(seeds), int(replicas), float(noise))
