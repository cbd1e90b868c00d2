"""Figure A.1: how far simple policies are from the exact two-replica optimum, over 100 groups of 100 responses (A.4).

    python recipes/paper/offline/figA1.py [--out DIR] [--quick] [--seed N]

All lengths are known. best-k isolates the k longest with the best k for each group, fixed 10 % the ten longest, uniform
deals half of the responses, at random, to each replica.
"""

from __future__ import annotations

import numpy as np
from offline_common import (
    COLOURS,
    NamedCurve,
    Options,
    curve_notes,
    decode_curves,
    mean_spread,
    new_figure,
    parse_options,
    save,
    single_lengths,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.core.decode import replica_time
from tailsieve_verl.core.optimum import best_k_isolation, optimal_split

REQUESTS = 100
FIXED = REQUESTS // 10
POLICIES = ("best-k", "fixed 10 %", "uniform")
#: The load and the curve that the picture shows; the others are in the table.
DRAWN = "Table A.3"


def gaps(lengths: np.ndarray, named: NamedCurve, rng: np.random.Generator) -> tuple[dict[str, float], bool]:
    """Relative gaps of the policies to the optimum of one group, [REQUESTS] tokens, and whether that is proven."""
    curve = named.curve
    best = optimal_split(lengths, curve)
    descending = -np.sort(-lengths)
    mixed = rng.permutation(lengths)
    times = {
        "best-k": best_k_isolation(lengths, curve)[1],
        "fixed 10 %": max(replica_time(part, curve) for part in np.split(descending, [FIXED])),
        "uniform": max(replica_time(part, curve) for part in np.split(mixed, 2)),
    }
    return {name: time / best.makespan - 1 for name, time in times.items()}, best.proven


def run(options: Options) -> None:
    """Solve every group on every curve, draw the distributions."""
    curves = decode_curves(["Qwen3-4B", "Qwen3.5-35B-A3B"])
    seeds, groups = options.pick(3, 1), options.pick(100, 6)
    rows, shown = [], {}
    streams = [single_lengths(np.random.default_rng((options.seed, s)), groups * REQUESTS) for s in range(seeds)]
    with progress() as bar:
        task = bar.add_task("solving groups", total=len(curves) * len(streams[0]) * seeds * groups)
        for named in curves:
            for load in streams[0]:
                found = np.zeros((len(POLICIES), seeds, groups))
                proven = 0
                for s, stream in enumerate(streams):
                    rng = np.random.default_rng((options.seed, s, 1))
                    for g, group in enumerate(stream[load].reshape(groups, REQUESTS)):
                        gap, sure = gaps(group, named, rng)
                        found[:, s, g] = [gap[policy] for policy in POLICIES]
                        proven += sure
                        bar.advance(task)
                shown[named.name, load] = found
                best_k = found[0]
                medians = np.median(found, axis=(1, 2))
                rows.append(
                    {
                        "curve": named.name,
                        "lengths": load,
                        "best_k": float(medians[0]),
                        "largest": float(best_k.max()),
                        "within_1": mean_spread(np.mean(best_k <= 0.01, axis=1), 2),
                        "within_4": mean_spread(np.mean(best_k <= 0.04, axis=1), 2),
                        "fixed_10": float(medians[1]),
                        "uniform": float(medians[2]),
                        "proven": proven / best_k.size,
                    }
                )
    figure = new_figure(4 * len(curves), 3.6)
    for axes, named in zip(np.atleast_1d(figure.subplots(1, len(curves), sharey=True)), curves, strict=True):
        found = shown[named.name, DRAWN] * 100
        bins = np.linspace(0, np.quantile(found, 0.995), 41)
        for policy, values, colour in zip(POLICIES, found, COLOURS, strict=False):
            axes.hist(
                values.ravel(),
                bins,
                weights=np.full(values.size, 100 / values.size),
                histtype="stepfilled",
                alpha=0.6,
                color=colour,
                label=policy,
            )
        axes.set(title=named.name, xlabel="gap to the optimum, %", ylabel="groups, %")
        axes.legend(fontsize=8)
    notes = [
        *curve_notes(curves),
        f"{seeds} seeds of {groups} groups; best k, fixed 10, uniform: median gap; largest: of best k; "
        "within 1 and 4 %: share of groups, mean +- standard deviation over seeds",
    ]
    save(options, "figA1", rows, figure, f"Figure A.1, groups of {REQUESTS} on two replicas", notes)


if __name__ == "__main__":
    run(parse_options(__doc__))
