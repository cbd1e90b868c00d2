"""The drawings of the pages, as SVG: both pools over time (docs/how-it-works.md), the life of a step (design notes).

python scripts/docs_drawings.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docs_example as example
import matplotlib
from docs_example import CARRIED, CURVE, FRESH, M, N, Q, R
from matplotlib.axes import Axes

from tailsieve_verl.core.decode import finish_times

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
#: Blue, orange and grey of the Okabe-Ito palette: told apart by the colour-blind, and by brightness alone.
TAIL, BULK, CUT = "#0072B2", "#E69F00", "#BBBBBB"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tailsieve",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "font.size": 10,
}


def save(figure: Any, name: str) -> None:
    ASSETS.mkdir(exist_ok=True)
    # A white ground: the page may be dark.
    figure.savefig(ASSETS / name, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    plt.close(figure)


def step() -> None:
    """Gantt chart of the worked example: uniform by group above, the split below."""
    numbers = example.numbers()
    cut_s = numbers["t_bulk"]
    figure, (above, below) = plt.subplots(2, 1, figsize=(8.2, 6.4), sharex=True, layout="constrained")
    lanes(above, example.dealt(FRESH, range(R), by_request=False), None)
    above.set_title(f"Uniform by group: {numbers['uniform']:.1f} s", loc="left")
    split = example.dealt(FRESH, range(R - M), by_request=True)
    lanes(below, split | example.dealt(CARRIED, range(R - M, R), by_request=True), cut_s)
    below.set_title(f"q = {Q} groups on m = {M} replicas: {numbers['step']:.1f} s", loc="left")
    below.axvline(cut_s, color="black", linestyle="--", linewidth=1)
    below.annotate(
        f"the cut: {N - Q} fresh groups are done", (cut_s, R * 4 - 1.2), (cut_s + 0.5, R * 4 - 1.2), va="center"
    )
    below.set_xlabel("seconds")
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in (BULK, TAIL, CUT)]
    figure.legend(
        handles,
        ["fresh", "carried, generated again", "cut, carried into the next step"],
        loc="outside lower center",
        ncols=3,
    )
    save(figure, "step.svg")


def lanes(axes: Axes, placed: dict[int, list[tuple[str, int]]], cut_s: float | None) -> None:
    """One bar a response; replicas from the bottom up."""
    ticks, height = [], 0.0
    for replica, work in sorted(placed.items()):
        ends = finish_times([tokens for _, tokens in work], CURVE)
        first = height
        for (group, _), end in zip(work, ends, strict=True):
            tail = group in CARRIED
            is_cut = cut_s is not None and not tail and group in example.numbers()["cut"]
            stop = min(end, cut_s) if is_cut and cut_s is not None else end
            axes.barh(height, stop, height=0.8, color=CUT if is_cut else TAIL if tail else BULK)
            axes.text(0.15, height, group, va="center", fontsize=8, color="white" if tail else "black")
            height += 1
        ticks.append(((first + height - 1) / 2, f"replica {replica}"))
        axes.axhline(height - 0.1, color="#DDDDDD", linewidth=0.8)
        height += 0.8
    axes.set_yticks([y for y, _ in ticks], [label for _, label in ticks])
    axes.spines[["top", "right"]].set_visible(False)


def lifecycle() -> None:
    """Who talks to whom in a step."""
    who = ["policy", "trainer", "router", "agent loops", "replicas"]
    x = {name: i for i, name in enumerate(who)}
    talk = [
        ("trainer", "policy", "plan(step, carried)", ""),
        ("policy", "trainer", "StepPlan: q, m, counts", "back"),
        ("trainer", "router", "open_step: groups, pools", ""),
        ("trainer", "agent loops", "prompts, with their uid", ""),
        ("agent loops", "router", "acquire(group, response)", ""),
        ("agent loops", "replicas", "generate", ""),
        ("agent loops", "router", "release(tokens); group generated", ""),
        ("router", "trainer", "N - q fresh groups done: cut", "back"),
        ("trainer", "replicas", "abort bulk, wait until empty, resume", "hot"),
        ("trainer", "agent loops", "end the cut groups' sessions", "hot"),
        ("router", "trainer", "tail pool done: the step's log", "back"),
        ("trainer", "trainer", "batch checked; replicas sleep; update", ""),
        ("trainer", "policy", "observe(StepObservation)", ""),
        ("policy", "trainer", "Decision: next q, m, and why", "back"),
        ("trainer", "trainer", "checkpoint", ""),
        ("trainer", "replicas", "weights", ""),
    ]
    figure, axes = plt.subplots(figsize=(9, 7.4), layout="constrained")
    for name in who:
        axes.plot([x[name]] * 2, [0.4, -len(talk) - 0.3], color="#BBBBBB", linewidth=1, zorder=0)
        axes.text(x[name], 0.75, name, ha="center", va="bottom", fontweight="bold")
    for i, (source, target, text, kind) in enumerate(talk):
        y = -i - 0.4
        colour = "#D55E00" if kind == "hot" else TAIL if kind == "back" else "black"
        if source == target:
            axes.plot(x[source], y, "o", color=colour, markersize=5)
            axes.text(
                x[source] + 0.08, y, text, va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}
            )
            continue
        axes.annotate(
            "",
            (x[target], y),
            (x[source], y),
            arrowprops={"arrowstyle": "->", "color": colour, "shrinkA": 0, "shrinkB": 0},
        )
        middle = (x[source] + x[target]) / 2
        axes.text(
            middle,
            y + 0.08,
            text,
            ha="center",
            va="bottom",
            color=colour,
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set_xlim(-0.4, len(who) - 0.6)
    axes.axis("off")
    save(figure, "lifecycle.svg")


if __name__ == "__main__":
    with plt.rc_context(STYLE):
        step()
        lifecycle()
