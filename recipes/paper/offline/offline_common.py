"""What every script here shares: options, decode curves, loads, and the files it leaves.

Nothing is computed here that the package computes; this only names inputs and writes outputs.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailsieve_verl.cli.output import print_table, say, write_csv, write_whole
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.simulate.costs import SHAPES
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.plots import COLOURS as COLOURS
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.rollout import Machine, PoolDrafts, Rollout, SimulatedStep
from tailsieve_verl.simulate.workload import SyntheticWorkload, Workload
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.synthetic import LengthModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPOSITORY = Path(__file__).resolve().parents[3]
#: Responses in a prompt group (paper 4.1).
GROUP = 8
#: Response limit of the paper's runs, tokens (Table A.1).
CAP = 16_384


# ---- options ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """Where results go, whether to run a small version, and the seed that everything follows from."""

    out: Path
    quick: bool = False
    seed: int = 0

    def pick(self, full: int, quick: int) -> int:
        """A size: `full`, or `quick` with --quick."""
        return quick if self.quick else full


def parse_options(doc: str | None, argv: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for CSV and PNG")
    parser.add_argument("--quick", action="store_true", help="few seeds and steps: seconds, rough numbers")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything drawn at random")
    found = parser.parse_args(argv)
    return Options(found.out, found.quick, found.seed)


# ---- decode curves ------------------------------------------------------------------------------------------------

#: Curve file of the trace folder, GPU and context that are used: a response of the loads below is 2,000 to 3,000 tokens
#: on average, and those that run long enough to matter hold about twice that in the middle of their life.
CURVE_FILE, GPU, CONTEXT = "tau_aiconfigurator_modelled.csv", "h100_sxm", "4096"
#: Modelled times lie below measured ones by these shares at these batch sizes (the trace folder's README: Qwen3-32B,
#: two H100, vLLM; the measured ones include interleaved prefill). Between them by log batch size, constant outside.
SHORTFALL = {8: 0.12, 32: 0.16, 64: 0.23, 128: 0.34}
#: Models of the paper that the file has, and the shipped shape that stands in for each without it.
MODELS = {"Qwen3-4B": "dense", "Qwen3-30B-A3B": "experts", "Qwen3.5-35B-A3B": "experts"}


@dataclass(frozen=True)
class NamedCurve:
    """A decode curve, what to call it, and where it comes from."""

    name: str
    curve: DecodeCurve
    source: str

    @property
    def costs(self) -> EngineCosts:
        return EngineCosts(self.curve)


def traces_folder() -> Path | None:
    """The folder of real traces: TAILSIEVE_TRACES, else ../shared/traces beside the repository; None if absent."""
    given = os.environ.get("TAILSIEVE_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    return folder if folder.is_dir() else None


def decode_curves(models: Sequence[str] = tuple(MODELS)) -> list[NamedCurve]:
    """Curves of these models (H100, modelled from measured kernels, scaled to measured servers), or shipped shapes.

    The shapes are two, so models that share one give one curve.
    """
    folder = traces_folder()
    if folder is None or not (folder / CURVE_FILE).is_file():
        say(f"No {CURVE_FILE} (set TAILSIEVE_TRACES): using the made-up shapes of simulate/costs.py.")
        shapes = dict.fromkeys(MODELS[model] for model in models)
        return [NamedCurve(f"shape {shape}", SHAPES[shape], "simulate/costs.py, made up") for shape in shapes]
    with (folder / CURVE_FILE).open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == GPU and row["context_tokens"] == CONTEXT]
    result = []
    for model in models:
        points = sorted((float(r["concurrency"]), float(r["tpot_ms"]) / 1e3) for r in rows if r["model"] == model)
        if points:
            batch, tau = (np.array(column) for column in zip(*points, strict=True))
            source = f"{CURVE_FILE}, H100, context {CONTEXT}, scaled to measured"
            result.append(NamedCurve(model, DecodeCurve(batch, tau * measured_over_modelled(batch)), source))
    return result


def curve_notes(curves: Sequence[NamedCurve]) -> list[str]:
    """Which curves come from where, a sentence for each source."""
    names: dict[str, list[str]] = {}
    for named in curves:
        names.setdefault(named.source, []).append(named.name)
    return [f"{', '.join(found)}: {source}" for source, found in names.items()]


def measured_over_modelled(batch: np.ndarray) -> np.ndarray:
    """Factor that brings a modelled time per token to what servers were measured at."""
    known = np.log(list(SHORTFALL))
    return np.interp(np.log(batch), known, 1.0 / (1.0 - np.array(list(SHORTFALL.values()))))


# ---- loads --------------------------------------------------------------------------------------------------------

#: What the paper says of its loads: P50 and P90 of the "real" one (Table A.3), 3 % of the mathematics responses and
#: 0.1 % of the code ones truncated at 16,384 tokens (4.1), code shorter, 64.8 % of the variance the prompt's (B).
#: A log-normal with P50 1,160 that truncates 3 % has P90 7,041; one with P50 600 (our choice) and 0.1 % has 2,364.
#: The paper does not say whether truncated responses are the prompt's doing. The second of each pair takes the other
#: extreme: a body as in Table A.3 (or shorter) and truncation by pure chance, of any prompt.
REAL = LengthModel(p50=1160, p90=4115, cap=CAP)
LOADS: dict[str, LengthModel] = {
    "math": LengthModel(p50=1160, p90=7041, cap=CAP),
    "math, cut by chance": LengthModel(p50=1160, p90=4115, cap=CAP, runaway=0.0275, prompt_share=0.25),
    "code": LengthModel(p50=600, p90=2364, cap=CAP),
    "code, cut by chance": LengthModel(p50=600, p90=1200, cap=CAP, runaway=0.001, prompt_share=0.25),
}


#: Real lengths to repeat the offline figures on: label, file of the trace folder, and model where it has several.
TRACES = (
    ("R1 production", "hist_servegen_deepseek_r1.csv", None),
    ("30B-A3B puzzles", "lengths_misguided_attention.csv", "qwen3-30b-a3b-think"),
)


def single_lengths(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """`count` single responses of independent prompts from each source of lengths that is there, in tokens."""
    found = {"Table A.3": REAL.draw(rng, REAL.levels(rng, count), 1).ravel()}
    folder = traces_folder()
    for label, name, model in TRACES:
        if folder is not None and (folder / name).is_file():
            found[label] = rng.choice(read_trace(folder / name, model=model).tokens, count)
    return found


def synthetic(model: LengthModel, seed: int, n: int = GROUP) -> SyntheticWorkload:
    """The stream of a load for a seed."""
    return SyntheticWorkload(model, n, seed=seed)


@dataclass(frozen=True)
class Replayed:
    """A load whose prompts give the same lengths however often they are generated: perfect persistence, no re-roll."""

    load: Workload

    @property
    def n(self) -> int:
        return self.load.n

    @property
    def cap(self) -> int:
        return self.load.cap

    def lengths(self, prompts: Sequence[int], attempts: Sequence[int], step: int) -> np.ndarray:
        return self.load.lengths(prompts, [0] * len(attempts), step)

    def prompt_tokens(self, prompts: Sequence[int]) -> np.ndarray:
        return self.load.prompt_tokens(prompts)

    def identity(self, prompts: Sequence[int]) -> np.ndarray:
        return self.load.identity(prompts)


# ---- simulated runs -----------------------------------------------------------------------------------------------


def start(
    text: str,
    workload: Workload,
    n_groups: int,
    replicas: int,
    curve: NamedCurve,
    drafts: PoolDrafts | None = None,
    **machine: Any,
) -> Rollout:
    """A rollout under the policy named by `text` (simulate/policies.py), ready for its first step."""
    policy, placement, records = parse_policy(text).build(n_groups, replicas)
    machines = Machine(replicas, curve.costs, **machine)
    return Rollout(policy, workload, machines, placement, records, drafts or PoolDrafts())


def run_steps(rollout: Rollout, steps: int, tick: Any = None) -> list[SimulatedStep]:
    """Steps 1 to `steps`; `tick` is called after each."""
    done = []
    for number in range(1, steps + 1):
        done.append(rollout.step(number))
        if tick is not None:
            tick()
    return done


def seconds(steps: Sequence[SimulatedStep]) -> np.ndarray:
    """Makespans, [steps]."""
    return np.array([step.observation.generation_s for step in steps])


# ---- results ------------------------------------------------------------------------------------------------------


def mean_spread(values: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """``mean +- standard deviation`` over seeds."""
    x = np.asarray(values, dtype=float)
    return f"{x.mean():.{digits}f} +- {x.std(ddof=1):.{digits}f}" if x.size > 1 else f"{x.mean():.{digits}f}"


def new_figure(width: float = 10.0, height: float = 4.0) -> Figure:
    """An empty figure without a window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(
    options: Options,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    figure: Figure,
    title: str,
    notes: Sequence[str] = (),
    points: Sequence[Mapping[str, Any]] = (),
    shown: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write `<name>.csv`, `<name>.png` and, with `points`, `<name>_points.csv`; print the rows as a table.

    Args:
        points: what the picture shows beyond the rows.
        shown: the table to print, if not the rows.
    """
    write_csv(options.out / f"{name}.csv", [_rounded(row) for row in rows])
    if points:
        write_csv(options.out / f"{name}_points.csv", [_rounded(row) for row in points])
    write_whole(options.out / f"{name}.png", lambda path: figure.savefig(path, dpi=80, format="png"))
    print_table(rows if shown is None else shown, title, notes)


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Floats to five significant digits and nine decimals: enough, and files that do not change with the last bit."""
    return {key: round(float(f"{value:.5g}"), 9) if isinstance(value, float) else value for key, value in row.items()}
