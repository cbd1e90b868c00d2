"""``tailsieve evaluate``: pass@k of checkpoints on the paper's benchmarks, and its Table 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tailsieve_verl.cli.calibrate import (
    DeviceName,
    Dtype,
    Eager,
    EngineArgs,
    KvGib,
    MaxNumSeqs,
    MemoryShare,
    Replicas,
    engine_spec,
    places_for,
)
from tailsieve_verl.cli.output import (
    JsonFlag,
    Seed,
    print_json,
    print_table,
    progress,
    say,
    write_csv,
    write_whole,
)
from tailsieve_verl.errors import UserError
from tailsieve_verl.evaluate.benchmarks import KNOWN, Benchmark, Problem, read_benchmark
from tailsieve_verl.evaluate.checkpoint import Checkpoint, find_checkpoint, ready_model
from tailsieve_verl.evaluate.records import Records
from tailsieve_verl.evaluate.run import (
    REWARD,
    Evaluation,
    Reward,
    Sampling,
    ask,
    count,
    load_reward,
    missing,
    settings_of,
)
from tailsieve_verl.evaluate.table import figures, table3
from tailsieve_verl.markdown import markdown_table
from tailsieve_verl.replay.engine import EngineSpec

_SAMPLING = "Sampling (default: the paper's Table A.1)"


def command(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...",
            help="Hugging Face folder, verl checkpoint (global_step_N) or verl run (its latest); name=folder gives the "
            "name in the table. The first is what changes are counted from.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the answers, one folder a checkpoint in it.")],
    bench: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Repeatable: NAME@K=FILE, where @K and =FILE may be left out; names are {', '.join(KNOWN)}. "
            "Default: all four, k = 1 for the first two and 10 for AIME."
        ),
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder where tailsieve data wrote NAME/test.parquet.")] = Path("data"),
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers to a problem; default 1, 4, 32 and 32. More, less noise.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first so many problems.")] = None,
    reward: Annotated[
        str, typer.Option(help="What grades, as module:function, like verl's reward functions.")
    ] = REWARD,
    replicas: Replicas = 1,
    temperature: Annotated[float, typer.Option(min=0.0, rich_help_panel=_SAMPLING)] = Sampling.temperature,
    top_p: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = Sampling.top_p,
    top_k: Annotated[int, typer.Option(rich_help_panel=_SAMPLING)] = Sampling.top_k,
    presence_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = Sampling.presence_penalty,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Longest answer.", rich_help_panel=_SAMPLING)
    ] = Sampling.max_tokens,
    stop: Annotated[
        list[str] | None, typer.Option(help="Repeatable: string that ends an answer.", rich_help_panel=_SAMPLING)
    ] = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="Thinking on.", rich_help_panel=_SAMPLING)] = False,
    stall: Annotated[float, typer.Option(help="Seconds without an answer after which to give up.")] = 1800.0,
    device: DeviceName = "auto",
    max_num_seqs: MaxNumSeqs = 256,
    gpu_memory_utilization: MemoryShare = 0.9,
    kv_gib: KvGib = 1,
    dtype: Dtype = "auto",
    enforce_eager: Eager = False,
    engine_args: EngineArgs = "{}",
    seed: Seed = Sampling.seed,
    as_json: JsonFlag = False,
) -> None:
    """Sample answers from checkpoints, grade them, and write the paper's Table 3.

    pass@k is the unbiased estimate. Every answer is kept in OUT/<name>/<benchmark>.jsonl as it
    comes: the same command goes on where it was stopped, and more --samples add to what is
    there. verl checkpoints are merged by verl's own merger into OUT/<name>/model first.

    \b
    Examples:
      tailsieve evaluate runs/q/tailsieve --out eval --replicas 8
      tailsieve evaluate base=Qwen/Qwen3.5-2B uniform=runs/q/uniform tailsieve=runs/q/tailsieve --out eval
      tailsieve evaluate model/ --out eval --bench aime24@10 --samples 64
    """
    found = {label: _checkpoint(path) for label, path in _named(checkpoints).items()}
    benchmarks = [read_benchmark(spec, data, samples=samples, limit=limit) for spec in bench or KNOWN]
    twice = [name for name, times in Counter(found.name for found in benchmarks).items() if times > 1]
    if twice:
        raise UserError(
            f"--bench {twice[0]} is given twice; for another @K call again: answers that are there are not asked for."
        )
    sampling = Sampling(
        temperature, top_p, top_k, presence_penalty, max_tokens,
        tuple(Sampling.stop if stop is None else stop), seed, thinking,
    )  # fmt: skip
    function = load_reward(reward)

    def spec_for(folder: str, longest_prompt: int) -> EngineSpec:
        spec = engine_spec(
            folder, device, max(64, longest_prompt + max_tokens), max_num_seqs, gpu_memory_utilization, kv_gib, dtype,
            enforce_eager, engine_args, "wall",
        )  # fmt: skip
        return replace(spec, extra={"skip_tokenizer_init": False, **spec.extra})  # stop strings need the text

    evaluations, faults = [], []
    try:
        for label, checkpoint in found.items():
            try:
                evaluations.append(
                    _evaluate(
                        label,
                        checkpoint,
                        benchmarks,
                        sampling,
                        reward,
                        function,
                        out / label,
                        spec_for,
                        replicas,
                        stall,
                    )
                )
            except UserError as error:  # the other checkpoints are still worth their answers
                faults.append(f"{label}: {error}")
                say(f"error: {faults[-1]}")
    except KeyboardInterrupt:
        say(f"stopped; {out} holds the answers so far, and the same command goes on from there.")
        raise typer.Exit(130) from None
    if not evaluations:
        raise UserError("no checkpoint could be evaluated; the reasons are above.")
    _show(evaluations, benchmarks, out, as_json)
    if faults:
        raise typer.Exit(1)


def _named(checkpoints: Sequence[str]) -> dict[str, str]:
    """Label -> path; a path without a label is named after its last two folders where that is needed to tell them."""
    named: dict[str, str] = {}
    for text in checkpoints:
        label, mark, path = text.partition("=")
        if not mark or Path(text).exists():  # a folder may be called lr=1e-6
            label, path = Path(text).absolute().name, text
            if label.startswith("global_step_") or label == "actor":
                label = "-".join(Path(text).parts[-2:])
        if not label or label in named:
            raise UserError(f"{text}: name each checkpoint differently, as name=folder.")
        if "/" in label or label in (".", ".."):
            raise UserError(f"{text}: {label} names a folder in --out; give a name without slashes.")
        named[label] = path
    return named


def _checkpoint(path: str) -> Checkpoint | str:
    """A folder's kind; a hub name is left to vLLM."""
    hub = path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).exists()
    return path if hub else find_checkpoint(path)


