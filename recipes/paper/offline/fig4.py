"""Figure 4: step time over (q, m) for weak, real and strong tails on four replicas (2.4, A.5).

    python recipes/paper/offline/fig4.py [--out DIR] [--quick] [--seed N]

One trace with the percentiles of Table A.3 is stretched above its median to P90/P50 = 1.5, 3.547 and 6. Landscapes:

    known       one step's N groups, the q longest (by longest response) isolated: what the paper's oracle sees
    replayed    the pipeline itself: groups unfinished at the cut run in the tail pool of the next step, and the bulk
                pool runs N fresh ones until N - q are done; a group generated again has the lengths it had
    simulated   the same with lengths of their own when generated again, as in a run

Uniform by group is the boundary (0, 0), and verl's own dispatch is given beside it.
"""

from __future__ import annotations

import numpy as np
from offline_common import (
    COLOURS,
    GROUP,
    Options,
    Replayed,
    curve_notes,
    decode_curves,
    mean_spread,
    new_figure,
    parse_options,
    run_steps,
    save,
    seconds,
    start,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.core.decode import replica_times
from tailsieve_verl.core.placement import Placement, TailSieve, UniformGroup, VerlDefault
from tailsieve_verl.simulate.workload import TraceWorkload
from tailsieve_verl.traces.synthetic import LengthModel, synthetic_trace

N, REPLICAS = 64, 4
SCENES = {"weak": 1.5, "real": 3.547, "strong": 6.0}
QS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)
SPLITS = (1, 2, 3)
WAYS = ("known", "replayed", "simulated")
SKIP = 3  # steps until the pipeline runs the steady load of its split
MODEL = "Qwen3.5-35B-A3B"
#: Longest response of the paper's trace (Table A.3); the trace stops there before it is stretched.
LONGEST = 11_800


def known(lengths: np.ndarray, placement: Placement, curve) -> np.ndarray:
    """Seconds of every replica in one step, [N, n] tokens, all lengths known."""
    return replica_times(lengths, placement.place(lengths, REPLICAS), REPLICAS, curve)


def landscape(workload: TraceWorkload, named, steps: int, tick) -> dict:
    """Mean seconds of a step by (way, q, m) for one stream, and of its pools by ("tail" or "bulk", way, q, m)."""
    found = {}
    pools = [workload.lengths(range(t * N, (t + 1) * N), [0] * N, t + 1) for t in range(steps)]
    ranked = [np.argsort(-pool.max(axis=1), kind="stable").tolist() for pool in pools]
    for m in SPLITS:
        for q in QS:
            times = np.array([known(p, TailSieve(r[:q], m), named.curve) for p, r in zip(pools, ranked, strict=True)])
            found["known", q, m] = float(times.max(axis=1).mean())
            found["tail", "known", q, m] = float(times[:, REPLICAS - m :].max(axis=1).mean())
            found["bulk", "known", q, m] = float(times[:, : REPLICAS - m].max(axis=1).mean())
            for way, load in (("replayed", Replayed(workload)), ("simulated", workload)):
                run = run_steps(start(f"fixed:q={q},m={m}", load, N, REPLICAS, named), steps + SKIP)[SKIP:]
                found[way, q, m] = float(seconds(run).mean())
                found["tail", way, q, m] = float(np.mean([step.observation.t_tail_s for step in run]))
                found["bulk", way, q, m] = float(np.mean([step.observation.t_bulk_s for step in run]))
            tick()
    for name, placement in (("group", UniformGroup()), ("verl", VerlDefault())):
        found[name] = float(np.mean([known(pool, placement, named.curve).max() for pool in pools]))
    return found


def run(options: Options) -> None:
    """All scenes, all ways."""
    (named,) = decode_curves([MODEL])
    seeds, steps = options.pick(5, 1), options.pick(50, 4)
    model = LengthModel(p50=1160, p90=4115, cap=LONGEST)
    trace = synthetic_trace(model, prompts=options.pick(2000, 200), samples=2 * GROUP, seed=options.seed)
    rows, points, maps = [], [], {}
    with progress() as bar:
        task = bar.add_task("splits", total=len(SCENES) * seeds * len(QS) * len(SPLITS))
        for scene, ratio in SCENES.items():
            scaled = trace.with_tail(ratio)
            runs = [
                landscape(TraceWorkload(scaled, GROUP, seed=options.seed + s), named, steps, lambda: bar.advance(task))
                for s in range(seeds)
            ]
            maps[scene] = {key: np.array([r[key] for r in runs]) for key in runs[0]}
            for way in WAYS:
                rows.append(_best(scene, ratio, way, maps[scene]))
            for m in SPLITS:
                for q in QS:
                    times = {f"{w}_s": float(maps[scene][w, q, m].mean()) for w in WAYS}
                    points.append({"scene": scene, "m": m, "q": q, **times})
    figure = new_figure(11, 8)
    for axes, (scene, way) in zip(figure.subplots(3, 3).ravel(), [(s, w) for w in WAYS for s in SCENES], strict=True):
        found = maps[scene]
        for m, colour in zip(SPLITS, COLOURS, strict=False):
            means = np.array([found[way, q, m].mean() for q in QS])
            axes.plot(QS, means, color=colour, marker=".", label=f"{REPLICAS - m}:{m}")
            axes.plot(QS[int(means.argmin())], means.min(), color=colour, marker="*", ms=12)
        axes.axhline(found["group"].mean(), color="black", lw=1, label="uniform by group")
        axes.axhline(found["verl"].mean(), color=COLOURS[7], lw=1, ls="--", label="verl's default")
        axes.set(title=f"{scene}, {way}", xlabel="q", ylabel="step, s")
        axes.set_ylim(0.85 * min(found[way, q, m].mean() for q in QS for m in SPLITS), 1.6 * found["group"].mean())
    figure.axes[0].legend(fontsize=7)
    notes = [
        *curve_notes([named]),
        f"N = {N}, n = {GROUP}, R = {REPLICAS}; {seeds} seeds of {steps} steps; mean +- standard deviation over seeds",
        "best q, m: the split with the least mean; over group, over verl: its speed against these two uniform routings",
        "bulk at known best: the bulk pool's time under the split that is best with known lengths",
        "slow split: the least over q at the worst of the three m, over the best",
    ]
    save(options, "fig4", rows, figure, "Figure 4, best split by tail strength", notes, points)


def _best(scene: str, ratio: float, way: str, found: dict) -> dict:
    """The best split of a scene, and what each m gives at its best q."""
    by_m = {m: min(QS, key=lambda q, m=m: found[way, q, m].mean()) for m in SPLITS}
    m = min(SPLITS, key=lambda m: found[way, by_m[m], m].mean())
    known_best = min(((q, m) for q in QS for m in SPLITS), key=lambda split: found["known", *split].mean())
    best = found[way, by_m[m], m]
    slow = max(found[way, by_m[k], k].mean() for k in SPLITS)
    return {
        "scene": scene,
        "P90/P50": ratio,
        "landscape": way,
        "q": by_m[m],
        "m": m,
        "step_s": float(best.mean()),
        "tail_s": float(found["tail", way, by_m[m], m].mean()),
        "bulk_s": float(found["bulk", way, by_m[m], m].mean()),
        "bulk_s_at_known_best": float(found["bulk", way, *known_best].mean()),
        "over_group": mean_spread(found["group"] / best),
        "over_verl": mean_spread(found["verl"] / best),
        "best_q_by_m": ", ".join(str(by_m[k]) for k in SPLITS),
        "slow_split": float(slow / best.mean()),
    }


if __name__ == "__main__":
    run(parse_options(__doc__))
