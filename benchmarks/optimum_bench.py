"""Exact optimum, best-k isolation and lower bounds on synthetic rollouts drawn to Table A.3 of the paper.

    python benchmarks/optimum_bench.py [--groups 100] [--size 100] [--seed 0]

Prints, per decode curve: the relative gap of best-k isolation (paper A.4: within 4 % on 100 of 100, within 1 % on 72),
the time and retained states of the exact solver, the gap of the lower bound, and the throughput of the cost model.
"""

from __future__ import annotations

import argparse
import platform
import time

import numpy as np

from tailsieve_verl.core import (
    DecodeCurve,
    best_k_isolation,
    finish_times,
    makespan_lower_bound,
    optimal_split,
    replica_time,
    replica_times,
)

# Table A.3, real workload: P50, P90 and cap in tokens; log-normal, whose 90th percentile lies 1.2816 sigma up.
MEDIAN, P90, CAP = 1160.0, 4115.0, 11800.0
SIGMA = np.log(P90 / MEDIAN) / 1.2815515655

# Three slopes (seconds per token): a mixture-of-experts model whose curve rises steeply and flattens, a dense small
# model that hardly slows down, and one whose time per token doubles within eight requests.
CURVES = {
    "mixture of experts": DecodeCurve(
        [1, 2, 4, 8, 16, 32, 64, 128], [5.5e-3, 6.2e-3, 7.2e-3, 9e-3, 11.5e-3, 14e-3, 17e-3, 21e-3]
    ),
    "dense, flat": DecodeCurve([1, 128], [6e-3, 18.7e-3]),
    "dense, steep": DecodeCurve([1, 128], [6e-3, 107.6e-3]),
}


def draw(rng: np.random.Generator, size: int) -> np.ndarray:
    """Whole lengths of one rollout group, [size]."""
    return np.minimum(np.rint(MEDIAN * np.exp(SIGMA * rng.standard_normal(size))), CAP)


def optimum(groups: int, size: int, seed: int) -> None:
    """Gaps and times over `groups` rollouts of `size` requests."""
    for name, curve in CURVES.items():
        rng = np.random.default_rng(seed)
        gaps, bounds, wall, cpu, states, proven = [], [], [], [], [], 0
        for _ in range(groups):
            lengths = draw(rng, size)
            start, start_cpu = time.perf_counter(), time.process_time()
            best = optimal_split(lengths, curve)
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - start_cpu)
            states.append(best.states)
            proven += best.proven
            gaps.append(best_k_isolation(lengths, curve)[1] / best.makespan - 1)
            bounds.append(makespan_lower_bound(lengths, 2, curve) / best.makespan)
        share = np.mean(np.array(gaps) <= 0.01)
        print(f"{name}: proven {proven}/{groups}; states at most {max(states)}")
        print(f"  best-k gap: max {max(gaps):.2%}, median {np.median(gaps):.2%}, within 1 % on {share:.0%}")
        print(f"  solver: median {np.median(wall) * 1e3:.0f} ms, max {max(wall):.2f} s (processor {max(cpu):.2f} s)")
        print(f"  lower bound / optimum: median {np.median(bounds):.3f}, min {min(bounds):.3f}")


def throughput(seed: int) -> None:
    """Requests a second through the cost model."""
    rng, curve = np.random.default_rng(seed), CURVES["mixture of experts"]
    lengths, assignment = draw(rng, 1_000_000), rng.integers(0, 8, 1_000_000)
    calls = {
        "replica_time": lambda: replica_time(lengths, curve),
        "finish_times": lambda: finish_times(lengths, curve),
        "replica_times, 8 replicas": lambda: replica_times(lengths, assignment, 8, curve),
        "finish_times, limit 256": lambda: finish_times(lengths, curve, max_num_seqs=256),
    }
    for name, call in calls.items():
        times = []
        for _ in range(3):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        print(f"{name}: {lengths.size / np.median(times) / 1e6:.1f} million requests/s")
    small, where = lengths[:512], assignment[:512]
    start = time.perf_counter()
    for _ in range(1000):
        replica_times(small, where, 8, curve)
    print(f"replica_times of 512 requests: {(time.perf_counter() - start) * 1e3:.0f} us")
    for size in (512, 1024, 100_000):
        start = time.perf_counter()
        makespan_lower_bound(lengths[:size], 8, curve)
        print(f"makespan_lower_bound of {size} requests, 8 replicas: {(time.perf_counter() - start) * 1e3:.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}")
    optimum(options.groups, options.size, options.seed)
    throughput(options.seed)
