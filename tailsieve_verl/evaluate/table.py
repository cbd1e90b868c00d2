"""The paper's Table 3 from evaluations: accuracy of each checkpoint, and its change from the first one in points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tailsieve_verl.evaluate.benchmarks import Benchmark
from tailsieve_verl.evaluate.run import Evaluation


def table3(evaluations: Sequence[Evaluation], benchmarks: Sequence[Benchmark]) -> list[dict[str, Any]]:
    """Rows for the terminal and markdown: a checkpoint each, a cell ``76.20 +-1.90 (+62.80)`` a benchmark, percent."""
    rows = []
    for at, evaluation in enumerate(evaluations):
        row: dict[str, Any] = {"checkpoint": evaluation.label}
        for bench in benchmarks:
            row[f"{bench.title} pass@{bench.k}"] = _cell(evaluation, evaluations[0] if at else None, bench)
        rows.append(row)
    return rows


def figures(evaluations: Sequence[Evaluation], benchmarks: Sequence[Benchmark]) -> list[dict[str, Any]]:
    """The same as numbers, one row for each checkpoint and benchmark."""
    rows = []
    for evaluation in evaluations:
        for bench in benchmarks:
            found = evaluation.scores.get(bench.name)
            base = evaluations[0].scores.get(bench.name)
            rows.append(
                {
                    "checkpoint": evaluation.label,
                    "benchmark": bench.name,
                    "k": bench.k,
                    "pass_at_k": found.value if found else None,
                    "standard_error": found.error if found else None,
                    "change": found.value - base.value if found and base else None,
                    "problems": found.problems if found else None,
                    "samples": found.samples if found else None,
                    "mean_tokens": evaluation.tokens.get(bench.name),
                    "cut_at_limit": evaluation.cut.get(bench.name),
                }
            )
    return rows


def _cell(evaluation: Evaluation, base: Evaluation | None, bench: Benchmark) -> str:
    found = evaluation.scores.get(bench.name)
    if found is None:
        return "-"
    text = f"{100 * found.value:.2f}"
    if not math.isnan(found.error):
        text += f" ±{100 * found.error:.2f}"
    first = base.scores.get(bench.name) if base else None
    return text if first is None else f"{text} ({100 * (found.value - first.value):+.2f})"
