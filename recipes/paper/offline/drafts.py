"""Not in the paper: what drafts are worth under each dispatch, and what is left for two pools and for depth by route.

    python recipes/paper/offline/drafts.py [--out DIR] [--quick] [--seed N]

Lengths are replayed, so that nothing is gained by generating again. Drafts are accepted with 0.7 at every position and
cost 5 % of a step a token; fixed depths and splits are the best in hindsight, of depths 0 to 5.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from offline_common import (
    COLOURS,
    GROUP,
    REAL,
    NamedCurve,
    Options,
    Replayed,
    curve_notes,
    decode_curves,
    new_figure,
    parse_options,
    save,
)
from offline_drafts import PLAIN, N, Place, fastest, over, pools, speculation
from offline_runs import NOISE

from tailsieve_verl.cli.output import progress
from tailsieve_verl.core.decode import DecodeCurve

#: Made up: bound by memory up to some hundred requests, where drafts are worth most; 10 ms, and 0.1 ms a request.
LINEAR = NamedCurve("10 ms + 0.1 ms b", DecodeCurve([1, 512], [0.0101, 0.0612]), "made up")
#: R and model; the first curve is the flattest, the last the steepest at small batches.
MODELS = ("Qwen3-4B", "Qwen3.5-35B-A3B")
REPLICAS = (4, 4, 8)
DEPTHS = range(6)
QS = (2, 4, 8, 12, 16)
GROUP_ROW, VERL_ROW, SPLIT_ROW, ORACLE_ROW = (
    "uniform by group",
    "verl's default",
    "two pools",
    "requests of known length (Seer-style)",
)


def run(options: Options) -> None:
    """All places and rows."""
    curves = decode_curves(MODELS)
    seeds = tuple(range(options.seed, options.seed + options.pick(3, 1)))
    steps, skip = options.pick(20, 5), options.pick(4, 2)
    places = [
        Place("replayed", REAL, named, replicas, steps, skip, seeds)
        for named, replicas in zip((LINEAR, curves[0], curves[-1]), REPLICAS, strict=True)
    ]
    rows = []
    with progress() as bar:
        task = bar.add_task("simulating", total=None)
        for place in places:
            bar.update(task, description=f"R={place.replicas}, {place.named.name}")
            rows += _place(place, QS[: options.pick(len(QS), 2)], lambda: bar.advance(task))
    notes = [
        *curve_notes([LINEAR, *curves]),
        f"Table A.3's load, lengths replayed; N = {N}, n = {GROUP}; steps {skip + 1} to {steps}, {len(seeds)} seeds: "
        f"mean +- standard deviation; step times scatter by {NOISE:.0%}",
    ]
    save(options, "drafts", rows, _figure(rows), "What drafts are worth", notes, shown=_shown(rows))


def _place(place: Place, qs: tuple[int, ...], tick) -> list[dict]:  # type: ignore[no-untyped-def]
    streams = {seed: Replayed(stream) for seed, stream in place.streams().items()}
    known = speculation(place.named, "MTP", "0.7")
    none, live = {"0": PLAIN}, {"live": pools(known, "auto")}
    fixed = {f"{d}": pools(known, d) for d in DEPTHS[1:]}
    by_route = {f"{d}+{e}": pools(known, d, e) for d in DEPTHS for e in DEPTHS if e > d}
    ms = sorted({max(1, place.replicas * k // 4) for k in (1, 2, 3)})
    splits = [f"fixed:q={q},m={m}" for q, m in product(qs, ms)]
    uniform = {"no drafts": none, "one depth": fixed, "live depth": live}
    two_pools = {
        "no drafts": none,
        "one depth": fixed,
        "a depth by route": {**fixed, **by_route},
        "live depth": live,
    }
    cases = (
        (GROUP_ROW, ["uniform_group"], uniform),
        (VERL_ROW, ["verl_default"], uniform),
        (SPLIT_ROW, splits, two_pools),
        (ORACLE_ROW, ["seer_oracle"], uniform),
    )
    baseline = place.total(streams, "uniform_group")
    rows = []
    for label, policies, kinds in cases:
        done: dict[tuple[str, str], np.ndarray] = {}
        for kind, options in kinds.items():
            for policy, (depth, pool) in product(policies, options.items()):
                if (policy, depth) not in done:
                    done[policy, depth] = place.total(streams, policy, pool)
                    tick()
            best, total = fastest((key, done[key]) for key in product(policies, options))
            policy, depth = best  # type: ignore[misc]
            mean, deviation = over(baseline, total)
            rows.append(
                {"R": place.replicas, "curve": place.named.name, "dispatch": label, "drafts": kind, "policy": policy}
                | {"depth": depth, "over_group": mean, "over_group_sd": deviation}
            )
    return rows


def _shown(rows: list[dict]) -> list[dict]:
    table: dict[str, dict] = {}
    for row in rows:
        name = f"{row['dispatch']}, {row['drafts']}"
        line = table.setdefault(name, {"row": name})
        best = f"{row['policy'].partition(':')[2]} {row['depth']}".strip()
        line[f"R={row['R']}, {row['curve']}"] = f"{row['over_group']:.2f} +- {row['over_group_sd']:.2f} ({best})"
    return list(table.values())


def _figure(rows: list[dict]):  # type: ignore[no-untyped-def]
    figure = new_figure(9, 5)
    axes = figure.subplots()
    labels = list(dict.fromkeys(f"{row['dispatch']}, {row['drafts']}" for row in rows))
    for k, (replicas, curve) in enumerate(dict.fromkeys((row["R"], row["curve"]) for row in rows)):
        mine = [row for row in rows if (row["R"], row["curve"]) == (replicas, curve)]
        axes.barh(
            np.arange(len(labels)) + 0.28 * (k - 1),
            [row["over_group"] - 1 for row in mine],
            0.26,
            left=1,
            xerr=[row["over_group_sd"] for row in mine],
            color=COLOURS[k],
            label=f"{curve}, R={replicas}",
        )
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("speed over uniform by group without drafts")
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run(parse_options(__doc__))
