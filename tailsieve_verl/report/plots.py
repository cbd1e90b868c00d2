"""The pictures of a report: one panel each, sized to be read on a phone, told apart by line, marker and colour.

Each function takes the run's view and returns a figure, or ``None`` where the run has nothing to show.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tailsieve_verl.advise.advice import MEAN_SHIFT, P99_SHIFT
from tailsieve_verl.report.view import RunView, StepView
from tailsieve_verl.simulate.plots import COLOURS

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK, GREY = COLOURS[:8]
#: Steps beyond which a line is drawn pale, and its running mean over a 40th of the steps strong.
MANY, SMOOTH = 80, 40
#: Inches of a panel: at a phone's width its text is still some nine pixels high.
SIZE = (4.8, 3.0)
#: Text stays text, in the reader's own font; the same run gives the same file.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "tailsieve", "font.size": 10.0, "axes.spines.top": False,
         "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "lines.markersize": 4.0}  # fmt: skip


class Picture(NamedTuple):
    """A panel: file name without ending, what it shows, what to look for, and who draws it."""

    name: str
    title: str
    says: str
    draw: Callable[[RunView], Any]


def generation(view: RunView) -> Any:
    """Measured makespan, predicted uniform, lower bound."""
    figure, axis = _panel("seconds", view)
    steps = view.steps
    _line(axis, steps, lambda s: s.seen.generation_s, BLUE, "-", "", "measured")
    for split, style in ((True, {"mfc": BLUE}), (False, {"mfc": "white"})):
        at = [(s.step, s.seen.generation_s) for s in steps if s.split == split]
        if at and len(steps) <= MANY:
            axis.plot(*zip(*at, strict=True), ls="", marker="o", mec=BLUE, **style)
    _line(axis, steps, lambda s: s.decision.predicted_uniform_s, ORANGE, "--", "", "predicted uniform")
    _line(axis, steps, lambda s: s.lower_bound_s, BLACK, ":", "", "no placement beats")
    axis.set_ylim(0, None)
    _legend(axis, columns=2)
    return figure


def split(view: RunView) -> Any:
    """q and m over the steps, a triangle at each move."""
    from matplotlib.ticker import MaxNLocator

    figure, panels = _panels(view, ("q: tail groups", "m: tail replicas"))
    for axis, name, colour in zip(panels, ("q", "m"), (ORANGE, BLUE), strict=True):
        values = [getattr(s.seen.plan, name) if s.split or name == "m" else 0 for s in view.steps]
        axis.step([s.step for s in view.steps], values, where="mid", color=colour, lw=1.6)
        for sign, marker in ((1, "^"), (-1, "v")):
            moves = [
                (s.step, value)
                for s, value in zip(view.steps, values, strict=True)
                if np.sign(getattr(s.decision, name) - s.before[name == "m"]) == sign
            ]
            if moves:
                axis.plot(*zip(*moves, strict=True), ls="", marker=marker, ms=6, color=BLACK, clip_on=False)
        axis.set_ylim(-0.05 * max([1, *values]), max([1, *values]) * 1.15)
        axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    return figure


def pools(view: RunView) -> Any:
    """When each pool was done, and the cut."""
    figure, axis = _panel("seconds after the step's start", view)
    _line(axis, view.steps, lambda s: s.seen.t_tail_s, ORANGE, "-", "^", "tail pool done")
    _line(axis, view.steps, lambda s: s.seen.t_bulk_s, BLUE, "-", "o", "bulk pool done")
    axis.set_ylim(0, None)
    _legend(axis)
    return figure


def idle(view: RunView) -> Any:
    """Idle share of each pool."""
    figure, axis = _panel("share of replica time", view)
    _line(axis, view.steps, _metric("idle_fraction/tail"), ORANGE, "-", "^", "tail pool idle")
    _line(axis, view.steps, _metric("idle_fraction/bulk"), BLUE, "-", "o", "bulk pool idle")
    axis.set_ylim(0, 1)
    _legend(axis)
    return figure


def bias(view: RunView) -> Any:
    """Bias of mean and p99 over the steps, with the limits."""
    if not any("bias/mean" in s.metrics for s in view.steps):
        return None
    figure, axis = _panel("against whole fresh pools, %", view)
    for name, colour, ls, marker, limit, label in (
        ("mean", BLUE, "-", "o", MEAN_SHIFT, "mean"),
        ("p99", ORANGE, "--", "s", P99_SHIFT, "99th percentile"),
    ):
        _line(axis, view.steps, _metric(f"bias/{name}", 100.0), colour, ls, marker, label)
        for sign in (-1, 1):
            axis.axhline(100 * sign * limit, color=colour, lw=1.2, ls=":")
    axis.axhline(0, color=BLACK, lw=0.8)
    _legend(axis)
    return figure


def lengths(view: RunView) -> Any:
    """Share of responses longer than x, trained on and of whole fresh pools."""
    if not view.trained_on.size:
        return None
    figure, axis = _panel("share of responses that are longer", None)
    for values, weights, colour, ls, label in (
        (view.trained_on, np.ones(view.trained_on.size), BLUE, "-", "trained on"),
        (view.fresh[:, 0], view.fresh[:, 1], ORANGE, "--", "whole fresh pools"),
    ):
        if values.size:
            at, above = _survival(values, weights)
            axis.step(at, above, where="post", color=colour, ls=ls, lw=1.6, label=label)
    axis.set(xlabel="tokens", yscale="log", ylim=(0.5 / view.trained_on.size, 1.3))
    if float(np.quantile(view.trained_on, 0.99)) > 20 * max(1.0, float(np.quantile(view.trained_on, 0.1))):
        axis.set_xscale("log")
    else:
        axis.set_xlim(0, None)
    _legend(axis)
    return figure


def length_steps(view: RunView) -> Any:
    """Quantiles of the lengths trained on, step by step."""
    figure, axis = _panel("tokens", view)
    columns = [
        np.array([t for g in s.seen.groups if g.status == "trained" for t in g.tokens], dtype=np.float64)
        for s in view.steps
    ]
    if not any(column.size for column in columns):
        return None
    for share, colour, ls, label in (
        (1.0, BLACK, ":", "longest"),
        (0.99, ORANGE, "--", "99 %"),
        (0.9, PINK, "-.", "90 %"),
        (0.5, BLUE, "-", "median"),
    ):
        found = {s.step: float(np.quantile(c, share)) for s, c in zip(view.steps, columns, strict=True) if c.size}
        _line(axis, view.steps, _looked_up(found), colour, ls, "", label)
    axis.set_ylim(0, None)
    _legend(axis, columns=2)
    return figure


def acceptance(view: RunView) -> Any:
    """Accepted share of drafted tokens, and tokens a verification yields, by pool."""
    if not any(name.startswith("spec_accept") for s in view.steps for name in s.metrics):
        return None
    figure, panels = _panels(view, ("accepted share", "accepted length"))
    for axis, name in zip(panels, ("spec_accept_rate", "spec_accept_length"), strict=True):
        for pool, colour, marker in (("tail", ORANGE, "^"), ("bulk", BLUE, "o")):
            _line(
                axis,
                view.steps,
                _metric(f"{name}/{pool}"),
                colour,
                "-",
                marker,
                f"{pool} pool",
            )
        axis.set_ylim(0, 1 if name == "spec_accept_rate" else None)
    _legend(panels[0])
    return figure


#: In the order of the page; the first ones are what a reader looks for.
PICTURES = (
    Picture(
        "generation",
        "Generation time",
        "Filled: a tail pool ran. Below the dashed line, splitting beat what uniform routing was predicted to take; "
        "at the dotted line there is nothing left to gain.",
        generation,
    ),
    Picture(
        "split",
        "Split",
        "What each step ran with; a triangle where a larger or a smaller one was decided on. The moves below have the "
        "reasons.",
        split,
    ),
    Picture("pools", "When each pool was done", "The later one ends the step; the controller evens them out.", pools),
    Picture("idle", "Idle replicas", "Time in which a pool's replicas had nothing to serve.", idle),
    Picture(
        "bias",
        "Bias of lengths",
        "Lengths trained on against what uniform routing would have trained on; dotted, what is tolerable.",
        bias,
    ),
    Picture(
        "lengths",
        "Lengths",
        "How large a share of the responses is longer than x. Where the solid line is lower, long answers are missing "
        "from training.",
        lengths,
    ),
    Picture("length-steps", "Lengths by step", "Of the responses trained on.", length_steps),
    Picture(
        "acceptance",
        "Acceptance of drafts",
        "Accepted share of the drafted tokens, and tokens that a verification yields, by pool.",
        acceptance,
    ),
)


def as_png(figure: Any) -> bytes:
    """For a file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def as_data_uri(figure: Any) -> str:
    """For the page, which asks nothing of other files."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


def _panel(ylabel: str, view: RunView | None) -> tuple[Any, Any]:
    figure, (axis,) = _panels(view, (ylabel,))
    return figure, axis


def _panels(view: RunView | None, ylabels: Sequence[str]) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=SIZE, layout="constrained")
    panels = list(figure.subplots(len(ylabels), 1, sharex=True, squeeze=False)[:, 0])
    for axis, label in zip(panels, ylabels, strict=True):
        axis.set_ylabel(label, fontsize=9)
    if view is not None:
        panels[-1].set_xlabel("step")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        numbers = [step.step for step in view.steps]
        panels[-1].set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
    return figure, panels


def _line(
    axis: Any, steps: Sequence[StepView], value: Callable[[StepView], float | None], colour: str, ls: str, marker: str,
    label: str,
) -> None:  # fmt: skip
    """A line with gaps where a step has no value."""
    values = [value(step) for step in steps]
    if all(v is None for v in values):
        return
    every = max(1, len(steps) // 25)
    y = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    alone = marker or ("." if np.isfinite(y).sum() < 2 else "")
    numbers = [s.step for s in steps]
    if len(steps) > MANY:
        axis.plot(numbers, y, color=colour, lw=0.8, alpha=0.25)
        y = _running_mean(y, len(steps) // SMOOTH)
    axis.plot(numbers, y, color=colour, ls=ls, lw=1.4, marker=alone, markevery=every, label=label)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Over the last ``window`` steps that have a value; a gap stays one."""
    known = np.isfinite(values)
    sums, counts = (np.concatenate(([0.0], np.cumsum(v))) for v in (np.where(known, values, 0.0), known))
    first = np.maximum(np.arange(values.size) + 1 - window, 0)
    last = np.arange(values.size) + 1
    means = (sums[last] - sums[first]) / np.maximum(counts[last] - counts[first], 1)
    return np.where(known, means, np.nan)