def _evaluate(
    label: str,
    checkpoint: Checkpoint | str,
    benchmarks: Sequence[Benchmark],
    sampling: Sampling,
    reward: str,
    function: Reward,
    folder: Path,
    spec_for: Callable[[str, int], EngineSpec],
    replicas: int,
    stall: float,
) -> Evaluation:
    records = Records(folder)
    source = checkpoint if isinstance(checkpoint, str) else str((checkpoint.shards or checkpoint.path).resolve())
    records.check_settings(settings_of(source, benchmarks, sampling, reward))
    wanted = missing(benchmarks, records)
    total = sum(len(bench.problems) * bench.samples for bench in benchmarks)
    if wanted:
        if isinstance(checkpoint, Checkpoint) and checkpoint.shards is not None:
            say(f"{label}: merging {checkpoint.shards}")
        model = checkpoint if isinstance(checkpoint, str) else str(ready_model(checkpoint, folder / "model"))
        say(f"{label}: {total - len(wanted)} of {total} answers are there already" if len(wanted) < total else label)
        encode = _encoder(model, sampling.thinking)
        with progress() as bar:
            task = bar.add_task(f"{label}: starting vLLM", total=total, completed=total - len(wanted))
            for _ in ask(
                wanted, records, sampling, function, encode, lambda longest: spec_for(model, longest),
                places_for(spec_for(model, 0), replicas), stall_s=stall,
            ):  # fmt: skip
                bar.update(task, description=label)
                bar.advance(task)
    return count(label, benchmarks, records)


def _encoder(model: str, thinking: bool) -> Callable[[Problem], list[int]]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:  # transformers raises whatever its parts raise
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"the tokenizer of {model} cannot be loaded ({reason}).") from None

    def encode(problem: Problem) -> list[int]:
        text = tokenizer.apply_chat_template(
            list(problem.messages), tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]

    return encode


def _show(evaluations: Sequence[Evaluation], benchmarks: Sequence[Benchmark], out: Path, as_json: bool) -> None:
    rows, numbers = table3(evaluations, benchmarks), figures(evaluations, benchmarks)
    write_csv(out / "table3.csv", numbers)
    write_whole(out / "table3.md", lambda name: Path(name).write_text(markdown_table(rows), encoding="utf-8"))
    faults = [f"{e.label}, {name}: {why}." for e in evaluations for name, why in e.faults.items()]
    if as_json:
        data: dict[str, Any] = {"table": numbers, "faults": faults}
        print_json(data)
        return
    cut = [
        f"{e.label}, {name}: {share:.1%} of the answers were cut at the limit."
        for e in evaluations
        for name, share in e.cut.items()
        if share > 0.01
    ]
    notes = ["percent, with the standard error over problems; in brackets the change from the first, in points."]
    print_table(rows, "Table 3", [*notes, *faults, *cut, f"written to {out}/table3.csv and table3.md."])
