"""Pictures of a simulated comparison: step times and splits over the steps, speed-ups with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tailsieve_verl.simulate.study import Comparison, Run, baselines

#: Okabe and Ito's palette, told apart also by the colour-blind; markers repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442")


def plot_comparison(path: str | Path, runs: Sequence[Run], table: Sequence[Comparison]) -> None:
    """Write a PNG: left the step times (median over seeds), middle the tail groups, right the speed-ups."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    times, splits, gains = figure.subplots(1, 3, width_ratios=(2, 1.4, 1.6))
    for i, row in enumerate(table):
        mine = [run for run in runs if run.policy == row.policy]
        steps = np.arange(1, mine[0].seconds.size + 1)
        colour = COLOURS[i % len(COLOURS)]
        times.plot(steps, np.median([r.seconds for r in mine], axis=0), color=colour, lw=1.2, label=row.policy)
        if any(r.splits.any() for r in mine):
            splits.plot(steps, np.mean([r.splits[:, 0] for r in mine], axis=0), color=colour, label=f"{row.policy} q")
            splits.plot(steps, np.mean([r.splits[:, 1] for r in mine], axis=0), color=colour, ls="--", label="m")
    times.set(xlabel="step", ylabel="makespan, s", title="Step time (median over seeds)", ylim=(0, None))
    times.legend(fontsize=7)
    splits.set(xlabel="step", title="Tail groups q and replicas m", ylim=(0, None))
    if splits.lines:
        splits.legend(fontsize=7)
    shown = baselines([row.policy for row in table])
    for k, baseline in enumerate(shown):
        width = 0.72 / len(shown)
        at = np.arange(len(table)) + width * (k - (len(shown) - 1) / 2)
        means = np.array([row.speedup[baseline].mean for row in table])
        low = np.array([row.speedup[baseline].low for row in table])
        high = np.array([row.speedup[baseline].high for row in table])
        spread = np.nan_to_num(np.array([means - low, high - means]))
        gains.barh(
            at, means, 0.9 * width, xerr=spread, color=COLOURS[k % len(COLOURS)], label=f"over {baseline}", capsize=2
        )
    gains.axvline(1, color="black", lw=0.8)
    gains.set_yticks(np.arange(len(table)), [row.policy for row in table], fontsize=7)
    gains.invert_yaxis()
    gains.set(title="Speed-up (95 % interval over seeds)", xlim=(0.5, None))
    if shown:
        gains.legend(fontsize=7)
    figure.savefig(path, dpi=150, format="png")
