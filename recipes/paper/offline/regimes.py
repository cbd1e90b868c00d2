"""The figure that the paper lacks: where two pools pay, by tail strength, concurrency and prompt share of the variance.

    python recipes/paper/offline/regimes.py [--out DIR] [--quick] [--seed N]

Log-normal lengths of median 1,160 tokens, cut at 16,384; R = 8, n = 8; concurrency is N n / R, the requests a replica
starts with. Each number is TailSieve's speed over a uniform routing; hatched are the places where uniform wins: no
fixed split of a grid, chosen in hindsight, is faster than it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from offline_common import (
    CAP,
    GROUP,
    NamedCurve,
    Options,
    curve_notes,
    decode_curves,
    new_figure,
    parse_options,
    save,
    synthetic,
)
from offline_runs import GROUP_ROW, ROWS, VERL_ROW, Cell, measure

from tailsieve_verl.cli.output import print_table, progress
from tailsieve_verl.traces.synthetic import LengthModel

P50, REPLICAS = 1160, 8
RATIOS = (1.5, 2.5, 3.547, 5.0, 7.0)
CONCURRENCIES = (8, 16, 32, 64, 128, 256)
SHARES = (0.05, 0.3, 0.5, 0.648, 0.9)
MODELS = ("Qwen3.5-35B-A3B", "Qwen3-4B")
LABELS = {"ratio": "P90/P50", "share": "prompt share", "concurrency": "N n / R"}
BASELINES = {"over_group": GROUP_ROW, "over_verl": VERL_ROW}


@dataclass(frozen=True)
class Place:
    """A point of the map."""

    curve: NamedCurve
    ratio: float = 3.547
    concurrency: int = 64
    share: float = 0.648

    @property
    def n_groups(self) -> int:
        return self.concurrency * REPLICAS // GROUP

    @property
    def model(self) -> LengthModel:
        return LengthModel(p50=P50, p90=self.ratio * P50, cap=CAP, prompt_share=self.share)


@dataclass(frozen=True)
class Panel:
    """A slice of the map: which two things vary, [down, across]."""

    title: str
    curve: NamedCurve
    down: tuple[str, tuple]
    across: tuple[str, tuple]

    def place(self, down, across) -> Place:
        return Place(self.curve, **{self.down[0]: down, self.across[0]: across})


def panels(curves: list[NamedCurve], quick: bool) -> list[Panel]:
    """The slices; a quick run has one small one."""
    if quick:
        return [Panel(curves[0].name, curves[0], ("ratio", (1.5, 5.0)), ("concurrency", (8, 32)))]
    strength, load, share = ("ratio", RATIOS), ("concurrency", CONCURRENCIES), ("share", SHARES)
    first, last = curves[0], curves[-1]
    return [
        Panel(f"{first.name}, share 0.648", first, strength, load),
        Panel(f"{first.name}, P90/P50 3.547", first, share, load),
        Panel(f"{first.name}, concurrency 64", first, strength, share),
        Panel(f"{last.name}, share 0.648", last, strength, load),
    ]


def splits(n_groups: int) -> list[tuple[int, int]]:
    """Fixed splits whose best one says whether two pools can pay."""
    return [(q, m) for m in (2, 4) for q in sorted({max(1, n_groups // k) for k in (32, 16, 8)})]


def survey(place: Place, seeds: range, steps: int, tick) -> dict:
    """Gains of TailSieve and of the best fixed split at one place."""
    count = max(steps, min(4 * steps, steps * 64 // place.n_groups))  # small batches scatter more
    cell = Cell("", place.model, place.curve, place.n_groups, REPLICAS, count, count // 4)
    total: dict = {}
    bias = []
    for seed in seeds:
        load = synthetic(place.model, seed)
        policies = {name: ROWS[name] for name in (GROUP_ROW, VERL_ROW, "TailSieve")}
        policies |= {(q, m): f"fixed:q={q},m={m}" for q, m in splits(place.n_groups)}
        for name, policy in policies.items():
            found = measure(cell, policy, load, seed)
            total[name] = total.get(name, 0.0) + found.seconds.sum()
            if name == "TailSieve":
                bias.append(found.bias.mean)
        tick()
    best = min((name for name in total if isinstance(name, tuple)), key=total.__getitem__)
    row = {
        "curve": place.curve.name,
        "ratio": place.ratio,
        "concurrency": place.concurrency,
        "share": place.share,
        "N": place.n_groups,
    }
    for key, baseline in BASELINES.items():
        row |= {key: total[baseline] / total["TailSieve"], f"split_{key}": total[baseline] / total[best]}
    return row | {"best_q": best[0], "best_m": best[1], "mean_bias": float(np.mean(bias))}


def run(options: Options) -> None:
    """Survey all slices, draw the maps."""
    curves = decode_curves(MODELS)
    seeds, steps = range(options.seed, options.seed + options.pick(2, 1)), options.pick(32, 6)
    maps = panels(curves, options.quick)
    wanted = {(p, d, a): p.place(d, a) for p in maps for d in p.down[1] for a in p.across[1]}
    known: dict[Place, dict] = {}
    with progress() as bar:
        task = bar.add_task("places", total=len(set(wanted.values())) * len(seeds))
        for place in wanted.values():
            if place not in known:
                known[place] = survey(place, seeds, steps, lambda: bar.advance(task))
    rows = list(known.values())
    figure = new_figure(4 * len(maps), 6.5)
    axes = np.reshape(figure.subplots(len(BASELINES), len(maps)), (len(BASELINES), len(maps)))
    for column, panel in enumerate(maps):
        for line, (key, baseline) in enumerate(BASELINES.items()):
            found = [[known[wanted[panel, d, a]] for a in panel.across[1]] for d in panel.down[1]]
            _draw(axes[line, column], found, key, panel)
            axes[line, column].set_title(f"{panel.title}\nover {baseline}", fontsize=9)
    wins = {key: sum(row[f"split_{key}"] <= 1 for row in rows) for key in BASELINES}
    notes = [
        *curve_notes(curves),
        "TailSieve's speed over the uniform routing named; *: uniform wins, no fixed split is faster than it",
        f"{len(seeds)} seeds; steps from {steps} at N >= 64 to {4 * steps} at N <= 16, the first quarter left out",
        f"uniform by group wins at {wins['over_group']} of {len(rows)} places, verl's default at {wins['over_verl']}; "
        f"TailSieve's least: {min(r['over_group'] for r in rows):.3f} and {min(r['over_verl'] for r in rows):.3f}",
    ]
    tables = [
        (f"{panel.title}, over {baseline}", _grid(panel, wanted, known, key))
        for panel in maps
        for key, baseline in BASELINES.items()
    ]
    for title, table in tables[:-1]:
        print_table(table, title)
    save(options, "regimes", rows, figure, tables[-1][0], notes, shown=tables[-1][1])


def _grid(panel: Panel, wanted: dict, known: dict, key: str) -> list[dict]:
    """A slice as a table: TailSieve's gain, with a star where uniform wins."""
    table = []
    for down in panel.down[1]:
        line: dict = {LABELS[panel.down[0]]: f"{down:g}"}
        for across in panel.across[1]:
            row = known[wanted[panel, down, across]]
            line[f"{LABELS[panel.across[0]]} {across:g}"] = f"{row[key]:.2f}" + "*" * int(row[f"split_{key}"] <= 1)
        table.append(line)
    return table


def _draw(axes, found: list[list[dict]], key: str, panel: Panel) -> None:
    """A map: colour and number are TailSieve's gain, hatched where uniform wins."""
    gain = np.array([[row[key] for row in line] for line in found])
    split = np.array([[row[f"split_{key}"] for row in line] for line in found])
    axes.imshow(gain, origin="lower", aspect="auto", cmap="PuOr_r", vmin=0.6, vmax=1.4)
    for i, j in np.ndindex(*gain.shape):
        axes.text(j, i, f"{gain[i, j]:.2f}", ha="center", va="center", fontsize=7)
        if split[i, j] <= 1:
            axes.add_patch(_cell(j, i))
    for ticks, (name, values) in ((axes.set_yticks, panel.down), (axes.set_xticks, panel.across)):
        ticks(range(len(values)), [f"{value:g}" for value in values])
        (axes.set_ylabel if ticks == axes.set_yticks else axes.set_xlabel)(LABELS[name])


def _cell(column: int, line: int):
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, line - 0.5), 1, 1, fill=False, hatch="///", edgecolor="black", lw=0, alpha=0.35)


if __name__ == "__main__":
    run(parse_options(__doc__))
