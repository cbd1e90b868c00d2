"""One picture of an advice: the lengths, whether a group's halves agree, and the gain with its interval."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from tailsieve_verl.advise.advice import Advice, Findings
from tailsieve_verl.advise.fit import WorkloadFit
from tailsieve_verl.simulate.plots import COLOURS


def plot_advice(path: str | Path, fit: WorkloadFit, found: Findings, advice: Advice) -> None:
    """Write a PNG: left the share of responses above a length, middle one half of each group against the other, right
    the speed-up over the routing now, with second attempts as drawn and as long as the first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    above, halves, gains = figure.subplots(1, 3)
    tokens = np.sort(fit.lengths, axis=None)
    above.step(tokens, 1 - np.arange(tokens.size) / tokens.size, where="pre", color=COLOURS[0])
    for name, value in (("P50", found.lengths.p50), ("P90", found.lengths.p90), ("cap", found.lengths.cap)):
        if value is not None:
            above.axvline(value, color="black", lw=0.8, ls=":" if name == "cap" else "--")
            above.text(value, 1, f" {name}", va="top", fontsize=7)
    above.set(xlabel="tokens", ylabel="share of responses at least as long", title="Lengths", yscale="log")
    first, second = fit.lengths[:, 0::2].mean(axis=1), fit.lengths[:, 1::2].mean(axis=1)
    halves.plot(first, second, "o", ms=3, alpha=0.5, color=COLOURS[0])
    most = float(max(first.max(), second.max()))
    halves.plot([1, most], [1, most], color="black", lw=0.8)
    share = "-" if found.icc is None else f"{found.icc.mean:.0%}"
    halves.set(
        xlabel="mean of half a group, tokens", ylabel="mean of the other half", title=f"The prompt tells {share} (ICC)"
    )
    bars = (found.gain, found.held)
    for at, bar in enumerate(bars):
        spread = None if math.isnan(bar.low) else [[bar.mean - bar.low], [bar.high - bar.mean]]
        gains.bar(at, bar.mean, 0.5, yerr=spread, color=COLOURS[at], capsize=3)
    gains.axhline(1, color="black", lw=0.8)
    low = min(bar.mean if math.isnan(bar.low) else bar.low for bar in bars)
    gains.set(ylabel=f"speed of generation over {found.now}", title=f"{advice.verdict}: {advice.reason}")
    gains.set_ylim(min(0.8, low - 0.05), None)
    gains.set_xticks((0, 1), ["second attempts\nas drawn", "as long as\nthe first"])
    figure.savefig(path, dpi=150, format="png")
