"""``tailsieve calibrate``: the decode curve of a real vLLM engine. Run on the CPU only so far, no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

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
from tailsieve_verl.replay.calibration import Calibration, save_calibration
from tailsieve_verl.replay.engine import Device, EngineSpec, Place, cpu_places, gpu_places, start_replicas
from tailsieve_verl.whole_file import check_place

_ENGINE = "Engine"

ModelFolder = Annotated[
    str, typer.Option("--model", help="Folder of the model, or its name in the Hugging Face cache.")
]
DeviceName = Annotated[
    Literal["auto", "cpu", "gpu"], typer.Option(help="auto takes GPUs if there are any.", rich_help_panel=_ENGINE)
]
Replicas = Annotated[int, typer.Option(min=1, help="Replicas, each an engine with cores or GPUs of its own.")]
MaxModelLen = Annotated[int, typer.Option(min=64, help="Prompt and response in tokens.", rich_help_panel=_ENGINE)]
MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Requests that decode at once.", rich_help_panel=_ENGINE)]
MemoryShare = Annotated[float, typer.Option(min=0.05, max=1.0, help="GPU only.", rich_help_panel=_ENGINE)]
KvGib = Annotated[int, typer.Option(min=1, help="GiB of KV cache a replica; CPU only.", rich_help_panel=_ENGINE)]
Dtype = Annotated[
    Literal["auto", "half", "float16", "bfloat16", "float", "float32"],
    typer.Option(help="As in vLLM.", rich_help_panel=_ENGINE),
]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="No CUDA graphs.", rich_help_panel=_ENGINE)]
EngineArgs = Annotated[
    str,
    typer.Option(
        help="Further vLLM engine arguments as JSON: '{\"max_num_batched_tokens\": 8192}'.", rich_help_panel=_ENGINE
    ),
]
Clock = Annotated[
    Literal["wall", "cpu"],
    typer.Option(
        help="cpu: CPU time instead of wall time, for a machine that others use; only on the CPU, one core a replica.",
        rich_help_panel=_ENGINE,
    ),
]


def command(
    model: ModelFolder,
    out: Annotated[Path, typer.Option("--out", help="The curve, JSON; written after every run, so nothing is lost.")],
    batch_sizes: Annotated[
        str | None, typer.Option(help="For example 1,2,4,8; default: powers of two up to --max-num-seqs.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Decode steps of a run.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Passes over the batch sizes.")] = 3,
    long_prompt: Annotated[
        int, typer.Option(min=64, help="Prompt tokens of the runs with much context: as long as responses get.")
    ] = 1024,
    replicas: Replicas = 1,
    depths: Annotated[str | None, typer.Option(help="Draft depths, for example 0,2,4: a curve for each.")] = None,
    speculative: Annotated[
        str | None, typer.Option(help="vLLM's speculative_config for --depths as JSON, without num_speculative_tokens.")
    ] = None,
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
    """Measure how long a decode step takes at each batch size on a real vLLM engine.

    A step of b requests with C tokens of context in sum takes tau(b) + k C seconds, and p more
    for every prompt token. The command runs b equal requests at each batch size, with short
    and with long prompts, and fits tau, k and p. simulate, replay and advise read the file.

    Give the engine what your rollout gives it (--max-model-len, --dtype, --engine-args): the
    curve is of this engine. Replicas that share a CPU's memory slow each other; --replicas 2
    measures each while the other is as busy. On a machine that does other work the figures
    are those of the other work too; the command says when it notices.

    With --depths the curve is of a step that verifies so many draft tokens, in a file for
    each depth (curve.depth2.json). Random prompts say nothing about acceptance: divide by
    the tokens that a step of yours yields. ngram has nothing to draft there; name a drafter
    that always drafts.

    \b
    Examples:
      tailsieve calibrate --model Qwen3-4B --out curve.json
      tailsieve calibrate --model M --out curve.json --batch-sizes 1,4,16,64 --png curve.png
      tailsieve calibrate --model M --out curve.json --device cpu --replicas 2
    """
    from tailsieve_verl.replay.calibrate import calibrate, calibrate_depths

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
    if out.suffix != ".json":
        raise UserError(f"--out {out} must end in .json.")
    check_place(out)
    options: dict[str, Any] = {
        "batch_sizes": numbers(batch_sizes, "--batch-sizes", 1) if batch_sizes is not None else None,
        "tokens": tokens,
        "repeats": repeats,
        "long_prompt": long_prompt,
        "seed": seed,
        "model": str(spec.model),
    }
    if depths is not None and speculative is None:
        raise UserError('--depths needs the drafter: --speculative \'{"method": "mtp"}\', as in your rollout.')
    if speculative is not None and depths is None:
        raise UserError("--speculative is used with --depths alone, for example 0,2,4; give both, or leave it out.")
    places = places_for(spec, replicas)
    found: dict[int | None, Calibration] = {}
    try:
        with progress() as bar:
            options["tick"] = ticker(bar, "starting vLLM")
            if depths is not None and speculative is not None:
                wanted = numbers(depths, "--depths", 0)
                drafter = json_object(speculative, "--speculative")

                def keep(depth: int, result: Calibration) -> None:
                    save_calibration(_depth_file(out, depth), result)

                found.update(calibrate_depths(spec, places, drafter, wanted, keep, **options).items())
            else:
                with start_replicas(spec, places) as running:
                    found[None] = calibrate(running, on_result=lambda c: save_calibration(out, c), **options)
    except KeyboardInterrupt:
        say(f"stopped; {out} holds what was measured so far, if anything.")
        raise typer.Exit(130) from None
    _show(found, out, as_json, csv, png)


def engine_spec(
    model: str,
    device: Literal["auto", "cpu", "gpu"],
    max_model_len: int,
    max_num_seqs: int,
    gpu_memory_utilization: float,
    kv_gib: int,
    dtype: str,
    enforce_eager: bool,
    engine_args: str,
    clock: Literal["wall", "cpu"],
) -> EngineSpec:
    """The options of the engine as a spec.

    Raises:
        UserError: a folder without a model, engine arguments that are no JSON object.
    """
    folder = Path(model)
    if not (folder / "config.json").exists() and (
        folder.exists() or model.count("/") != 1 or model.startswith((".", "/"))
    ):
        raise UserError(f"{model} is no folder of a model (there is no config.json in it).")
    chosen: Device = device if device != "auto" else "gpu" if _has_gpu() else "cpu"
    return EngineSpec(
        folder,
        device=chosen,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        gpu_memory_utilization=gpu_memory_utilization,
        kv_gib=kv_gib,
        dtype=dtype,
        enforce_eager=enforce_eager,
        extra=json_object(engine_args, "--engine-args"),
        clock=clock,
    )


def places_for(spec: EngineSpec, replicas: int) -> list[Place]:
    """Where each replica runs; on the CPU a core each, since an engine on two cores is slower than on one here."""
    if spec.device == "cpu":
        return [Place(cores=place.cores[:1]) for place in cpu_places(replicas)]
    return gpu_places(replicas, int(spec.extra.get("tensor_parallel_size", 1)))


def numbers(text: str, option: str, least: int) -> list[int]:
    """Whole numbers separated by commas.

    Raises:
        UserError: anything else, or one below ``least``.
    """
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < least:
        raise UserError(f"{option} {text} must be whole numbers of at least {least}, separated by commas.")
    return values


def json_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UserError: anything else.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{option} {text} must be a JSON object.")
    return value


def ticker(bar: Any, description: str) -> Callable[[str, int, int], None]:
    """A progress callback (what, done, total) that drives ``bar``."""
    task = bar.add_task(description, total=None)
    return lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def disturbance(cpu_share: float | None, clock: str = "wall") -> list[str]:
    """A note if other processes had the replicas' cores."""
    if cpu_share is None or clock != "wall" or cpu_share > 0.95:
        return []
    return [
        f"Other processes took {1 - cpu_share:.0%} of the replicas' cores: repeat this on a quiet machine, or measure "
        "with --clock cpu."
    ]


