"""Table 2: speed over uniform group routing without drafts, by routing alone, with MTP and with DFlash (4.2).

    python recipes/paper/offline/table2.py [--out DIR] [--quick] [--seed N]

Three draft tokens on both routes, as in the paper (MTP with 3, DFlash with blocks of 4), and fixed replica allocation.
The rows that the paper lacks are the same drafts under the two uniform dispatches, and live depth, which deepens as a
replica's batch drains. Acceptance is an input: every figure comes for several.
"""

from __future__ import annotations

import numpy as np
from offline_common import COLOURS, GROUP, LOADS, Options, curve_notes, decode_curves, new_figure, parse_options, save
from offline_drafts import ACCEPTANCES, METHODS, PLAIN, N, Place, over, pools, speculation
from offline_runs import NOISE

from tailsieve_verl.cli.output import print_table, progress

REPLICAS = 4
MODELS = ("Qwen3.5-35B-A3B", "Qwen3-4B")
DEPTH = 3
ROUTING = "routing"
#: Rows: policy, and whether depth is live.
ROWS: dict[str, tuple[str, bool]] = {
    "uniform by group": ("uniform_group", False),
    "verl's default": ("verl_default", False),
    "TailSieve, fixed replicas": ("inner_loop:m={half}", False),
    "TailSieve": ("tailsieve", False),
    "verl's default, live depth": ("verl_default", True),
    "TailSieve, fixed replicas, live depth": ("inner_loop:m={half}", True),
    "TailSieve, live depth": ("tailsieve", True),
}


def run(options: Options) -> None:
    """All loads, curves, methods and acceptances."""
    curves = decode_curves(MODELS)
    seeds = tuple(range(options.seed, options.seed + options.pick(3, 1)))
    steps, skip = options.pick(40, 6), options.pick(10, 2)
    acceptances = list(ACCEPTANCES)[: options.pick(len(ACCEPTANCES), 1)]
    loads = dict(list(LOADS.items())[: options.pick(len(LOADS), 2)])
    places = [
        Place(load, model, named, REPLICAS, steps, skip, seeds) for load, model in loads.items() for named in curves
    ]
    rows: list[dict] = []
    with progress() as bar:
        plain = sum(not live for _, live in ROWS.values())
        task = bar.add_task("runs", total=len(places) * (plain + len(ROWS) * len(METHODS) * len(acceptances)))
        for place in places:
            bar.update(task, description=f"{place.load}, {place.named.name}")
            rows += _place(place, acceptances, lambda: bar.advance(task))
    for load in loads:
        for named in curves:
            mine = [row for row in rows if (row["load"], row["curve"]) == (load, named.name)]
            if (load, named.name) != (places[-1].load, places[-1].named.name):
                print_table(_shown(mine), f"Table 2, {load}, {named.name}")
    notes = [
        *curve_notes(curves),
        f"N = {N}, n = {GROUP}, R = {REPLICAS}; steps {skip + 1} to {steps}, {len(seeds)} seeds: mean +- standard "
        f"deviation; step times scatter by {NOISE:.0%}; columns: method and acceptance by draft position",
    ]
    save(
        options, "table2", rows, _figure(rows), f"Table 2, {places[-1].load}, {places[-1].named.name}", notes,
        shown=_shown(mine),
    )  # fmt: skip


def _place(place: Place, acceptances: list[str], tick) -> list[dict]:  # type: ignore[no-untyped-def]
    streams = place.streams()
    baseline = place.total(streams, "uniform_group")
    rows = []
    for label, (policy, live) in ROWS.items():
        text = policy.format(half=place.replicas // 2)
        cells = [] if live else [(ROUTING, "", PLAIN)]
        for method in METHODS:
            for acceptance in acceptances:
                known = speculation(place.named, method, acceptance)
                cells.append((method, acceptance, pools(known, "auto" if live else DEPTH)))
        for method, acceptance, drafts in cells:
            mean, deviation = over(baseline, place.total(streams, text, drafts))
            tick()
            rows.append(
                {"load": place.load, "curve": place.named.name, "policy": label, "method": method}
                | {"acceptance": acceptance, "over_group": mean, "over_group_sd": deviation}
            )
    return rows


def _shown(rows: list[dict]) -> list[dict]:
    """Policies down, methods across."""
    table: dict[str, dict] = {row["policy"]: {"policy": row["policy"]} for row in rows}
    for column in dict.fromkeys((row["method"], row["acceptance"]) for row in rows):
        for line in table.values():
            line[" ".join(column).strip()] = "-"
    for row in rows:
        name = f"{row['method']} {row['acceptance']}".strip()
        table[row["policy"]][name] = f"{row['over_group']:.2f} +- {row['over_group_sd']:.2f}"
    return list(table.values())


def _figure(rows: list[dict]):  # type: ignore[no-untyped-def]
    figure = new_figure(13, 6.5)
    loads = list(dict.fromkeys(row["load"] for row in rows))
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    columns = list(dict.fromkeys((row["method"], row["acceptance"]) for row in rows))
    grid = np.reshape(figure.subplots(len(curves), len(loads), sharey=True, sharex=True), (len(curves), len(loads)))
    for line, curve in zip(grid, curves, strict=True):
        for axes, load in zip(line, loads, strict=True):
            for k, (method, acceptance) in enumerate(columns):
                where = {"load": load, "curve": curve, "method": method, "acceptance": acceptance}
                found = {row["policy"]: row for row in rows if where.items() <= row.items()}
                at = [y for y, policy in enumerate(ROWS) if policy in found]
                axes.errorbar(
                    [found[policy]["over_group"] for policy in ROWS if policy in found],
                    np.array(at) + 0.09 * (k - len(columns) / 2),
                    xerr=[found[policy]["over_group_sd"] for policy in ROWS if policy in found],
                    fmt="o" if method == ROUTING else "s" if method == "MTP" else "^",
                    color=COLOURS[k % len(COLOURS)],
                    ms=4,
                    label=f"{method} {acceptance}".strip(),
                )
            axes.axvline(1, color="black", lw=0.8)
            axes.set_title(f"{load}, {curve}", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("speed over uniform by group")
    grid[0][0].set_yticks(range(len(ROWS)), list(ROWS), fontsize=8)
    grid[0][0].invert_yaxis()
    grid[0][-1].legend(fontsize=6)
    return figure


if __name__ == "__main__":
    run(parse_options(__doc__))
