"""A study as tables: rows for the terminal, and the page that is written beside the picture."""

from __future__ import annotations

import math
from typing import Any

from tailsieve_verl.compare.speedup import Interval
from tailsieve_verl.compare.study import Study, summary
from tailsieve_verl.markdown import markdown_table


def comparison_rows(study: Study) -> list[dict[str, Any]]:
    """One row a comparison, numbers in columns of their own."""
    return [
        {
            "run": c.run,
            "baseline": c.baseline,
            "window": c.window,
            "steps": c.generation.steps,
            "baseline_s": c.generation.baseline_s,
            "run_s": c.generation.run_s,
            **_columns("speedup", c.generation.of_means),
            **_columns("paired", c.generation.paired),
            "faster_share": c.generation.faster,
            **_columns("step_speedup", c.step.of_means if c.step else None),
            "length_mean": c.shift.mean if c.shift else None,
            "length_p99": c.shift.p99 if c.shift else None,
            "length_ks": c.shift.ks if c.shift else None,
            "length_ks_p": c.shift.p if c.shift else None,
            "most_by_routing": c.most,
            "beyond": c.beyond,
        }
        for c in study.comparisons
    ]


def speedup_table(study: Study) -> list[dict[str, Any]]:
    """For readers: speed-ups with their intervals."""
    return [
        {
            "run": c.run,
            "over": c.baseline,
            "steps": c.window,
            "of means": interval(c.generation.of_means),
            "paired": interval(c.generation.paired),
            "faster": "-" if c.generation.faster is None else f"{c.generation.faster:.0%}",
            "step": "-" if c.step is None else f"{c.step.of_means.value:.2f}",
            "at most": "-" if c.most is None else f"{c.most:.2f}{'!' if c.beyond else ''}",
        }
        for c in study.comparisons
    ]


def run_table(study: Study, skip: int = 0) -> list[dict[str, Any]]:
    """For readers: what each run did; the generation time with its least and most."""
    return [
        {
            "run": row["run"],
            "steps": row["steps"],
            "generation, s": f"{row['generation_s']:.4g} ({row['least_s']:.3g}-{row['most_s']:.3g})",
            "step, s": _number(row["step_s"]),
            "reward": _number(row["reward"]),
            "length": _number(row["length"]),
            "split": "-" if row["with_split"] is None else f"{row['with_split']}",
            "bound": "-" if row["over_bound"] is None else f"{row['over_bound']:.2f}",
        }
        for row in summary(study, skip)
    ]


def bias_table(study: Study) -> list[dict[str, Any]]:
    """For readers: the runs' own bias figures (docs/metrics.md); empty without records."""
    return [
        {
            "run": run.label,
            "mean": _percent(run.bias.get("mean")),
            "p99": _percent(run.bias.get("p99")),
            "truncated": _percent(run.bias.get("truncated")),
            "KS": _number(run.bias.get("ks"), 2),
        }
        for run in study.runs
        if run.bias
    ]


def length_table(study: Study) -> list[dict[str, Any]]:
    """For readers: lengths against the baseline's, over all common steps."""
    return [
        {
            "run": c.run,
            "against": c.baseline,
            "mean": _percent(c.shift.mean),
            "p99": _percent(c.shift.p99),
            "KS": f"{c.shift.ks:.3f}",
            "p": f"{c.shift.p:.2g}",
            "responses": c.shift.responses,
        }
        for c in study.comparisons
        if c.shift is not None and c.window == "all"
    ]


def notes(study: Study) -> list[str]:
    """What the figures mean, and what is to be held against them."""
    found = [
        "of means: mean seconds of the baseline over the run's; paired: geometric mean of the steps' ratios; both with "
        "95 % intervals over steps (one run each: they say how steps vary, not how runs do); faster: share of steps; "
        "step: the whole training step, of means.",
    ]
    if study.bounds:
        found.append(
            "split: steps with a tail pool; bound: generation time over what no placement could beat, at the run's "
            "mean decode speed (a fast step may lie below it)."
        )
    if any(c.most is not None for c in study.comparisons):
        found.append(
            "at most: the baseline's time over what no placement of its responses can beat, at the decode speed that "
            "its completions show."
        )
    found += [
        f"{c.run} is faster than {c.baseline} by more than routing can give ({c.window}): its responses were shorter, "
        "or the machine was faster; see the lengths."
        for c in study.comparisons
        if c.beyond
    ]
    shaky = [label for label, bound in study.bounds.items() if bound.confidence < 0.5]
    if shaky:
        found.append(f"the decode curve of {', '.join(shaky)} rests on few completions: its bound is rough (--curve).")
    return [*found, *study.remarks, *(f"left out: {why}" for why in study.left_out)]


def page(study: Study, picture: str | None = None, skip: int = 0, heading: str = "#") -> str:
    """Everything as a page of markdown, lines wrapped by whoever reads it."""
    parts = [
        f"{heading} Runs\n",
        markdown_table(run_table(study, skip)),
        f"{heading} Speed-up\n",
        markdown_table(speedup_table(study)),
    ]
    if biases := bias_table(study):
        parts += [f"{heading} Lengths trained on, against the run's own fresh pools\n", markdown_table(biases)]
    if lengths := length_table(study):
        parts += [f"{heading} Lengths trained on, against the baseline's\n", markdown_table(lengths)]
    if picture:
        parts.append(f"![generation time, reward and mean length by step]({picture})\n")
    parts.append("".join(f"- {note[0].upper()}{note[1:]}\n" for note in notes(study)))
    return "\n".join(parts)


def interval(found: Interval | None) -> str:
    """``1.45 (1.38-1.52)``."""
    if found is None:
        return "-"
    if math.isnan(found.low):
        return f"{found.value:.2f}"
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"


def _columns(name: str, found: Interval | None) -> dict[str, float | None]:
    if found is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"
