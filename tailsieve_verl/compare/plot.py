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
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(12, 0.8 + 3.1 * len(studies)), layout="constrained")
    labels = list(dict.fromkeys(run.label for study in studies for run in study.runs))
    lines: dict[str, Line2D] = {}
    panels = figure.subplots(len(studies), 3, squeeze=False)
    for row, study, title in zip(panels, studies, titles, strict=True):
        names = ("generation_s", "reward", "length")
        for axis, name, what in zip(
            row, names, ("generation time, s", "mean reward", "mean response length, tokens"), strict=True
        ):
            for run in study.runs:
                values, i = getattr(run, name), labels.index(run.label)
                style = {"color": COLOURS[i % len(COLOURS)], "marker": _MARKERS[i % len(_MARKERS)], "ms": 3, "lw": 1.2}
                lines[run.label] = axis.plot(list(values), list(values.values()), label=run.label, **style)[0]
            axis.set(xlabel="step", ylabel=what)
            axis.grid(alpha=0.3)
        bound = study.bounds.get(study.runs[0].label)
        if bound is not None:
            label = f"no placement beats, {study.runs[0].label}"
            shown = row[0].plot(list(bound.by_step), list(bound.by_step.values()), color="black", ls=":", lw=1)
            lines[label] = shown[0]
        row[0].set_ylim(0, None)
        row[2].set_ylim(0, None)
        if title:
            row[0].set_title(title, loc="left", fontweight="bold")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=7, fontsize=8)
    figure.savefig(path, dpi=150, format="png")
