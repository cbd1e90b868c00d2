"""`tailsieve trace`: what a run's response lengths look like, from which file, or made up to order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailsieve_verl.cli.output import (
    CsvFile,
    JsonFlag,
    PngFile,
    Seed,
    print_json,
    print_table,
    say,
    write_csv,
    write_whole,
)
from tailsieve_verl.errors import UserError

if TYPE_CHECKING:
    from tailsieve_verl.traces.summary import TraceSummary

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Response lengths of a run: summarise them, convert them, or make some up.",
)

_SHARES = ("prompt", "checkpoint", "interaction", "sampling")
_NOTES = (
    "Lengths in tokens; ratio: P90 / P50; icc: share of the variance that is the prompt's, bias-corrected;",
    "auc: half of a prompt's samples find the longest tenth of the prompts; 0.5 is chance.",
)

Model = Annotated[str | None, typer.Option("--model", help="Which model, where a file has several.")]
Source = Annotated[
    str | None,
    typer.Option("--source", help="Which data set, where a file has several: one, some (a,b) or all."),
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Only this checkpoint, or some (a,b) in order of training.")
]
Cap = Annotated[int | None, typer.Option("--cap", help="Response limit in tokens, where the file does not say.")]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", help="For a verl dump: folder or name of a Hugging Face tokenizer, to count tokens."),
]


@app.command()
def summary(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Trace files (.csv, .csv.gz, .jsonl), or folders of verl dumps."),
    ],
    model: Model = None,
    source: Source = None,
    checkpoint: Checkpoint = None,
    cap: Cap = None,
    tokenizer: Tokenizer = None,
    each: Annotated[bool, typer.Option("--each", help="Every model and data set of a file, one row each.")] = False,
    json_: JsonFlag = False,
    csv: CsvFile = None,
    png: PngFile = None,
) -> None:
    """How long the tail is, and how well a prompt tells that its responses will be in it.

    Two pools pay where P90 / P50 is large and the prompt tells the tail: the prompt's share (ICC) well above 0, the AUC
    well above 0.5. A trace file needs a column `tokens`; `prompt_id` tells prompts apart, `checkpoint` the policies.

    \b
    Examples:
      tailsieve trace summary lengths.csv --png lengths.png
      tailsieve trace summary lengths.csv --each --json
      tailsieve trace summary rollouts/ --tokenizer Qwen/Qwen3-8B     a verl run's trainer.rollout_data_dir
    """
    from tailsieve_verl.traces.files import read_each, read_trace
    from tailsieve_verl.traces.plot import plot_traces
    from tailsieve_verl.traces.summary import summarise

    if each and (model is not None or source is not None or checkpoint is not None):
        raise UserError("--each reads every model and data set: leave --model, --source and --checkpoint out.")
    traces = []
    for file in files:
        if each:
            found = read_each(file, cap=cap, tokenizer=tokenizer)
        else:
            found = [read_trace(file, model=model, source=source, checkpoint=checkpoint, cap=cap, tokenizer=tokenizer)]
        traces += found
    if len({trace.name for trace in traces}) < len(traces) == len(files):
        traces = [replace(trace, name=str(file)) for file, trace in zip(files, traces, strict=True)]
    results = [summarise(trace) for trace in traces]
    if csv is not None:
        write_csv(csv, [_row(result) for result in results])
    if png is not None:
        write_whole(png, lambda name: plot_traces(traces, name))
    if json_:
        print_json([result.to_dict() for result in results])
    elif len(results) == 1:
        print_table(_explained(results[0]), title=results[0].name)
    else:
        print_table(_short(results), notes=_NOTES)
    for result in results:
        for remark in result.remarks:
            say(f"{result.name}: {remark}")


@app.command()
def convert(
    source_file: Annotated[Path, typer.Argument(metavar="IN", help="Trace file, or folder of a verl dump.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .csv, .csv.gz or .jsonl.")],
    model: Model = None,
    source: Source = None,
    checkpoint: Checkpoint = None,
    cap: Cap = None,
    tokenizer: Tokenizer = None,
    responses: Annotated[int, typer.Option(help="For a histogram: how many lengths to make of it.")] = 20_000,
    tail_ratio: Annotated[
        float | None, typer.Option(help="Stretch the lengths above the median to this P90 / P50 (paper A.5).")
    ] = None,
) -> None:
    """Write the lengths of any trace this package reads as one table: numbers only, no text.

    A trace of a private run can be shared that way: prompts are told by a hash of their text or by their label.

    \b
    Examples:
      tailsieve trace convert rollouts/ run.csv.gz --tokenizer Qwen/Qwen3-8B --cap 8192
      tailsieve trace convert lengths.csv qwq.jsonl --model QwQ-32b     one model of a file that has several
      tailsieve trace convert run.csv.gz strong.csv.gz --tail-ratio 6   the paper's strong tail
    """
    from tailsieve_verl.traces.files import read_trace, write_trace

    trace = read_trace(
        source_file,
        model=model,
        source=source,
        checkpoint=checkpoint,
        cap=cap,
        tokenizer=tokenizer,
        responses=responses,
    )
    if tail_ratio is not None:
        trace = trace.with_tail(tail_ratio)
    write_trace(out, trace)
    for remark in trace.remarks:
        say(remark)
    say(f"{out}: {len(trace)} responses of {trace.prompts} prompts at {_checkpoints(len(trace.checkpoints))}.")


@app.command()
def make(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .csv, .csv.gz or .jsonl.")],
    prompts: Annotated[int, typer.Option(help="Number of prompts.")] = 256,
    samples: Annotated[int, typer.Option(help="Responses per prompt and checkpoint.")] = 8,
    checkpoints: Annotated[int, typer.Option(help="Number of checkpoints, oldest first.")] = 1,
    p50: Annotated[float, typer.Option(help="Median length in tokens.")] = 1160.0,
    p90: Annotated[float, typer.Option(help="90th percentile of the lengths in tokens.")] = 4115.0,
    cap: Annotated[int, typer.Option(help="Response limit in tokens.")] = 16384,
    prompt_share: Annotated[
        float, typer.Option(help="Share of the variance of lengths that is the prompt's, 0 to 1.")
    ] = 0.648,
    checkpoint_share: Annotated[
        float | None, typer.Option(help="Share of the checkpoint.", show_default="the paper's; 0 with one")
    ] = None,
    interaction_share: Annotated[
        float | None,
        typer.Option(help="Share of what a checkpoint does to single prompts.", show_default="the paper's; 0 with one"),
    ] = None,
    runaway: Annotated[float, typer.Option(help="Chance that a response runs to the cap whatever its prompt.")] = 0.0,
    mixture: Annotated[
        tuple[float, float, float] | None,
        typer.Option(metavar="SHARE P50 P90", help="Second component of a bimodal load; --p50, --p90 are the first's."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Make up response lengths with a given P50, P90 and share of the variance that is the prompt's.

    The same options give the same file. The defaults are the paper's real workload (Table A.3, Appendix B).

    \b
    Examples:
      tailsieve trace make run.csv.gz --prompts 512 --samples 16
      tailsieve trace make hard.csv --prompts 512 --p50 2000 --p90 12000 --cap 32768 --prompt-share 0.4
      tailsieve trace make drift.csv --prompts 64 --checkpoints 30      the shares of Appendix B
      tailsieve trace make two.csv --prompts 512 --p50 400 --p90 700 --mixture 0.2 6000 9000
    """
    from tailsieve_verl.traces.files import write_trace
    from tailsieve_verl.traces.summary import summarise
    from tailsieve_verl.traces.synthetic import PAPER_SHARES, LengthModel, Mixture, synthetic_trace

    # Where a share is left open, checkpoint and interaction have their paper's part of what the prompt leaves.
    left = (1 - prompt_share) / (1 - PAPER_SHARES.prompt) if checkpoints > 1 else 0.0
    model = LengthModel(
        p50=p50,
        p90=p90,
        cap=cap,
        prompt_share=prompt_share,
        checkpoint_share=PAPER_SHARES.checkpoint * left if checkpoint_share is None else checkpoint_share,
        interaction_share=interaction_share or 0.0,
        runaway=runaway,
        mixture=None if mixture is None else Mixture(*mixture),
    )
    if interaction_share is None and model.shares.interaction < PAPER_SHARES.interaction * left:
        model = replace(model, interaction_share=PAPER_SHARES.interaction * left)
    trace = synthetic_trace(model, prompts=prompts, samples=samples, checkpoints=checkpoints, seed=seed)
    write_trace(out, trace)
    result = summarise(trace)
    say(
        f"{out}: {result.responses} responses of {result.prompts} prompts at {_checkpoints(result.checkpoints)}; "
        f"P50 {result.p50:.0f}, P90 {result.p90:.0f}, longest {result.max}, {result.truncated:.1%} at the cap."
    )


