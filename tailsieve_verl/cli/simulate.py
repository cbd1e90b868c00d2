"""``tailsieve simulate``: policies compared on a simulated run."""

from __future__ import annotations

import math
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
    say,
    write_csv,
    write_whole,
)
from tailsieve_verl.errors import UserError

DEFAULT_POLICIES = ["uniform_group", "verl_default", "fixed", "tailsieve"]
#: With drafts: what a reviewer asks for first, drafts under verl's own dispatch at one depth and at the live one.
DRAFTING_POLICIES = [
    "uniform_group",
    "verl_default",
    "verl_default:depth=3",
    "verl_default:depth=auto",
    "tailsieve",
    "tailsieve:depth=3",
    "tailsieve:depth=auto",
]


#: Options that shape the synthetic load.
SYNTHETIC = ("p50", "p90", "cap", "prompt_share", "runaway", "data_set", "drift", "prompt_length")


def command(
    context_: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Option(help="Draw lengths from this trace (csv, jsonl, verl dump folder) instead of a synthetic load."),
    ] = None,
    trace_model: Annotated[str | None, typer.Option(help="Model to take from a trace that has several.")] = None,
    p50: Annotated[float, typer.Option(help="Synthetic load: median response length, tokens.")] = 1160,
    p90: Annotated[float, typer.Option(help="Synthetic load: 90th percentile, tokens.")] = 4115,
    cap: Annotated[int, typer.Option(help="Synthetic load: response limit, tokens.")] = 16384,
    prompt_share: Annotated[
        float | None,
        typer.Option(
            help="Synthetic load: share of the length variance that is the prompt's. "
            "Default: 0.648 (paper, Appendix B) of what runaways leave."
        ),
    ] = None,
    runaway: Annotated[float, typer.Option(help="Synthetic load: chance that a response runs to the limit.")] = 0.0,
    data_set: Annotated[int, typer.Option(help="Synthetic load: prompts in the data set.")] = 100_000,
    drift: Annotated[float, typer.Option(help="Synthetic load: relative change of lengths in a step.")] = 0.0,
    prompt_length: Annotated[int, typer.Option(help="Synthetic load: prompt tokens.", min=0)] = 0,
    curve: Annotated[
        str, typer.Option(help="Decode curve: dense, experts (made up), or a file, best from tailsieve calibrate.")
    ] = "dense",
    groups: Annotated[int, typer.Option("--groups", "-N", help="Prompt groups in an update batch.", min=1)] = 64,
    rollouts: Annotated[int, typer.Option("--rollouts", "-n", help="Responses in a group.", min=1)] = 8,
    replicas: Annotated[int, typer.Option("--replicas", "-R", help="vLLM replicas.", min=1, max=1_000_000)] = 8,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Repeatable: uniform_group, verl_default, fixed:q=8,m=2, inner_loop, tailsieve, paper, history, auto, "
            "uniform_oracle, seer_oracle, streamrl_oracle. Any of them with drafts, as verl_default:depth=3, "
            "tailsieve:depth=auto or fixed:q=8,m=2,depth.bulk=3,depth.tail=1:5/8:2. "
            "Default: " + ", ".join(DEFAULT_POLICIES) + "."
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Chance that a draft is accepted, given that those before it were: 0.7, by position 0.8,0.7,0.6, or "
            "the folder of a recorded run with drafts. Policies draft if they or --depth say how deep."
        ),
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            help="Draft depth of policies that name none: a number, auto (the best for each running batch), or a table "
            "like 1:5/8:2 (5 from one running request on, 2 from eight on)."
        ),
    ] = None,
    draft_share: DraftShare = 0.05,
    pass_share: PassShare = 0.0,
    deepest: Annotated[int, typer.Option(help="Deepest drafts of auto.", min=1)] = 5,
    sample_drafts: Annotated[
        bool, typer.Option("--sample-drafts", help="Accept drafts one by one; else a step gives the mean. Slower.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 60,
    skip: Annotated[int, typer.Option(help="First steps that the summary leaves out.", min=0)] = 0,
    seeds: Annotated[int, typer.Option(help="Streams to simulate; several give intervals.", min=1)] = 3,
    noise: Annotated[
        float, typer.Option(help="Standard deviation of a step's log speed, for example 0.1.", min=0, max=5)
    ] = 0.0,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests a replica runs at once.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="Tokens in a replica's KV cache; preempts when full.")] = None,
    context: Annotated[
        float | None, typer.Option(help="Seconds that a step takes longer per token of context.")
    ] = None,
    prefill: Annotated[float | None, typer.Option(help="Seconds per prompt token.")] = None,
    seed: Seed = 0,
    as_json: JsonFlag = False,
    csv: CsvFile = None,
    png: PngFile = None,
) -> None:
    """Simulate training steps under several policies and compare their times, idle share and length bias.

    Every policy sees the same stream of prompts. The controller, the ledger and the placements are those of a real run;
    only the engines and the lengths are simulated.

    \b
    Examples:
      tailsieve simulate                                      the paper's "real" load on a made-up engine
      tailsieve simulate --trace lengths.csv --curve h100.json -R 4
      tailsieve simulate --policy verl_default --policy fixed:q=8,m=2 --policy tailsieve:q=1,m=4
      tailsieve simulate --runaway 0.001 --p50 400 --p90 600  chance runaways: see the bias columns
      tailsieve simulate --acceptance 0.7                     drafts: one depth and live depth, under both dispatches
      tailsieve simulate --acceptance 0.8,0.7,0.6 --policy verl_default:depth=auto --policy tailsieve:depth=auto
    """
    from tailsieve_verl.simulate.costs import read_costs
    from tailsieve_verl.simulate.drafting import PoolDepths, Speculation, parse_depth, read_acceptance
    from tailsieve_verl.simulate.policies import parse_policies
    from tailsieve_verl.simulate.rollout import Machine
    from tailsieve_verl.simulate.study import BASELINES, Setup, compare, simulate_run

    if trace is None:
        refuse_unused(context_, "chooses a model of --trace; name a trace, or leave it out", "trace_model")
    else:
        refuse_unused(context_, "shapes the synthetic load, which --trace replaces; leave one of them out", *SYNTHETIC)
    if acceptance is None:
        refuse_unused(
            context_, "is about drafts and needs --acceptance, for example 0.7",
            "draft_share", "pass_share", "deepest", "sample_drafts",
        )  # fmt: skip
    if skip >= steps:
        raise UserError(f"--skip {skip} leaves none of {steps} steps; give a smaller one.")
    specs = parse_policies(policy or (DRAFTING_POLICIES if acceptance and not depth else DEFAULT_POLICIES))
    costs = read_costs(curve, context_s=context, prefill_s=prefill, max_num_seqs=max_num_seqs, kv_tokens=kv_tokens)
    workload = _workload(
        trace, trace_model, rollouts, p50, p90, cap, prompt_share, runaway, data_set, drift, prompt_length
    )
    speculation = depths = None
    if acceptance is not None:
        if depth is None and not any(spec.depths for spec in specs):
            raise UserError("--acceptance is about drafts, and no policy drafts; add --depth auto, or leave it out.")
        known = read_acceptance(acceptance)
        speculation = Speculation(known, costs.curve, draft_share, pass_share, deepest, sample_drafts)
    elif depth is not None or any(spec.depths for spec in specs):
        raise UserError("a draft depth needs --acceptance, the chance that a draft is accepted, for example 0.7.")
    if depth is not None:
        depths = PoolDepths(parse_depth(depth), parse_depth(depth))
    setup = Setup(
        groups, steps, Machine(replicas, costs, noise), workload, skip, speculation=speculation, depths=depths
    )
    tables = {}
    for spec in specs:
        spec.build(groups, replicas)  # a wrong setting is named before anything runs
        drafts = setup.drafts(spec, rollouts)
        tables[spec.label] = {
            pool: None if found is None else str(found.table)
            for pool, found in (("bulk", drafts.bulk), ("tail", drafts.tail))
        }
    runs = []
    with progress() as bar:
        task = bar.add_task("simulating", total=len(specs) * seeds * steps)
        for k in range(seeds):
            for spec in specs:
                bar.update(task, description=f"{spec.label} seed {seed + k}")
                runs.append(simulate_run(setup, spec, seed + k, lambda: bar.advance(task)))
    table = compare(setup, runs)
    last_knot, most = costs.curve.batch_sizes[-1], min(max(r.most_requests for r in runs), max_num_seqs or 10**9)
    if most > last_knot:
        say(f"The curve ends at {last_knot:g} requests; up to {most} ran on a replica: its last slope was continued.")
    rows = [_row(c) for c in table]
    if csv:
        write_csv(csv, rows)
    if png:
        from tailsieve_verl.simulate.plots import plot_comparison

        write_whole(png, lambda name: plot_comparison(name, runs, table))
    if as_json:
        print_json({"comparison": [asdict(c) for c in table], "runs": [asdict(r) for r in runs], "depths": tables})
        return
    streams = "1 seed" if seeds == 1 else f"{seeds} seeds"
    title = f"{groups} groups of {rollouts} on {replicas} replicas, {steps - skip} steps, {streams}"
    drafted = min(
        (c for c in table if c.policy in c.speedup and c.policy not in BASELINES),
        key=lambda c: c.step_s.mean,
        default=None,
    )
    print_table([_times(c, drafted.policy if drafted else None) for c in table], title)
    print_table(
        [_data(c) for c in table],
        "What was trained on, and how",
        [
            "vs group, vs verl: speed-up over whole groups and over verl's default, ± half the 95 % interval.",
            "vs bound: makespan over what no placement of the same responses could beat."
            + (" With drafts: nor any depth." if speculation else ""),
            "bias: trained lengths against the first ones of the same prompts; regenerating a group re-rolls them.",
        ],
    )
    if speculation is not None:
        print_table(
            [{"policy": name, **{k: v or "-" for k, v in pools.items()}} for name, pools in tables.items()],
            "Draft depth, as b:d from b running requests on",
            [
                *(
                    [f"vs drafts: speed-up over {drafted.policy}, the fastest of verl's with drafts."]
                    if drafted
                    else []
                ),
            ],
        )


