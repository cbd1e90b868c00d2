"""Figure 2: exact two-replica optimum and top-k isolation of one group of 100 responses (2.1, 2.2).

    python recipes/paper/offline/fig2.py [--out DIR] [--quick] [--seed N]

The group drawn is the one whose best-k gap is the median of many, so that it is neither lucky nor unlucky.
"""

from __future__ import annotations

import numpy as np
from offline_common import (
    COLOURS,
    REAL,
    Options,
    curve_notes,
    decode_curves,
    mean_spread,
    new_figure,
    parse_options,
    save,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.core.decode import DecodeCurve, replica_time
from tailsieve_verl.core.optimum import best_k_isolation, optimal_split
from tailsieve_verl.core.placement import VerlDefault

REQUESTS = 100
MODEL = "Qwen3.5-35B-A3B"
LARGEST_K = 20


def lanes(descending: np.ndarray, k: int, curve: DecodeCurve) -> tuple[float, float]:
    """Times of the tail replica with the k longest, and of the bulk replica with the rest, seconds."""
    return (replica_time(descending[:k], curve) if k else 0.0), replica_time(descending[k:], curve)


def even(lengths: np.ndarray, curve: DecodeCurve) -> float:
    """Makespan when requests are dealt evenly in the order they come, seconds."""
    where = VerlDefault().place(lengths[None, :], 2)[0]
    return max(replica_time(lengths[where == r], curve) for r in (0, 1))


def run(options: Options) -> None:
    """Solve many groups, draw the median one."""
    (named,) = decode_curves([MODEL])
    curve = named.curve
    groups = options.pick(101, 5)
    rng = np.random.default_rng(options.seed)
    lengths = REAL.draw(rng, REAL.levels(rng, groups * REQUESTS), 1).reshape(groups, REQUESTS)
    solved = []
    with progress() as bar:
        for group in bar.track(lengths, description="solving groups"):
            best = optimal_split(group, curve)
            k, isolated = best_k_isolation(group, curve)
            solved.append((isolated / best.makespan - 1, best, k, isolated, even(group, curve)))
    gaps = np.array([s[0] for s in solved])
    chosen = int(np.argsort(gaps, kind="stable")[groups // 2])
    gap, best, k, isolated, uniform = solved[chosen]
    descending = -np.sort(-lengths[chosen])
    on_tail = np.array(best.assignment) == 1
    times = [replica_time(lengths[chosen][on_tail == lane], curve) for lane in (True, False)]
    rows = [
        _row("even by request", uniform, best.makespan, None, None, None),
        _row("exact optimum", best.makespan, best.makespan, int(on_tail.sum()), *times),
        _row("best top-k", isolated, best.makespan, k, *lanes(descending, k, curve)),
    ]
    sizes, best_ks = [int(np.sum(s[1].assignment)) for s in solved], [s[2] for s in solved]
    over = [s[4] / s[1].makespan for s in solved]
    ranks = ", ".join(_ranks(lengths[chosen], on_tail)[:12])
    notes = [
        *curve_notes([named]),
        f"proven optimal: {best.proven}; {sum(s[1].proven for s in solved)} of {groups} groups",
        f"over {groups} groups: tail responses in the optimum {mean_spread(sizes, 1)}, k of best-k "
        f"{mean_spread(best_ks, 1)}, even over optimum {mean_spread(over)}",
        f"the optimum's tail lane holds the ranks {ranks} (1 is the longest)",
    ]
    points = [
        {"k": j, "tail_s": tail, "bulk_s": bulk, "makespan_s": max(tail, bulk)}
        for j, (tail, bulk) in enumerate(lanes(descending, j, curve) for j in range(LARGEST_K + 1))
    ]
    figure = new_figure(10, 3.8)
    left, right = figure.subplots(1, 2)
    for lane, (mask, label) in enumerate(((on_tail, "tail replica"), (~on_tail, "bulk replica"))):
        rank = np.argsort(np.argsort(-lengths[chosen], kind="stable"), kind="stable")[mask] + 1
        left.bar(rank, lengths[chosen][mask], color=COLOURS[1 - lane], width=1.0, label=f"{label}, {mask.sum()}")
    left.set(xlabel="rank", ylabel="tokens", title="(a) exact optimum")
    left.legend()
    ks = [p["k"] for p in points]
    for i, key in enumerate(("bulk_s", "tail_s")):
        right.plot(ks, [p[key] for p in points], color=COLOURS[i], marker=".", label=key[:4] + " replica")
    right.axhline(best.makespan, color="black", lw=1, label="exact optimum")
    right.axhline(uniform, color=COLOURS[7], ls="--", lw=1, label="even by request")
    right.axvline(k, color=COLOURS[2], ls=":", label=f"best k = {k}, {gap:+.2%}")
    right.set(xlabel="k, responses isolated", ylabel="seconds", title="(b) top-k isolation", ylim=(0, None))
    right.legend(fontsize=8)
    save(options, "fig2", rows, figure, f"Figure 2, {REQUESTS} responses on two replicas", notes, points)


def _row(policy, makespan, optimum, tail, tail_s, bulk_s):
    return {
        "policy": policy,
        "makespan_s": makespan,
        "over_optimum": makespan / optimum - 1,
        "tail_responses": tail,
        "tail_s": tail_s,
        "bulk_s": bulk_s,
    }


def _ranks(lengths: np.ndarray, mask: np.ndarray) -> list[str]:
    order = np.argsort(-lengths, kind="stable")
    return [str(rank + 1) for rank in np.flatnonzero(mask[order])]


if __name__ == "__main__":
    run(parse_options(__doc__))
