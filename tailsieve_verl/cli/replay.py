"""``tailsieve replay``: placements on real vLLM engines, against what the simulator says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tailsieve_verl.cli.calibrate import (
    Clock,
    DeviceName,
    Dtype,
    Eager,
    EngineArgs,
    KvGib,
    MaxModelLen,
    MaxNumSeqs,
    MemoryShare,
    ModelFolder,
    Replicas,
    disturbance,
    engine_spec,
    places_for,
    ticker,
)
from tailsieve_verl.cli.output import (
    CsvFile,
    JsonFlag,
    PngFile,
    Seed,
    print_json,
    print_table,
    progress,
    say,
    write_csv,
    write_whole,
)
from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.calibrate import calibrate
from tailsieve_verl.replay.calibration import Calibration, load_calibration
from tailsieve_verl.replay.engine import start_replicas
from tailsieve_verl.replay.pick import Picked, pick
from tailsieve_verl.replay.policies import place
from tailsieve_verl.replay.predict import largest_batch, predict
from tailsieve_verl.replay.run import TIE, Run, Verdict, ranking, study, verdicts

_LOAD, _TRACE = "Load", "Trace"

DEFAULT_POLICIES = ["uniform_group", "verl_default", "fixed", "seer_oracle"]

#: A run may take this many times its prediction, and a minute, before it is given up.
PATIENCE = 20.0


def command(
    trace: Annotated[Path, typer.Argument(help="Response lengths: CSV, JSON lines, or the folder of a verl dump.")],
    model: ModelFolder,
    curve: Annotated[
        Path | None, typer.Option(help="From tailsieve calibrate; without it the replicas are calibrated first.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Repeatable: uniform_group, verl_default, fixed:q=2,m=1, uniform_oracle, seer_oracle, "
            "streamrl_oracle:m=1. Default: " + ", ".join(DEFAULT_POLICIES) + ".",
        ),
    ] = None,
    replicas: Replicas = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each policy.")] = 3,
    groups: Annotated[int, typer.Option(min=1, help="Prompt groups, N.", rich_help_panel=_LOAD)] = 16,
    rollouts: Annotated[int, typer.Option(min=1, help="Responses to a prompt, n.", rich_help_panel=_LOAD)] = 4,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Scale the lengths so that none is more.", rich_help_panel=_LOAD)
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="Scale the lengths by this; those over --max-tokens are cut.", rich_help_panel=_LOAD),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of every prompt.", rich_help_panel=_LOAD)] = 32,
    runs: Annotated[
        Path | None, typer.Option(help="Keep every run in this file of JSON lines; what is in it is not run again.")
    ] = None,
    trace_model: Annotated[str | None, typer.Option(help="Which model's responses.", rich_help_panel=_TRACE)] = None,
    source: Annotated[
        str | None, typer.Option(help="Which data set; all for every one.", rich_help_panel=_TRACE)
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Which checkpoint.", rich_help_panel=_TRACE)] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For a verl dump.", rich_help_panel=_TRACE)] = None,
    device: DeviceName = "auto",
    max_model_len: MaxModelLen = 2048,
    max_num_seqs: MaxNumSeqs = 64,
    gpu_memory_utilization: MemoryShare = 0.9,
    kv_gib: KvGib = 1,
    dtype: Dtype = "auto",
    enforce_eager: Eager = False,
    engine_args: EngineArgs = "{}",
    clock: Clock = "wall",
    seed: Seed = 0,
    as_json: JsonFlag = False,
    csv: CsvFile = None,
    png: PngFile = None,
) -> None:
    """Run a trace's lengths on real vLLM engines under several placements; check the simulator.

    N prompts with n responses each are drawn from the trace. Every response generates exactly
    its number of tokens on the replica that the policy gives it, all submitted at once; the
    time to the last token is the makespan. The table says what was measured, what the
    simulator predicts from the curve, and whether the policies come out in the right order.

    Nothing is cut: this is the makespan of a given set of responses, not a whole step of the
    two-pool policy. fixed isolates the q groups that were longest in ANOTHER draw of the same
    prompts, as a run would know them; policies named oracle see the lengths themselves.

    \b
    Examples:
      tailsieve calibrate --model M --out curve.json --replicas 2
      tailsieve replay lengths.csv --model M --curve curve.json --max-tokens 256
      tailsieve replay lengths.csv --model M --policy verl_default --policy fixed:q=4,m=1
    """
    from tailsieve_verl.traces.files import read_trace

    spec = engine_spec(
        model,
        device,
        max_model_len,
        max_num_seqs,
        gpu_memory_utilization,
        kv_gib,
        dtype,
        enforce_eager,
        engine_args,
        clock,
    )
    calibration = load_calibration(curve) if curve else None
    read = read_trace(trace, model=trace_model, source=source, checkpoint=checkpoint, tokenizer=tokenizer)
    load = pick(
        read.tokens, read.prompt, groups=groups, rollouts=rollouts, seed=seed, scale=scale, max_tokens=max_tokens
    )
    _check_fit(load, prompt_tokens, max_model_len)
    policies = list(dict.fromkeys(policy or DEFAULT_POLICIES))
    assignments = {name: place(name, load.lengths, load.history, replicas) for name in policies}
    try:
        with progress() as bar:
            tick = ticker(bar, "starting vLLM")
            with start_replicas(spec, places_for(spec, replicas)) as running:
                if calibration is None:
                    sizes = _sizes(max(largest_batch(where, max_num_seqs) for where in assignments.values()))
                    calibration = calibrate(running, batch_sizes=sizes, model=str(spec.model), tick=tick)
                predicted = {
                    name: float(predict(load.lengths, where, replicas, calibration, prompt_tokens=prompt_tokens).max())
                    for name, where in assignments.items()
                }
                measured = study(
                    load.lengths,
                    assignments,
                    running,
                    repeats=repeats,
                    prompt_tokens=prompt_tokens,
                    seed=seed,
                    log=runs,
                    label=f"{spec} {replicas}",
                    timeouts_s={name: 60 + PATIENCE * seconds for name, seconds in predicted.items()},
                    tick=tick,
                )
    except KeyboardInterrupt:
        say(f"stopped; {runs} holds what was run, and the same command goes on from there." if runs else "stopped.")
        raise typer.Exit(130) from None
    results = verdicts(measured, predicted)
    notes = _notes(load, assignments, calibration, measured, results, max_num_seqs, clock)
    _show(read.name or trace.name, load, results, notes, measured, as_json, csv, png)


def _check_fit(load: Picked, prompt_tokens: int, max_model_len: int) -> None:
    longest = int(load.lengths.max()) + prompt_tokens
    if longest > max_model_len:
        raise UserError(
            f"the longest request has {longest} tokens with its prompt, and --max-model-len is {max_model_len}; raise "
            "it, or shrink the lengths with --max-tokens."
        )


def _sizes(largest: int) -> list[int]:
    return sorted({*(1 << i for i in range(largest.bit_length())), largest})


def _notes(
    load: Picked,
    assignments: dict[str, np.ndarray],
    calibration: Calibration,
    measured: list[Run],
    results: list[Verdict],
    max_num_seqs: int,
    clock: str,
) -> list[str]:
    groups, rollouts = load.lengths.shape
    notes = [
        f"{groups} groups of {rollouts}, {load.lengths.sum()} tokens, longest {load.lengths.max()}; the trace's "
        f"lengths times {load.scale:.4g}" + (f", {load.clipped:.1%} of them cut." if load.clipped else ".")
    ]
    if load.repeated:
        notes.append(f"The trace has too few prompts: {load.repeated} groups repeat one.")
    most = max(largest_batch(where, max_num_seqs) for where in assignments.values())
    if most > calibration.largest:
        notes.append(
            f"The curve was measured up to batch size {calibration.largest:.0f} and is used up to {most}: beyond it "
            "the prediction is an extrapolation."
        )
    if calibration.clock != clock:
        notes.append(f"The curve is in {calibration.clock} time and the replay in {clock} time: do not compare them.")
    preempted = sum(run.preemptions for run in measured)
    if preempted:
        notes.append(f"vLLM preempted {preempted} requests in all runs: the KV cache was too small for this load.")
    if calibration.cpu_share is not None:
        notes += disturbance(float(np.median([run.cpu_share for run in measured])), clock)
    right, pairs = ranking(results)
    if pairs:
        verdict = "right" if right == pairs else "WRONG"
        notes.append(f"Order of the policies: {verdict}, {right} of {pairs} pairs that differ by more than {TIE:.0%}.")
    else:
        notes.append(f"Order of the policies: no two differ by more than {TIE:.0%}.")
    return notes


def _show(
    name: str,
    load: Picked,
    results: list[Verdict],
    notes: list[str],
    measured: list[Run],
    as_json: bool,
    csv: Path | None,
    png: Path | None,
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "policy": v.policy,
            "measured_s": v.measured_s,
            "low_s": v.low_s,
            "high_s": v.high_s,
            "predicted_s": v.predicted_s,
            "error": v.error,
            "runs": v.runs,
        }
        for v in results
    ]
    if csv:
        write_csv(csv, rows)
    if png:
        write_whole(png, lambda file: _plot(file, name, results))
    if as_json:
        right, pairs = ranking(results)
        data = {"trace": name, "scale": load.scale, "clipped": load.clipped, "lengths": load.lengths}
        runs = [{"policy": run.policy, "repeat": run.repeat, "replica_s": run.replica_s} for run in measured]
        order = {"right": right, "pairs": pairs}
        print_json({**data, "policies": rows, "order": order, "runs": runs, "notes": notes})
        return
    table = [
        {
            "policy": v.policy,
            "measured_s": v.measured_s,
            "spread": f"{v.spread:.1%}",
            "predicted_s": v.predicted_s,
            "error": f"{v.error:+.1%}",
        }
        for v in results
    ]
    print_table(table, f"Makespan of {name}", notes)


def _plot(file: str, name: str, results: list[Verdict]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 1.2 * max(3, len(results)), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    at = np.arange(len(results))
    spread = [[v.measured_s - v.low_s for v in results], [v.high_s - v.measured_s for v in results]]
    axes.bar(at - 0.2, [v.measured_s for v in results], 0.4, yerr=spread, capsize=3, label="measured")
    axes.bar(at + 0.2, [v.predicted_s for v in results], 0.4, label="predicted")
    axes.set_xticks(at, [v.policy for v in results], fontsize=8)
    axes.set_ylabel("makespan, s")
    axes.set_title(name, fontsize=9)
    axes.legend()
    figure.savefig(file, format="png", dpi=150)