def _workload(trace, trace_model, n, p50, p90, cap, prompt_share, runaway, data_set, drift, prompt_length):  # type: ignore[no-untyped-def]
    from tailsieve_verl.simulate.workload import SyntheticWorkload, TraceWorkload
    from tailsieve_verl.traces.files import read_trace
    from tailsieve_verl.traces.synthetic import PAPER_SHARES, LengthModel

    if trace is not None:
        found = read_trace(trace, model=trace_model)
        return lambda seed: TraceWorkload(found, n, seed=seed)
    model = LengthModel(p50=p50, p90=p90, cap=cap, runaway=runaway, prompt_share=prompt_share or 0.0)
    if prompt_share is None:
        model = replace(model, prompt_share=PAPER_SHARES.prompt * model.most_share)
    return lambda seed: SyntheticWorkload(
        model, n, seed=seed, data_set=data_set, drift=drift, prompt_length=prompt_length
    )


def _row(c: Any) -> dict[str, Any]:
    """Numbers for CSV, interval ends in columns of their own."""
    row: dict[str, Any] = {"policy": c.policy}
    intervals = {
        "step_s": c.step_s,
        **{f"over_{name}": found for name, found in c.speedup.items()},
        "over_bound": c.over_bound,
        "bias_mean": c.bias_mean,
        "bias_p99": c.bias_p99,
        "bias_truncated": c.bias_truncated,
    }
    for name, found in intervals.items():
        row |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
    return row | {
        "bound_s": c.bound_s,
        "idle_tail": c.idle_tail,
        "idle_bulk": c.idle_bulk,
        "preemptions": c.preemptions,
        "switches": c.switches,
        "q": c.q,
        "m": c.m,
    }


def _times(c: Any, drafted: str | None) -> dict[str, Any]:
    gains = {"uniform_group": "vs group", "verl_default": "vs verl", drafted: "vs drafts"}
    return {
        "policy": c.policy,
        "makespan s": f"{c.step_s.mean:.2f}",
        **{title: str(c.speedup[name]) for name, title in gains.items() if name in c.speedup},
        "vs bound": f"{c.over_bound.mean:.3f}",
        "idle tail": "-" if math.isnan(c.idle_tail) else f"{c.idle_tail:.0%}",
        "idle bulk": f"{c.idle_bulk:.0%}",
    }


def _data(c: Any) -> dict[str, Any]:
    return {
        "policy": c.policy,
        "bias mean": f"{c.bias_mean.mean:+.1%}",
        "bias p99": f"{c.bias_p99.mean:+.1%}",
        "truncated": f"{c.bias_truncated.mean:+.2%}",
        "mean q": f"{c.q:.1f}",
        "mean m": f"{c.m:.1f}",
        "switches": f"{c.switches:.1f}",
        "preempted": f"{c.preemptions:.0f}",
    }