def _show(found: dict[int | None, Calibration], out: Path, as_json: bool, csv: Path | None, png: Path | None) -> None:
    several = None not in found
    rows = [({"depth": depth} if several else {}) | row for depth, result in found.items() for row in result.rows()]
    if csv:
        write_csv(csv, rows)
    if png:
        write_whole(png, lambda name: _plot(name, found))
    if as_json:
        one = {str(depth): result.to_dict() for depth, result in found.items()}
        print_json(one if several else next(iter(found.values())).to_dict())
        return
    table = [
        ({"depth": row["depth"]} if several else {})
        | {
            "batch_size": row["batch_size"],
            "tau_ms": 1e3 * row["seconds_per_token"],
            "quartiles_ms": f"{1e3 * row['low']:.4g}..{1e3 * row['high']:.4g}",
            "between_runs": f"{row['spread']:.1%}",
            "tokens_per_s": row["tokens_per_s"],
            "steps": row["steps"],
        }
        for row in rows
    ]
    notes = []
    for depth, result in found.items():
        notes += [
            ("" if depth is None else f"depth {depth}, {result.tokens_per_step:.3g} tokens a step: ")
            + f"a step takes {1e6 * result.context_seconds_per_token:.3g} us more per token of context, and "
            f"{1e3 * result.prefill_seconds_per_token:.3g} ms per prompt token; "
            f"a run {1e3 * result.fixed_seconds:.3g} ms.",
            *disturbance(result.cpu_share, result.clock),
        ]
    result = next(iter(found.values()))
    files = ", ".join(str(out if depth is None else _depth_file(out, depth)) for depth in found)
    notes.append(f"{result.machine}, vLLM {result.versions.get('vllm', '?')}; written to {files}")
    print_table(table, f"Decode curve of {result.model}", notes)


def _depth_file(out: Path, depth: int) -> Path:
    return out.with_suffix(f".depth{depth}.json")


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()


def _plot(name: str, found: dict[int | None, Calibration]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for depth, result in found.items():
        batches = [p.batch_size for p in result.points]
        tau = [1e3 * p.seconds for p in result.points]
        low = [1e3 * (p.seconds - p.low) for p in result.points]
        high = [1e3 * (p.high - p.seconds) for p in result.points]
        label = None if depth is None else f"depth {depth}"
        axes.errorbar(batches, tau, yerr=[low, high], marker="o", capsize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("requests decoding at once")
    axes.set_ylabel("ms per step, with quartiles")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if None not in found:
        axes.legend()
    first = next(iter(found.values()))
    axes.set_title(f"{Path(first.model).name}; {first.machine}", fontsize=9)
    figure.savefig(name, format="png", dpi=150)