def _checkpoints(number: int) -> str:
    return "1 checkpoint" if number == 1 else f"{number} checkpoints"


def _row(result: TraceSummary) -> dict[str, Any]:
    """One row of numbers: shares and AUC between checkpoints flattened."""
    row = result.to_dict()
    shares, aucs = row.pop("shares"), [entry.auc for entry in result.checkpoint_auc]
    row.update({f"share_{name}": None if shares is None else shares[name] for name in _SHARES})
    row["checkpoint_auc"] = sum(aucs) / len(aucs) if aucs else None
    row["remarks"] = " ".join(result.remarks)
    return row


def _short(results: list[TraceSummary]) -> list[dict[str, Any]]:
    """A row per trace for the terminal, narrow; what all names start with is left out."""
    parts = [result.name.split("/") for result in results]
    shared = int(all(len(part) > 1 and part[0] == parts[0][0] != "" for part in parts))
    return [
        {
            "trace": "/".join(part[shared:]),
            "prompts": result.prompts,
            "p50": round(result.p50),
            "p90": round(result.p90),
            "ratio": round(result.tail_ratio, 2),
            "icc": None if result.icc is None else round(result.icc, 2),
            "auc": None if result.half_auc is None else round(result.half_auc, 2),
        }
        for result, part in zip(results, parts, strict=True)
    ]


