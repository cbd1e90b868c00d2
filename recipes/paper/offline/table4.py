"""Table 4: routing alone, speed-up over uniform group routing as the number of groups grows (4.6).

    python recipes/paper/offline/table4.py [--out DIR] [--quick] [--seed N]

The rows of Table 1 for N = 64, 128, 256 groups of eight responses, on the two loads whose tail is the prompt's doing.
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
from offline_runs import BOUND_ROW, GROUP_ROW, NOISE, Cell, compare, pivot, runs_per_seed

from tailsieve_verl.cli.output import print_table, progress

SIZES = (64, 128, 256)
REPLICAS = (4, 8)
MODELS = ("Qwen3-4B", "Qwen3.5-35B-A3B")
LOAD_NAMES = ("math", "code")
#: Steps whose bound is computed; it takes 0.6 s for 2,048 responses.
BOUND_STEPS = {64: 4, 128: 2, 256: 1}


def run(options: Options) -> None:
    """All loads, curves, R and N."""
    curves = decode_curves(MODELS)
    seeds = range(options.seed, options.seed + options.pick(3, 1))
    steps, skip = options.pick(36, 4), options.pick(12, 2)
    sizes = SIZES[: options.pick(3, 2)]
    cells = [
        Cell(load, LOADS[load], named, size, replicas, steps, skip)
        for load in LOAD_NAMES
        for named in curves
        for replicas in REPLICAS
        for size in sizes
    ]
    rows = []
    with progress() as bar:
        task = bar.add_task("runs", total=len(cells) * runs_per_seed(False, ()) * len(seeds))
        for cell in cells:
            bar.update(task, description=f"{cell.load}, {cell.label}, N={cell.n_groups}")
            bounds = 0 if options.quick else BOUND_STEPS[cell.n_groups]
            rows += compare(cell, seeds, lambda: bar.advance(task), bounds=bounds)
    figure = new_figure(13, 6.5)
    names = [name for name in dict.fromkeys(row["policy"] for row in rows) if name not in (BOUND_ROW, GROUP_ROW)]
    places = list(dict.fromkeys((row["curve"], row["R"]) for row in rows))
    for line, load in zip(figure.subplots(len(LOAD_NAMES), len(places), sharey="row"), LOAD_NAMES, strict=True):
        for axes, (curve, replicas) in zip(np.atleast_1d(line), places, strict=True):
            mine = [row for row in rows if (row["load"], row["curve"], row["R"]) == (load, curve, replicas)]
            for number, name in enumerate(names):
                own = [row for row in mine if row["policy"] == name]
                axes.errorbar(
                    [row["N"] for row in own],
                    [row["over_group"] for row in own],
                    [row["over_group_sd"] for row in own],
                    color=COLOURS[number % len(COLOURS)],
                    lw=2.2 if name == "TailSieve" else 1,
                    marker=".",
                    label=name,
                )
            axes.axhline(1, color="black", lw=0.8)
            axes.set(xscale="log", title=f"{load}, {curve}, R={replicas}", xlabel="N")
            axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            axes.minorticks_off()
    figure.axes[0].set_ylabel("speed over uniform by group")
    figure.axes[-1].legend(fontsize=6)
    notes = [
        *curve_notes(curves),
        f"n = {GROUP}; steps {skip + 1} to {steps}, {len(seeds)} seeds: mean +- standard deviation; "
        f"step times scatter by {NOISE:.0%}",
    ]
    tables = [
        (f"{load}, {curve}", [row for row in rows if (row["load"], row["curve"]) == (load, curve)])
        for load in LOAD_NAMES
        for curve in dict.fromkeys(named.name for named in curves)
    ]
    for title, mine in tables[:-1]:
        print_table(pivot(mine, ("R", "N")), f"Table 4, {title}")
    save(options, "table4", rows, figure, f"Table 4, {tables[-1][0]}", notes, shown=pivot(tables[-1][1], ("R", "N")))


if __name__ == "__main__":
    run(parse_options(__doc__))
