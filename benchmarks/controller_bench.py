"""What a decision costs: `observe` + `plan` of the controller, and its memory.

    python benchmarks/controller_bench.py

N = 64 on R = 8 runs a closed loop; N = 100,000 on R = 1024 replays uniform and split steps with synthetic records.
Goals: 2 ms and 250 ms a step (limits 50 ms and 5 s), 200 MB. Records are built outside the measured time.
"""

from __future__ import annotations

import json
import platform
import time
import tracemalloc

import numpy as np

from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.decode import DecodeCurve, finish_times
from tailsieve_verl.core.plan import GroupRecord, StepObservation, StepPlan

CURVE = DecodeCurve([1, 8, 32, 128, 512, 1024], [0.006, 0.007, 0.0115, 0.03, 0.105, 0.2])
SESSIONS = 8


def observation(plan: StepPlan, level: np.ndarray, first: int, rng: np.random.Generator) -> StepObservation:
    """A step with log-normal lengths; tail groups are long, and the slowest fresh groups are cut."""
    counts, replicas = plan.counts, plan.replicas
    must = counts.tail + counts.residual
    total = must + counts.fresh
    mean = np.concatenate((np.full(must, 8.3), level[: counts.fresh]))
    tokens = np.clip(np.exp(mean[:, None] + rng.normal(0, 0.45, (total, SESSIONS))), 1, 16_384).round()
    slot = np.arange(total * SESSIONS).reshape(total, SESSIONS)
    bulk = replicas - plan.m
    where = slot % bulk
    if counts.tail:
        where[: counts.tail] = bulk + slot[: counts.tail] % plan.m
    ends = np.zeros(total * SESSIONS)
    order = np.argsort(where.ravel(), kind="stable")
    for part in np.split(order, np.cumsum(np.bincount(where.ravel(), minlength=replicas))[:-1]):
        if part.size:
            ends[part] = finish_times(tokens.ravel()[part], CURVE)
    ends = ends.reshape(total, SESSIONS)
    done = ends.max(axis=1)
    fresh = np.argsort(done[must:], kind="stable") + must
    kept, stragglers = fresh[: counts.fresh_needed], set(fresh[counts.fresh_needed :].tolist())
    cut_s = float(max(done[kept].max(), done[counts.tail : must].max(initial=0.0)))
    names = np.arange(first, first + total).tolist()
    groups = []
    for i in range(total):
        cut = i in stragglers
        share = np.minimum(1.0, cut_s / ends[i]) if cut else np.ones(SESSIONS)
        groups.append(
            GroupRecord(
                prompt=names[i],
                key=f"deepscaler/train/{names[i]}",
                route="tail" if i < counts.tail else "residual" if i < must else "fresh",
                status="cut" if cut else "trained",
                replicas=tuple(where[i].tolist()),
                started_s=(0.0,) * SESSIONS,
                finished_s=tuple(np.minimum(ends[i], cut_s).tolist() if cut else ends[i].tolist()),
                tokens=tuple(int(t) for t in tokens[i] * share),
                complete=tuple((share >= 1.0).tolist()),
                generated_s=None if cut else float(done[i]),
            )
        )
    tail_s = float(done[: counts.tail].max()) if counts.tail else None
    return StepObservation(plan, tail_s, cut_s, cut_s, 0.0, tuple(groups))


def measure(n_groups: int, replicas: int, steps: int) -> None:
    """Print the spread of decision times over a run."""
    rng = np.random.default_rng(0)
    controller = Controller(ControllerConfig(max(1, n_groups // 8), replicas // 2), n_groups, replicas)
    seconds, used, carried = [], [], 0
    for step in range(1, steps + 1):
        plan = controller.plan(step=step, carried=carried)
        carried = plan.counts.left_over
        step_facts = observation(plan, rng.normal(7.0, 0.8, plan.counts.fresh), step * 2 * n_groups, rng)
        start, cpu = time.perf_counter(), time.process_time()
        controller.observe(step_facts)
        controller.plan(step=step + 1, carried=carried)
        seconds.append(time.perf_counter() - start)
        used.append(time.process_time() - cpu)
    tracemalloc.start()
    controller.observe(step_facts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    wall, cpu_ms = 1e3 * np.array(seconds), 1e3 * np.array(used)
    print(
        f"N={n_groups:>6} R={replicas:>4}: median {np.median(wall):8.1f} ms, p90 {np.quantile(wall, 0.9):8.1f}, "
        f"max {wall.max():8.1f} over {steps} steps (CPU median {np.median(cpu_ms):.1f} ms); peak "
        f"{peak / 2**20:.0f} MiB; state {len(json.dumps(controller.state_dict())) / 2**10:.0f} KiB; "
        f"now at q={controller.q} m={controller.m}"
    )


if __name__ == "__main__":
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    measure(64, 8, 60)
    measure(100_000, 1024, 4)