def _explained(result: TraceSummary) -> list[dict[str, Any]]:
    row = _row(result)
    cube = f"of {result.shares_prompts} prompts with {result.shares_repeats} samples each"
    meaning = {
        "responses": "",
        "prompts": "",
        "checkpoints": "",
        "samples": "responses per prompt and checkpoint, median",
        "mean": "tokens",
        "p50": "tokens",
        "p90": "tokens",
        "p99": "tokens",
        "max": "tokens",
        "tail_ratio": "P90 / P50",
        "truncated": "share of responses that ran into the limit",
        "icc": "share of the variance that is the prompt's, bias-corrected",
        "half_auc": "half a prompt's samples find the longest tenth; 0.5 is chance",
        "checkpoint_auc": "a checkpoint finds the next one's longest tenth, mean",
        "dispersion_mean": "deviation over mean inside a prompt group, mean",
        "dispersion_max": "the same, largest",
        "share_prompt": f"share of the variance (Appendix B), {cube}",
        "share_checkpoint": "",
        "share_interaction": "",
        "share_sampling": "",
    }
    if result.shares is None:
        meaning = {name: text for name, text in meaning.items() if not name.startswith("share_")}
    lengths = ("mean", "p50", "p90", "p99")
    value = {name: round(row[name]) if name in lengths else row[name] for name in meaning}
    return [{"statistic": name, "value": value[name], "meaning": text} for name, text in meaning.items()]
