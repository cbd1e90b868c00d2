"""The figure of `cpu_comparison`: speed-up by depth and batch size, the comparison, and the budgets of Fig. 6(a)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot(
    path: Path,
    grid: Sequence[dict[str, Any]],
    comparison: Sequence[dict[str, Any]],
    matched: Sequence[dict[str, Any]],
) -> None:
    """Write the three panels; rows as `cpu_comparison` writes them to its tables."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.6), width_ratios=[1, 1.2, 1.2])
    for batch in sorted({row["batch"] for row in grid}):
        rows = [row for row in grid if row["batch"] == batch and row["depth"] != "none"]
        depths, speed = [row["depth"] for row in rows], [row["speedup"] for row in rows]
        errors = [[s - row["low"] for s, row in zip(speed, rows, strict=True)],
                  [row["high"] - s for s, row in zip(speed, rows, strict=True)]]  # fmt: skip
        left.errorbar(depths, speed, yerr=errors, marker="o", capsize=2, label=f"{batch}")
    left.axhline(1.0, color="grey", linewidth=0.8)
    left.set(xlabel="draft depth", ylabel="tokens a second over no drafter", title="By depth and running batch")
    left.legend(title="running batch", fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    _bars(middle, comparison, "The same requests: makespan")
    _bars(right, matched, "The same budget of drafts (bulk/tail)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axes: Any, rows: Sequence[dict[str, Any]], title: str) -> None:
    names, median = [row["way"] for row in rows], [row["median_s"] for row in rows]
    errors = [[row["median_s"] - row["low_s"] for row in rows], [row["high_s"] - row["median_s"] for row in rows]]
    axes.barh(
        names,
        median,
        xerr=errors,
        capsize=2,
        color=["#4878a8" if "pools" in n or "Tail" in n else "#b0b0b0" for n in names],
    )
    for i, row in enumerate(rows):
        axes.text(0, i, f" {row['speedup']:.2f}x", va="center", fontsize=8, color="white")
    axes.invert_yaxis()
    axes.set(xlabel="seconds", title=title)
    axes.tick_params(axis="y", labelsize=8)
