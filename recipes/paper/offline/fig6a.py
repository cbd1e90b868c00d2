"""Figure 6(a): drafts by route under the same budget, d_bulk + d_tail = 2 d_base (4.3).

    python recipes/paper/offline/fig6a.py [--out DIR] [--quick] [--seed N]

The baseline drafts d_base tokens everywhere under uniform routing; TailSieve (replicas fixed at R/2) takes the best
pair of depths with that sum. Beside it what the paper leaves out: the same depth on both routes of TailSieve, so that
routing and depth by route can be told apart, and verl's default dispatch, with the same depth and with live depth.
"""

from __future__ import annotations

import numpy as np
from offline_common import COLOURS, GROUP, LOADS, Options, curve_notes, decode_curves, new_figure, parse_options, save
from offline_drafts import METHODS, N, Place, fastest, over, pools, speculation
from offline_runs import NOISE

from tailsieve_verl.cli.output import progress

REPLICAS = 4
MODEL = "Qwen3.5-35B-A3B"
LOAD_NAMES = ("math", "code")
ACCEPTANCE = "GSM8K"
BUDGETS = (1, 2, 3, 4, 5, 6)
TAILSIEVE = f"inner_loop:m={REPLICAS // 2}"
LINES = {
    "uniform": "uniform by group, d_base everywhere",
    "verl": "verl's default, d_base everywhere",
    "same": "TailSieve, d_base on both routes",
    "routes": "TailSieve, best d_bulk + d_tail = 2 d_base",
}
LIVE = "verl's default, live depth"


def run(options: Options) -> None:
    """All budgets, methods and loads."""
    curves = decode_curves((MODEL,))
    seeds = tuple(range(options.seed, options.seed + options.pick(3, 1)))
    steps, skip = options.pick(40, 6), options.pick(10, 2)
    budgets = BUDGETS[: options.pick(len(BUDGETS), 3)]
    rows, points = [], []
    with progress() as bar:
        task = bar.add_task("budgets", total=len(LOAD_NAMES) * len(METHODS) * len(budgets))
        for load in LOAD_NAMES:
            place = Place(load, LOADS[load], curves[0], REPLICAS, steps, skip, seeds)
            streams = place.streams()
            plain = place.total(streams, "uniform_group")
            for method in METHODS:
                known = speculation(place.named, method, ACCEPTANCE, deepest=8)
                live, spread = over(plain, place.total(streams, "verl_default", pools(known, "auto")))
                for base in budgets:
                    pairs = [
                        ((d, 2 * base - d), place.total(streams, TAILSIEVE, pools(known, d, 2 * base - d)))
                        for d in range(2 * base + 1)
                    ]
                    best, total = fastest(pairs)
                    found = {
                        "uniform": place.total(streams, "uniform_group", pools(known, base)),
                        "verl": place.total(streams, "verl_default", pools(known, base)),
                        "same": dict(pairs)[base, base],
                        "routes": total,
                    }
                    row = {"load": load, "method": method, "d_base": base}
                    for name, mine in found.items():
                        row[name], row[f"{name}_sd"] = over(plain, mine)
                    bulk, tail = best  # type: ignore[misc]
                    rows.append(row | {"d_bulk": bulk, "d_tail": tail, "live": live, "live_sd": spread})
                    points += [
                        {"load": load, "method": method, "d_bulk": d, "d_tail": e, "speed": over(plain, mine)[0]}
                        for (d, e), mine in pairs
                    ]
                    bar.advance(task)
    notes = [
        *curve_notes(curves),
        f"speed over uniform by group without drafts; N = {N}, n = {GROUP}, R = {REPLICAS}; steps {skip + 1} to "
        f"{steps}, {len(seeds)} seeds; acceptance {ACCEPTANCE}; step times scatter by {NOISE:.0%}",
        f"live: {LIVE}, up to 8 drafts",
    ]
    shown = [{k: round(v, 3) if isinstance(v, float) else v for k, v in row.items() if k[-3:] != "_sd"} for row in rows]
    save(options, "fig6a", rows, _figure(rows), "Figure 6(a)", notes, points, shown)


def _figure(rows: list[dict]):  # type: ignore[no-untyped-def]
    figure = new_figure(11, 7)
    grid = np.reshape(figure.subplots(len(LOAD_NAMES), len(METHODS), sharex=True), (len(LOAD_NAMES), len(METHODS)))
    for line, load in zip(grid, LOAD_NAMES, strict=True):
        for axes, method in zip(line, METHODS, strict=True):
            mine = [row for row in rows if (row["load"], row["method"]) == (load, method)]
            bases = [row["d_base"] for row in mine]
            for k, (name, label) in enumerate(LINES.items()):
                values = [row[name] for row in mine]
                axes.errorbar(
                    bases, values, [row[f"{name}_sd"] for row in mine], marker=".", color=COLOURS[k], label=label
                )
            for row in mine:
                axes.annotate(f"{row['d_bulk']}+{row['d_tail']}", (row["d_base"], row["routes"]), fontsize=7)
            axes.axhline(mine[0]["live"], color="black", ls=":", label=LIVE)
            axes.set(title=f"{load}, {method}", xticks=bases)
    for axes in grid[-1]:
        axes.set_xlabel("d_base")
    for line in grid:
        line[0].set_ylabel("speed over uniform without drafts")
    grid[0][0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    run(parse_options(__doc__))
