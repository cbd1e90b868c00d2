"""What the record costs a step: time to write it over the time of the step, in one run, and megabytes a step.

The step is simulated: paper-like lengths (median 1160, P90 4115 tokens), N groups of 8 on R replicas of the shipped
dense curve, tail pool of R/4. Its generation time stands for the step's, which is longer by the update: the ratio is an
upper bound. Measured is all that `RunRecord` does at the end of a step (two lines, encoded, written, closed) on this
machine's disk; beside it the hooks of the built-in callbacks.

    python benchmarks/record_bench.py
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tailsieve_verl.callbacks import Callback, EarlyWarning, JsonlRecorder, PrometheusExporter, RunInfo
from tailsieve_verl.callbacks.runner import CallbackRunner, names_of
from tailsieve_verl.core.metrics import step_metrics
from tailsieve_verl.core.plan import Decision, StepObservation
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.guarded import GuardedPolicy
from tailsieve_verl.integration.record import RunRecord
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

SESSIONS, ROUNDS = 8, 9
#: N and R: a small run, 10,000 requests, and as large as the record is bounded for.
SIZES = ((64, 4), (1_250, 32), (100_000, 1_024))


class Facts(NamedTuple):
    """As the replay buffer's, which needs verl."""

    prompt_tokens: list[int]
    response_tokens: list[int]
    min_version: int
    max_version: int


def simulated(n_groups: int, replicas: int) -> tuple[StepObservation, Decision]:
    """The second step of a run, the first with a tail pool."""
    policy = FixedPolicy(PolicyContext(n_groups, replicas), n_groups // 8, replicas // 4)
    rollout = Rollout(
        policy, SyntheticWorkload(LengthModel(), SESSIONS), Machine(replicas, EngineCosts(DENSE), noise=0.02)
    )
    rollout.step(1)
    step = rollout.step(2)
    return step.observation, step.decision


def seconds(call: Callable[[], None], rounds: int = ROUNDS) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)


def bench(n_groups: int, replicas: int, folder: Path) -> None:
    observation, decision = simulated(n_groups, replicas)
    trained = [g for g in observation.groups if g.status == "trained"]
    batch = {g.prompt: Facts([100] * SESSIONS, list(g.tokens), 1, 1) for g in trained}
    metrics = step_metrics(observation, decision, carried_next=n_groups // 8)
    timings = {f"timing_s/{i}": i / 7 for i in range(40)}  # verl logs about that many
    record = RunRecord(folder / str(n_groups))

    def write() -> None:
        record.step(observation, decision, batch=batch, metrics=metrics)
        record.trained(2, {**metrics, **timings})

    times = seconds(write)
    size = record.path.stat().st_size / ROUNDS / 1e6
    cost, step_s = statistics.median(times), observation.generation_s
    print(
        f"{n_groups * SESSIONS:>9}{replicas:>6}{step_s:>10.1f}{1e3 * cost:>10.2f} "
        f"({1e3 * times[0]:.2f}-{1e3 * times[-1]:.2f}){100 * cost / step_s:>12.4f} %{size:>10.2f}"
    )
    hooks = [JsonlRecorder("hooks.jsonl"), PrometheusExporter(port=0), EarlyWarning(patience=1_000)]
    for callbacks in ([], [Callback()], hooks):
        bench_hooks(callbacks, observation, metrics, step_s, folder)


def bench_hooks(
    callbacks: list[Callback], observation: StepObservation, metrics: dict[str, float], step_s: float, folder: Path
) -> None:
    plan = observation.plan
    policy = GuardedPolicy(
        FixedPolicy(PolicyContext(plan.n_groups, plan.replicas), plan.q, plan.m), callbacks=names_of(callbacks)
    )
    runner = CallbackRunner(callbacks, policy)
    runner.start(RunInfo(plan.n_groups, plan.replicas, SESSIONS, str(folder), 1, 9))

    def step() -> None:
        runner.at_step(2)
        runner.emit("on_plan", plan)
        runner.emit("on_dispatch", plan, ())
        runner.emit("on_step_observed", observation)
        runner.emit_decision(policy.observe(observation), policy.amend)
        runner.emit("on_step_end", 2, metrics)

    times = seconds(step)
    runner.end(None)
    cost = statistics.median(times)
    kinds = ", ".join(type(c).__name__ for c in callbacks) or "none"
    print(
        f"{'':>9}{'':>6}  hooks of {kinds}: {1e3 * cost:.2f} ms ({1e3 * times[0]:.2f}-{1e3 * times[-1]:.2f}), "
        f"{100 * cost / step_s:.4f} %"
    )


def main() -> None:
    print(f"record: median of {ROUNDS} writes (least-largest), Python {platform.python_version()}")
    print(f"{'requests':>9}{'R':>6}{'step, s':>10}{'record, ms':>20}{'of the step':>14}{'MB/step':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for n_groups, replicas in SIZES:
            bench(n_groups, replicas, Path(folder))


if __name__ == "__main__":
    main()
