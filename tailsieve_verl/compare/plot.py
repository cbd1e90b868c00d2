"""Fig. 7: generation time, reward and mean response length by step, a line a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailsieve_verl.compare.study import Study
from tailsieve_verl.simulate.plots import COLOURS

_MARKERS = "osD^vPX*"


def plot_fig7(path: str | Path, studies: Sequence[Study], titles: Sequence[str] = ("",)) -> None:
    """Write a PNG: a row of three panels for each study, a colour for each run, dotted the first run's bound.

    Args:
        titles: of the rows.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 0.5 + 3.1 * len(studies)), layout="constrained")
    panels = figure.subplots(len(studies), 3, squeeze=False)
    for row, study, title in zip(panels, studies, titles, strict=True):
        names = ("generation_s", "reward", "length")
        for axis, name, what in zip(
            row, names, ("generation time, s", "mean reward", "mean response length, tokens"), strict=True
        ):
            for i, run in enumerate(study.runs):
                values = getattr(run, name)
                style = {"color": COLOURS[i % len(COLOURS)], "marker": _MARKERS[i % len(_MARKERS)], "ms": 3, "lw": 1.2}
                axis.plot(list(values), list(values.values()), label=run.label, **style)
            axis.set(xlabel="step", ylabel=what)
            axis.grid(alpha=0.3)
        bound = study.bounds.get(study.runs[0].label)
        if bound is not None:
            label = f"no placement beats, {study.runs[0].label}"
            row[0].plot(list(bound.by_step), list(bound.by_step.values()), color="black", ls=":", lw=1, label=label)
        row[0].set_ylim(0, None)
        row[2].set_ylim(0, None)
        row[0].legend(fontsize=7)
        if title:
            row[0].set_title(title, loc="left", fontweight="bold")
    figure.savefig(path, dpi=150, format="png")
