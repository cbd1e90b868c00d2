"""The timeline of one step as a picture, for readers without JavaScript and for slides."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailsieve_verl.report.plots import BLACK, BLUE, GREEN, ORANGE, PINK, SKY, YELLOW
from tailsieve_verl.report.timeline import KINDS, TICKS, Timeline

#: Colour of each kind of request (:data:`~tailsieve_verl.report.timeline.KINDS`), here and on the page.
KIND_COLOURS = (SKY, ORANGE, PINK, GREEN, YELLOW, BLACK)
#: Index of what was cut among them, and its hatching.
CUT, HATCH = KINDS.index("cut"), "////"
#: Requests of a replica beyond which no gap is left between them.
CROWDED = 30


def timeline_figure(step: int, found: Timeline) -> Any:
    """The timeline of a step: a row for each replica shown, a line for each request, the cut."""
    from matplotlib.figure import Figure

    lane, start, end, kind = (np.array(found.requests[name]) for name in ("lane", "start", "end", "kind"))
    figure = Figure(figsize=(9, 1.4 + 0.28 * len(found.lanes) + 2.0), layout="constrained")
    axis, running = figure.subplots(2, 1, sharex=True, height_ratios=(0.28 * len(found.lanes) + 1, 1.6))
    scale = found.horizon_s / TICKS
    rows = np.maximum(np.bincount(lane, minlength=len(found.lanes)), 1)
    first = np.concatenate(([0], np.cumsum(np.bincount(lane, minlength=len(found.lanes)))))
    height = 0.84 / rows[lane]
    y = lane - 0.42 + (np.arange(lane.size) - first[lane] + 0.5) * height
    for of in sorted(set(found.requests["kind"])):
        these = kind == of
        # Not snapped to pixels, or thin rows vanish; for the same reason what was cut is outlined.
        bar: dict[str, Any] = {"facecolor": KIND_COLOURS[of], "lw": 0, "label": KINDS[of], "snap": False}
        if of == CUT:
            bar |= {"hatch": HATCH, "edgecolor": BLACK, "lw": 0.8}
        width, left = (end - start)[these] * scale, start[these] * scale
        axis.barh(y[these], width, np.where(rows[lane] > CROWDED, 1.0, 0.85)[these] * height[these], left, **bar)
    axis.plot([row[3] * scale for row in found.lanes], range(len(found.lanes)), ls="", marker="D", ms=4, color=BLACK)
    names = [f"{'tail' if tail else 'bulk'} {replica}" for replica, tail, _, _ in found.lanes]
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set(xlim=(0, 1.01 * found.horizon_s), ylim=(len(found.lanes) - 0.4, -0.6))
    axis.set_title(f"Step {step}", loc="left")
    axis.legend(fontsize=8, ncols=6, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    for pool, values in found.concurrency.items():
        at = (np.arange(len(values)) + 0.5) * found.horizon_s / len(values)
        style = (ORANGE, "--") if pool == "tail" else (BLUE, "-")
        running.plot(at, values, color=style[0], ls=style[1], lw=1.5, label=f"{pool} pool")
    for (name, seconds), ls in zip(found.marks.items(), ("--", "-.", "-"), strict=False):
        axis.axvline(seconds, color=BLACK, lw=1, ls=ls)
        running.axvline(seconds, color=BLACK, lw=1, ls=ls, label=name)
    running.set(xlabel="seconds after the step's start", ylabel="requests running", ylim=(0, None))
    running.legend(fontsize=7)
    return figure