def _legend(axis: Any, columns: int = 3) -> None:
    """Above the panel, where it hides nothing."""
    if axis.get_legend_handles_labels()[1]:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
        axis.legend(fontsize=9, ncols=columns, frameon=False, handlelength=2.2, columnspacing=1.2, **place)


def _survival(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points of the share above each value, at most some hundred."""
    order = np.argsort(values)
    at, mass = values[order], np.cumsum(weights[order])
    above = 1.0 - mass / mass[-1]
    last = np.append(np.diff(at) > 0, True)  # of equal values the last one
    at, above = at[last], np.maximum(above[last], 0.0)
    if at.size > 600:
        head = np.linspace(0, at.size - 1, 400).astype(int)
        keep = np.unique(np.concatenate((head, np.arange(at.size - 200, at.size))))
        at, above = at[keep], above[keep]
    return np.concatenate(([0.0 if at[0] > 0 else at[0]], at)), np.concatenate(([1.0], above))


def _looked_up(values: dict[int, float]) -> Callable[[StepView], float | None]:
    return lambda step: values.get(step.step)


def _metric(name: str, scale: float = 1.0) -> Callable[[StepView], float | None]:
    def value(step: StepView) -> float | None:
        found = step.metrics.get(name)
        return None if found is None else scale * found

    return value
