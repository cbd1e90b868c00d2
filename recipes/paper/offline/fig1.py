"""Figure 1: decode throughput against batch size, and a replica's time as marginal costs of its requests (2.1).

    python recipes/paper/offline/fig1.py [--out DIR] [--quick] [--seed N]

One replica runs 100 responses of the paper's "real" lengths (Table A.3); the j-th longest costs
L_j (tau(j) - tau(j-1)).
"""

from __future__ import annotations

import numpy as np
from offline_common import COLOURS, REAL, Options, curve_notes, decode_curves, new_figure, parse_options, save

from tailsieve_verl.core.decode import replica_time

REQUESTS = 100
BATCHES = (1, 4, 16, 64, 256)
#: Ranks whose share of the time is reported: the longest response, the ten longest, the shortest half.
RANKS = {"longest": slice(0, 1), "10 longest": slice(0, 10), "shortest half": slice(REQUESTS // 2, REQUESTS)}


def run(options: Options) -> None:
    """Decompose, draw and save."""
    curves = decode_curves()
    groups = options.pick(200, 5)
    rng = np.random.default_rng(options.seed)
    lengths = -np.sort(-REAL.draw(rng, REAL.levels(rng, groups * REQUESTS), 1).reshape(groups, REQUESTS), axis=1)
    figure = new_figure(12, 3.8)
    left, middle, right = figure.subplots(1, 3)
    rows, points = [], []
    batch = np.arange(1, 257)
    rank = np.arange(1, REQUESTS + 1)
    for number, named in enumerate(curves):
        tau = named.curve
        marginal = lengths * np.diff(tau.table(REQUESTS))
        total = np.array([replica_time(group, tau) for group in lengths])
        assert np.allclose(marginal.sum(axis=1), total)
        rows.append(
            {
                "curve": named.name,
                **{f"tau({b})/tau(1)": round(tau(b) / tau(1), 2) for b in BATCHES[1:]},
                "replica_s": float(total.mean()),
                **{f"{label}_share": float((marginal[:, part].sum(1) / total).mean()) for label, part in RANKS.items()},
            }
        )
        share = (marginal / total[:, None]).mean(axis=0)
        points += [{"curve": named.name, "rank": int(j), "share": float(s)} for j, s in zip(rank, share, strict=True)]
        colour = COLOURS[number]
        left.plot(batch, tau(1) / tau(batch), color=colour, label=named.name)
        middle.plot(batch, batch * tau(1) / tau(batch), color=colour, label=named.name)
        right.plot(rank, np.cumsum(share), color=colour, label=named.name)
    left.set(xscale="log", xlabel="active requests b", ylabel="v(b) / v(1)", title="Speed of one request")
    middle.set(xscale="log", yscale="log", xlabel="active requests b", ylabel="b v(b) / v(1)", title="Of all together")
    right.set(xlabel="rank of a response, longest first", ylabel="share of the time, cumulated", title="Replica time")
    right.set_ylim(0, 1.02)
    left.legend(fontsize=8)
    notes = [
        *curve_notes(curves),
        "shares of a replica's time; the longest response's is also what it would take by itself",
    ]
    save(options, "fig1", rows, figure, f"Figure 1, {groups} groups of {REQUESTS}, means", notes, points)


if __name__ == "__main__":
    run(parse_options(__doc__))
