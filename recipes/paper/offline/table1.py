"""Table 1: routing alone, speed-up over uniform group routing at N = 64 (4.2, A.2).

    python recipes/paper/offline/table1.py [--out DIR] [--quick] [--seed N]

Each load comes twice: with the truncated responses the prompt's doing, and with truncation by chance, which a second
generation mostly does not repeat. "lengths replayed" repeats them: what it gains less is re-rolling, not routing.
"""

from __future__ import annotations

import numpy as np
from offline_common import (
    COLOURS,
    GROUP,
    LOADS,
    Options,
    curve_notes,
    decode_curves,
    new_figure,
    parse_options,
    save,
)
from offline_runs import BOUND_ROW, NOISE, Cell, compare, pivot, runs_per_seed

from tailsieve_verl.cli.output import print_table, progress

N = 64
REPLICAS = (4, 8)
MODELS = ("Qwen3-4B", "Qwen3.5-35B-A3B")


def splits(replicas: int) -> list[tuple[int, int]]:
    """Fixed splits whose best one is a row."""
    return [(q, m) for m in (replicas // 4, replicas // 2, 3 * replicas // 4) for q in (2, 4, 8, 16)]


def run(options: Options) -> None:
    """All loads, curves and R."""
    curves = decode_curves(MODELS)
    seeds = range(options.seed, options.seed + options.pick(3, 1))
    steps, skip = options.pick(50, 6), options.pick(15, 2)
    cells = [
        Cell(load, model, named, N, replicas, steps, skip)
        for load, model in LOADS.items()
        for named in curves
        for replicas in REPLICAS
    ]
    rows = []
    with progress() as bar:
        total = sum(runs_per_seed(True, splits(cell.replicas)) for cell in cells) * len(seeds)
        task = bar.add_task("runs", total=total)
        for cell in cells:
            bar.update(task, description=f"{cell.load}, {cell.label}")
            rows += compare(
                cell,
                seeds,
                lambda: bar.advance(task),
                replay=True,
                splits=splits(cell.replicas),
                bounds=options.pick(4, 1),
            )
    loads = list(LOADS)
    figure = new_figure(13, 7)
    names = [row["policy"] for row in rows if row["load"] == loads[0] and row["policy"] != BOUND_ROW]
    names = list(dict.fromkeys(names))
    places = [(cell.named.name, cell.replicas) for cell in cells if cell.load == loads[0]]
    for axes, load in zip(figure.subplots(1, len(loads), sharey=True), loads, strict=True):
        for k, (curve, replicas) in enumerate(places):
            mine = {
                row["policy"]: row for row in rows if (row["load"], row["curve"], row["R"]) == (load, curve, replicas)
            }
            at = np.arange(len(names)) + 0.2 * (k - (len(places) - 1) / 2)
            axes.barh(
                at,
                [mine[name]["over_group"] - 1 for name in names],
                0.18,
                left=1,
                xerr=[mine[name]["over_group_sd"] for name in names],
                color=COLOURS[k],
                label=f"{curve}, R={replicas}",
            )
            axes.axvline(mine[BOUND_ROW]["over_group"], color=COLOURS[k], ls=":", lw=1)
        axes.axvline(1, color="black", lw=0.8)
        axes.set(title=load, xlabel="speed over uniform by group")
    figure.axes[0].set_yticks(range(len(names)), names)
    figure.axes[0].invert_yaxis()
    figure.axes[-1].legend(fontsize=7)
    for load in loads[:-1]:
        print_table(pivot([row for row in rows if row["load"] == load], ("curve", "R")), f"Table 1, {load}")
    notes = [
        *curve_notes(curves),
        f"N = {N}, n = {GROUP}; steps {skip + 1} to {steps}, {len(seeds)} seeds: mean +- standard deviation; "
        f"step times scatter by {NOISE:.0%}; dotted in the picture: the lower bound",
        "a policy beyond the lower bound trained on shorter lengths than uniform did (column mean_bias of the CSV)",
    ]
    shown = pivot([row for row in rows if row["load"] == loads[-1]], ("curve", "R"))
    save(options, "table1", rows, figure, f"Table 1, {loads[-1]}", notes, shown=shown)


if __name__ == "__main__":
    run(parse_options(__doc__))
