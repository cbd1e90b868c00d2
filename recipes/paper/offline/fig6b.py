"""Figure 6(b): q and m from different starts (4.4).

    python recipes/paper/offline/fig6b.py [--out DIR] [--quick] [--seed N]

The inner loop alone (m held at R/2) from q = 1, N/8 and N/2; the whole controller from those, from uniform (0, 0) and
from a tail-heavy split (N/8, R-1). All see the same stream. The yardstick is the best fixed split in hindsight: for the
inner loop among those with m = R/2, for the controller among all, uniform (verl's default) included.
"""

from __future__ import annotations

import numpy as np
from offline_common import (
    COLOURS,
    GROUP,
    LOADS,
    NamedCurve,
    Options,
    curve_notes,
    decode_curves,
    mean_spread,
    new_figure,
    parse_options,
    run_steps,
    save,
    seconds,
    start,
    synthetic,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.simulate.workload import Workload

N = 64
MODELS = ("Qwen3.5-35B-A3B", "Qwen3-4B")
#: Load, R, and which of the curves: the paper's case first, then two where a split is worth more.
CASES = (("math", 4, 0), ("code", 8, 0), ("code", 8, -1))
QS = (1, 2, 4, 6, 8, 12, 16, 24)
#: A trajectory has arrived when q is within this many groups of its final mean (or an eighth of it).
NEAR = 1.5
Split = tuple[int, int]


def starts(replicas: int) -> dict[str, str]:
    """Policies to run, by label."""
    half = replicas // 2
    inner = {f"inner loop, q0={q}": f"inner_loop:q={q},m={half}" for q in (1, N // 8, N // 2)}
    whole = {f"controller, q0={q}": f"tailsieve:q={q},m={half}" for q in (1, N // 8, N // 2)}
    return {
        **inner,
        **whole,
        "controller, uniform": "tailsieve:q=0,m=0",
        f"controller, m0={replicas - 1}": f"tailsieve:q={N // 8},m={replicas - 1}",
    }


def trajectory(policy: str, load: Workload, replicas: int, named: NamedCurve, steps: int) -> np.ndarray:
    """q, m and seconds of each step, [steps, 3]."""
    done = run_steps(start(policy, load, N, replicas, named), steps)
    splits = [(s.observation.plan.q, s.observation.plan.m if s.observation.plan.q else 0) for s in done]
    return np.column_stack([np.array(splits, dtype=float), seconds(done)])


def arrival(q: np.ndarray, last: int) -> int:
    """First step at which q is near its mean over the last steps."""
    final = q[-last:].mean()
    return int(np.argmax(np.abs(q - final) <= max(NEAR, final / 8))) + 1


def fixed_splits(replicas: int) -> list[Split]:
    """Uniform, and a grid of splits."""
    return [(0, 0), *((q, m) for m in (replicas // 4, replicas // 2, 3 * replicas // 4) for q in QS)]


def hindsight(load: Workload, replicas: int, named: NamedCurve, steps: int, last: int, tick) -> dict[Split, float]:
    """Mean seconds over the last steps of every fixed split, and of uniform."""
    found = {}
    for q, m in fixed_splits(replicas):
        done = run_steps(start(f"fixed:q={q},m={m}", load, N, replicas, named), steps)
        found[q, m] = float(seconds(done)[-last:].mean())
        tick()
    return found


def run(options: Options) -> None:
    """All cases and starts."""
    curves = decode_curves(MODELS)
    seeds, steps, last = options.pick(4, 1), options.pick(80, 8), options.pick(40, 4)
    rows, points = [], []
    figure = new_figure(13, 7.5)
    panels = figure.subplots(3, len(CASES))
    with progress() as bar:
        total = sum(len(starts(r)) + len(fixed_splits(r)) for _, r, _ in CASES) * seeds
        task = bar.add_task("runs", total=total)
        for column, (load, replicas, which) in enumerate(CASES):
            named = curves[which]
            streams = [synthetic(LOADS[load], options.seed + s) for s in range(seeds)]
            fixed = [hindsight(w, replicas, named, steps, last, lambda: bar.advance(task)) for w in streams]
            mean = {split: np.mean([f[split] for f in fixed]) for split in fixed[0]}
            at_half = min((s for s in mean if s[1] == replicas // 2), key=mean.__getitem__)
            best = min(mean, key=mean.__getitem__)
            for number, (label, policy) in enumerate(starts(replicas).items()):
                paths = []
                for workload in streams:
                    paths.append(trajectory(policy, workload, replicas, named, steps))
                    bar.advance(task)
                path = np.array(paths)
                yardstick = at_half if label.startswith("inner") else best
                ratio = path[:, -last:, 2].mean(axis=1) / [f[yardstick] for f in fixed]
                rows.append(
                    {
                        "load": load,
                        "curve": named.name,
                        "R": replicas,
                        "start": label,
                        "q": mean_spread(path[:, -last:, 0].mean(axis=1), 1),
                        "m": mean_spread(path[:, -last:, 1].mean(axis=1), 1),
                        "wanders": float(path[:, -last:, 0].std(axis=1).mean()),
                        "arrived": float(np.mean([arrival(q, last) for q in path[:, :, 0]])),
                        "best_split": str(yardstick),
                        "over_best": mean_spread(ratio),
                        "over_uniform": mean_spread(path[:, -last:, 2].mean(axis=1) / [f[0, 0] for f in fixed]),
                    }
                )
                for step in range(steps):
                    q, m, time = path[:, step].mean(axis=0).tolist()
                    place = {"load": load, "curve": named.name, "R": replicas, "start": label}
                    points.append({**place, "step": step + 1, "q": q, "m": m, "s": time})
                inner = label.startswith("inner")
                for axes, what in ((panels[0 if inner else 1, column], 0), (panels[2, column], 1)):
                    if what == 0 or not inner:
                        axes.step(
                            range(1, steps + 1), path[:, :, what].mean(axis=0), color=COLOURS[number], label=label
                        )
            for line, title in enumerate(("q, inner loop alone", "q, controller", "m, controller")):
                panels[line, column].set(
                    title=f"{title}: {load}, {named.name}, R={replicas}", xlabel="step", ylim=(-0.5, None)
                )
    for axes in panels[:, 0]:
        axes.legend(fontsize=7)
    notes = [
        *curve_notes(curves),
        f"N = {N}, n = {GROUP}; {seeds} seeds, {steps} steps; q, m and times over the last {last}; "
        "mean +- standard deviation over seeds",
        "wanders: standard deviation of q over those steps; arrived: first step with q near its final mean",
        "over best, over uniform: step time over the best fixed split's in hindsight, and over verl's default",
    ]
    save(options, "fig6b", rows, figure, "Figure 6(b), convergence", notes, points)


if __name__ == "__main__":
    run(parse_options(__doc__))
