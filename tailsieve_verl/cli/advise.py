"""``tailsieve advise``: should this run turn TailSieve on? Answered from the responses it has left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tailsieve_verl.cli.output import (
    CsvFile,
    DraftShare,
    JsonFlag,
    PassShare,
    PngFile,
    Seed,
    print_json,
    print_table,
    progress,
    refuse_unused,
    write_csv,
    write_whole,
)
from tailsieve_verl.errors import UserError


def command(
    context_: typer.Context,
    dump: Annotated[
        Path,
        typer.Argument(
            metavar="DUMP_DIR", help="The run's trainer.rollout_data_dir, or a trace file made of it (tailsieve trace)."
        ),
    ],
    replicas: Annotated[int, typer.Option("--replicas", "-R", help="vLLM replicas of the run.")],
    now: Annotated[
        str, typer.Option(help="What the run does now: verl_default (by request) or uniform_group.")
    ] = "verl_default",
    log: Annotated[
        Path | None,
        typer.Option(help="The run's console output, or the file of its `file` logger: step times are then compared."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Folder or name of the run's tokenizer, to count tokens; without it they are estimated."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="data.max_response_length; otherwise told by where lengths pile up.", min=1)
    ] = None,
    curve: Annotated[
        str, typer.Option(help="Decode curve: dense, experts (made up), or a file, best from tailsieve calibrate.")
    ] = "dense",
    groups: Annotated[
        int | None, typer.Option("--groups", "-N", help="Prompt groups in a step, if not those of the dump.", min=1)
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option("--rollouts", "-n", help="Responses in a group, if the dump is misread.", min=1)
    ] = None,
    last: Annotated[int, typer.Option(help="Use so many recorded steps, from the end.", min=1)] = 50,
    steps: Annotated[int, typer.Option(help="Training steps to simulate in a run.")] = 40,
    seeds: Annotated[int, typer.Option(help="Runs on the dump as it is.")] = 4,
    halves: Annotated[int, typer.Option(help="Runs on random halves of the prompts, for the intervals.")] = 20,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests a replica runs at once.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens in a replica's KV cache; preempts when full.")] = None,
    context: Annotated[
        float | None, typer.Option(help="Seconds that a step takes longer per token of context.")
    ] = None,
    prefill: Annotated[float | None, typer.Option(help="Seconds per prompt token.")] = None,
    speculation: Annotated[
        str | None,
        typer.Option(
            "--speculation",
            "--acceptance",
            help="Also: what would drafts be worth, and how deep? The chance that one is accepted, given that those "
            "before it were: 0.7, by position 0.8,0.7,0.6, or the folder of a recorded run with drafts.",
        ),
    ] = None,
    draft_share: DraftShare = 0.05,
    pass_share: PassShare = 0.0,
    deepest: Annotated[int, typer.Option(help="Deepest drafts to look at.", min=1)] = 5,
    seed: Seed = 0,
    as_json: JsonFlag = False,
    csv: CsvFile = None,
    png: PngFile = None,
) -> None:
    """Should this run turn TailSieve on? Answers in words and numbers, from the responses that it has left.

    Let any verl run write its responses for a few steps (trainer.rollout_data_dir=rollouts), and ask. The answer is one
    of: use it, with the override to append; try it; leave it off, because the tail is chance, there is none, or nothing
    is left to gain. The run's lengths are simulated under its routing now and under TailSieve; a prompt that is
    generated again answers as long as its prompt makes it, not as long as it happened to be the first time.

    \b
    Examples:
      tailsieve advise rollouts/ --replicas 8 --model Qwen/Qwen3-8B --log run.log
      tailsieve advise rollouts/ -R 8 --curve h100.json --now uniform_group
      tailsieve advise rollouts/ -R 16 --groups 256           what if the batch were larger
      tailsieve advise rollouts/ -R 8 --speculation 0.8,0.7,0.6     what would MTP drafts be worth
      tailsieve advise rollouts/ -R 8 --json | jq .advice.override
    """
    from tailsieve_verl.advise.advice import decide
    from tailsieve_verl.advise.dump import read_dump
    from tailsieve_verl.advise.fit import fit_workload
    from tailsieve_verl.advise.run import Question, study_dump, ticks
    from tailsieve_verl.advise.speculation import draft_rows, draft_sentences, draft_ticks, study_drafts
    from tailsieve_verl.advise.steplog import read_steplog
    from tailsieve_verl.simulate.costs import SHAPES, read_costs
    from tailsieve_verl.simulate.drafting import Speculation, read_acceptance

    if speculation is None:
        refuse_unused(
            context_, "is about drafts and needs --speculation, for example 0.7", "draft_share", "pass_share", "deepest"
        )
    if replicas < 2:
        raise UserError(f"--replicas {replicas} leaves nothing to route: leave TailSieve off.")
    costs = read_costs(curve, context_s=context, prefill_s=prefill, max_num_seqs=max_num_seqs, kv_tokens=kv_tokens)
    ask = Question(replicas, costs, curve in SHAPES, now, steps, seeds, halves, seed)
    known = None
    if speculation is not None:
        known = Speculation(read_acceptance(speculation), costs.curve, draft_share, pass_share, deepest)
    metrics = None if log is None else read_steplog(log)
    trace = read_dump(dump, tokenizer=model, log=metrics, cap=max_tokens, last=last)
    fit = fit_workload(trace, n=rollouts, n_groups=groups)
    with progress() as bar:
        task = bar.add_task("simulating", total=ticks(ask) + (draft_ticks(known) if known else 0))
        study = study_dump(fit, ask, metrics, lambda: bar.advance(task))
        drafts = None
        if known is not None:
            known = replace(known, curve=study.machine.costs.curve)
            drafts = study_drafts(fit, ask, study, known, lambda: bar.advance(task))
    advice = decide(study.findings)
    rows = _rows(study.findings, [] if drafts is None else draft_rows(drafts, now))
    if csv:
        write_csv(csv, rows)
    if png:
        from tailsieve_verl.advise.plot import plot_advice

        write_whole(png, lambda name: plot_advice(name, fit, study.findings, advice))
    if as_json:
        print_json(
            {
                "advice": asdict(advice),
                "findings": asdict(study.findings),
                "comparison": [asdict(c) for c in study.table],
                "drafts": None if drafts is None else asdict(drafts),
                "remarks": fit.remarks,
            }
        )
        return
    typer.echo(f"{advice.headline}\n")
    for sentence in (*advice.sentences, *(draft_sentences(drafts, advice, now) if drafts else ())):
        typer.echo(f"- {sentence}")
    for remark in fit.remarks:
        typer.echo(f"- {remark[0].upper()}{remark[1:]}")
    typer.echo("")
    found = study.findings
    print_table(
        [
            {"": row["figure"], "value": _cell(row), "meaning": row["meaning"]}
            for row in rows
            if row["value"] is not None
        ],
        f"{found.n_groups} groups of {found.lengths.n} on {found.replicas} replicas, against {found.now}",
    )


def _rows(found: Any, more: Sequence[tuple[str, Any, str]]) -> list[dict[str, Any]]:
    """Every figure with its interval, if it has one."""
    lengths = found.lengths
    plain = [
        ("steps", lengths.steps, "recorded training steps"),
        ("groups", lengths.groups, f"complete prompt groups, of {lengths.prompts} prompts"),
        ("mean", lengths.mean, "response length, tokens"),
        ("p50", lengths.p50, ""),
        ("p90", lengths.p90, ""),
        ("p99", lengths.p99, ""),
        ("longest", lengths.longest, ""),
        ("cap", lengths.cap, "response limit"),
        ("truncated", lengths.truncated, "share of responses that reach it"),
        ("icc", found.icc, "share of the variance that is the prompt's; 0 is chance"),
        ("tail_icc", found.tail_icc, "the same for being in the longest tenth"),
        ("half_auc", lengths.half_auc, "half a group finds the longest tenth of the groups; 0.5 is chance"),
        ("epoch_auc", lengths.epoch_auc, f"an epoch finds the next one's longest tenth, {lengths.repeated} prompts"),
        ("q", found.q, "tail groups to start with"),
        ("m", found.m, "tail replicas to start with"),
        ("gain", found.gain, f"speed of generation over {found.now}"),
        ("held_gain", found.held, "the same, a second attempt as long as the first"),
        ("risk", found.risk, "probability that the gain is below 1"),
        ("step_gain", found.step_gain, "speed of the whole step"),
        ("bias_mean", found.bias_mean, "lengths trained on against first attempts, relative"),
        ("bias_p99", found.bias_p99, "relative"),
        ("bias_truncated", found.bias_truncated, "difference of shares"),
        ("now_s", found.now_s, "simulated generation, seconds a step"),
        ("tailsieve_s", found.tailsieve_s, "the same under TailSieve"),
        ("room", found.room, "makespan now over what no placement can beat"),
        ("idle", found.idle, "share of replica time idle now"),
        ("uniform", found.uniform, "share of TailSieve's steps that ran uniform"),
        ("match_error", None if found.match is None else found.match.error, "simulated step times against the log's"),
        (
            "match_scale",
            None if found.match is None else found.match.scale,
            "factor on the curve that the log asks for",
        ),
    ]
    rows = []
    for name, value, meaning in (*plain, *more):
        ends = (value.low, value.high) if hasattr(value, "low") else (None, None)
        mean = value.mean if hasattr(value, "low") else value
        rows.append({"figure": name, "value": mean, "low": ends[0], "high": ends[1], "meaning": meaning})
    return rows


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['value']:.4g}"
    return text if row["low"] is None else f"{text} ({row['low']:.3g} to {row['high']:.3g})"
