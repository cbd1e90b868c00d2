"""How fast the simulator is: engines alone, whole steps under fixed policies, a run under the controller, a huge step.

Requests per second of processor time on one core, median and range over repeats; the first call (it compiles) is left
out.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts, simulate_replicas
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

REPEATS = 5
N, ROLLOUTS, REPLICAS, STEPS = 64, 8, 8, 30


def timed(job: Callable[[], int]) -> list[float]:
    """Processor seconds of each repeat."""
    job()
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        job()
        found.append(time.process_time() - start)
    return found


def report(name: str, requests: int, seconds: list[float]) -> None:
    rates = sorted(requests / s / 1e6 for s in seconds)
    middle = statistics.median(seconds)
    print(f"| {name} | {statistics.median(rates):.2f} ({rates[0]:.2f}-{rates[-1]:.2f}) | {middle:.3f} |", flush=True)


def engines(count: int, replicas: int, costs: EngineCosts) -> Callable[[], int]:
    lengths = LengthModel().draw(np.random.default_rng(0), np.random.default_rng(1).normal(size=count // 8), 8).ravel()
    where = np.arange(lengths.size) % replicas
    return lambda: simulate_replicas(lengths, where, replicas, costs, prompt_tokens=np.full(count, 200)).finish.size


def rollout(policy: str, n_groups: int, rollouts: int, replicas: int, steps: int) -> Callable[[], int]:
    workload = SyntheticWorkload(LengthModel(), rollouts)
    workload.lengths(range(n_groups * (steps + 2)), [0] * (n_groups * (steps + 2)), 1)  # lengths are drawn beforehand

    def job() -> int:
        built, placement, records = parse_policy(policy).build(n_groups, replicas)
        run = Rollout(built, workload, Machine(replicas, EngineCosts(DENSE)), placement, records)
        return sum(run.step(number).lengths.size for number in range(1, steps + 1))

    return job


def main() -> None:
    print("| | million requests a second | seconds |\n|---|---|---|")
    for name, costs in (
        ("engines, closed form", EngineCosts(DENSE)),
        ("engines, context and prefill", EngineCosts(DENSE, 1e-9, 1e-6)),
        ("engines, 32 at once", EngineCosts(DENSE, max_num_seqs=32)),
        ("engines, KV cache of 100,000 tokens", EngineCosts(DENSE, kv_tokens=100_000)),
    ):
        report(f"{name}: 100,000 requests, R = 1024", 100_000, timed(engines(100_000, 1024, costs)))
    for policy in ("verl_default", "fixed", "tailsieve"):
        seconds = timed(rollout(policy, N, ROLLOUTS, REPLICAS, STEPS))
        report(f"{STEPS} steps, `{policy}`, N = {N}, n = {ROLLOUTS}, R = {REPLICAS}", N * ROLLOUTS * STEPS, seconds)
    report("a step, `fixed`, N = 12,500, n = 8, R = 1024", 200_000, timed(rollout("fixed", 12_500, 8, 1024, 2)))
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
