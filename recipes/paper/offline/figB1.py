"""Figure B.1: do long prompts stay long over checkpoints, and whose is the variance of lengths (Appendix B)?

    python recipes/paper/offline/figB1.py [--out DIR] [--quick] [--seed N]

The synthetic trace has the paper's size (64 prompts, 8 samples) and is given the paper's four variance shares; its AUCs
are then a check, not an input. Real traces with several checkpoints are read where they are. Tail: the longest tenth of
the prompts by mean length at the source checkpoint; AUC: chance that one of them is longer than another prompt at the
target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from offline_common import (
    CAP,
    COLOURS,
    Options,
    mean_spread,
    new_figure,
    parse_options,
    save,
    traces_folder,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.summary import TraceSummary, summarise
from tailsieve_verl.traces.synthetic import PAPER_SHARES, LengthModel, synthetic_trace
from tailsieve_verl.traces.trace import Trace

PROMPTS, SAMPLES, CHECKPOINTS = 64, 8, 6
PARTS = ("prompt", "sampling", "interaction", "checkpoint")
#: Real traces with several checkpoints: label, file, and what to read of it.
REAL_TRACES = (
    ("Llama-3B, mathematics, RL 400-800", "lengths_rg_llama3b_math.csv", {"source": "all"}),
    (
        "Qwen2.5-3B, puzzles, RL 0-500",
        "lengths_rg_qwen3b_puzzles.csv.gz",
        {
            "source": "rg_qwen3b_algebra,rg_qwen3b_arc,rg_qwen3b_cognition,rg_qwen3b_geometry,rg_qwen3b_graphs",
            "checkpoint": "step_0,games_step_500",
        },
    ),
    (
        "Sky-T1 32B, AIME, SFT, greedy",
        "lengths_skythought_greedy.csv",
        {"source": "skythought_aime24", "model": "Sky-T1-math-correct-5K-32B-ckpts"},
    ),
)


@dataclass(frozen=True)
class Persistence:
    """Tail AUCs of one trace, and what its summary says.

    Attributes:
        adjacent: from each checkpoint to the next.
        first: from the first checkpoint to each later one.
    """

    adjacent: list[float]
    first: list[float]
    summary: TraceSummary


def persistence(trace: Trace) -> Persistence:
    """The AUCs of a trace with several checkpoints."""
    summary = summarise(trace)
    pairs = [trace.select(np.isin(trace.checkpoint, (0, s))) for s in range(1, len(trace.checkpoints))]
    first = [summarise(pair).checkpoint_auc[0].auc for pair in pairs]
    return Persistence([found.auc for found in summary.checkpoint_auc], first, summary)


def describe(name: str, traces: list[Persistence]) -> dict:
    """A row: AUCs over all traces of one kind, and mean shares."""
    adjacent, first = ([auc for aucs in chain for auc in aucs] for chain in _chains(traces))
    summaries = [trace.summary for trace in traces]
    row = {
        "trace": name,
        "prompts": summaries[0].prompts,
        "checkpoints": summaries[0].checkpoints,
        "samples": summaries[0].samples,
        "adjacent": _span(adjacent),
        "adjacent_mean": mean_spread(adjacent),
        "from_first": _span(first),
    }
    known = [s.shares for s in summaries if s.shares is not None]
    row |= {part: float(np.mean([getattr(s, part) for s in known])) if known else None for part in PARTS}
    return row | {"icc": float(np.mean([s.icc for s in summaries]))}


def _chains(traces: list[Persistence]) -> tuple[list[list[float]], list[list[float]]]:
    return [trace.adjacent for trace in traces], [trace.first for trace in traces]


def _span(values: list[float]) -> str:
    return f"{min(values):.3f}-{max(values):.3f}"


def run(options: Options) -> None:
    """Synthetic and real traces."""
    model = LengthModel(
        p50=1160,
        p90=4115,
        cap=CAP,
        prompt_share=PAPER_SHARES.prompt,
        checkpoint_share=PAPER_SHARES.checkpoint,
        interaction_share=PAPER_SHARES.interaction,
    )
    seeds = options.pick(20, 3)
    size = {"prompts": PROMPTS, "samples": SAMPLES, "checkpoints": CHECKPOINTS}
    with progress() as bar:
        tracked = bar.track(range(seeds), description="synthetic traces")
        made = [persistence(synthetic_trace(model, **size, seed=options.seed + s)) for s in tracked]
    sets = {"synthetic, the paper's shares": made}
    folder = traces_folder()
    for label, name, choice in REAL_TRACES:
        if folder is not None and (folder / name).is_file():
            sets[label] = [persistence(read_trace(folder / name, **choice))]
    rows = [describe(label, traces) for label, traces in sets.items()]
    figure = new_figure(12, 3.8)
    left, right = figure.subplots(1, 2)
    for (label, traces), colour in zip(sets.items(), COLOURS, strict=False):
        adjacent, first = (np.mean(chain, axis=0) for chain in _chains(traces))
        at = np.linspace(0, 1, adjacent.size + 1)[1:]
        left.plot(at, adjacent, color=colour, marker="o", label=label)
        left.plot(at, first, color=colour, marker="s", ls="--")
    left.axhline(0.5, color="black", lw=0.8)
    left.axhspan(0.957, 0.985, color=COLOURS[7], alpha=0.3, label="paper, adjacent")
    left.set(
        xlabel="place in the training", ylabel="AUC", ylim=(0.4, 1), title="Adjacent (o), from the first (squares)"
    )
    left.legend(fontsize=7, loc="lower left")
    bars = [{"trace": "paper", **{part: getattr(PAPER_SHARES, part) for part in PARTS}}, *rows]
    bars = [bar for bar in bars if bar["prompt"] is not None]
    base = np.zeros(len(bars))
    for part, colour in zip(PARTS, COLOURS, strict=False):
        width = np.array([bar[part] for bar in bars]) * 100
        right.barh(range(len(bars)), width, left=base, color=colour, label=part)
        base += width
    right.set_yticks(range(len(bars)), [bar["trace"] for bar in bars], fontsize=7)
    right.invert_yaxis()
    right.set(xlabel="% of the sum of squares", title="Variance of lengths")
    right.legend(fontsize=7, ncol=4, loc="lower center", bbox_to_anchor=(0.5, 1.08))
    notes = [
        f"synthetic: {seeds} seeds; AUCs: smallest-largest, and mean +- standard deviation over seeds and checkpoints",
        "with few samples (3 or 1) the shares count chance as the prompt's; icc does not",
        "paper: adjacent 0.957-0.985, from the first 0.952-0.985; shares 0.648, 0.261, 0.069, 0.022",
    ]
    save(options, "figB1", rows, figure, "Figure B.1, persistence of long prompts", notes)


if __name__ == "__main__":
    run(parse_options(__doc__))
