"""A picture of traces: how long responses are, and how much of that is the prompt's."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from tailsieve_verl.traces.trace import Trace

#: Okabe and Ito: told apart by readers with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Up to so many traces the ranges of their prompts can be told apart.
_FEW = 3
_STYLES = ("-", "--", ":", "-.")


def plot_traces(traces: Sequence[Trace], path: str | os.PathLike[str]) -> None:
    """Draw traces into a PNG: left a histogram of lengths, right each prompt's lengths, shortest prompt first.

    The right plot shows the mean of a prompt as a line over its rank (0 to 1) and, where there are up to three traces,
    the range from its shortest to its longest response as a band.
    """
    from matplotlib.figure import Figure  # no pyplot: no window, no state

    figure = Figure(figsize=(11 if len(traces) <= _FEW else 14, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    low, high = min(t.tokens.min() for t in traces), max(t.tokens.max() for t in traces)
    few = len(traces) <= _FEW
    bins = np.geomspace(low, max(high, low + 1) * 1.001, 61 if few else 31)
    for number, trace in enumerate(traces):
        colour, style = COLOURS[number % len(COLOURS)], _STYLES[number // len(COLOURS) % len(_STYLES)]
        weights = np.full(len(trace), 100 / len(trace))
        left.hist(
            trace.tokens, bins=bins, weights=weights, histtype="step", color=colour, linestyle=style, label=trace.name
        )
        if len(traces) == 1:
            for percent, dash in ((50, "--"), (90, ":")):
                at = float(np.percentile(trace.tokens, percent))
                left.axvline(at, color="#000000", linestyle=dash, linewidth=1, label=f"P{percent} {at:,.0f}")
        groups = trace.grouped()
        mean = np.array([group.mean() for group in groups])
        order = np.argsort(mean, kind="stable")
        rank = (np.arange(order.size) + 0.5) / order.size
        right.plot(rank, mean[order], color=colour, linestyle=style, label=trace.name)
        if few and any(group.size > 1 for group in groups):
            shortest, longest = (np.array([f(group) for group in groups])[order] for f in (np.min, np.max))
            right.fill_between(rank, shortest, longest, color=colour, alpha=0.2, linewidth=0)
    left.set(xscale="log", xlabel="response length in tokens", ylabel="responses in %", title="Response lengths")
    right.set(
        yscale="log",
        xlabel="prompts by mean length, shortest first",
        ylabel="response length in tokens",
        title="Per prompt: mean, and shortest to longest" if few else "Per prompt: mean",
    )
    if few:
        left.legend(fontsize="small")
    else:
        figure.legend(*left.get_legend_handles_labels(), fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=130, format="png")
