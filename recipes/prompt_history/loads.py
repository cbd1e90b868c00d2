"""The loads of the study: synthetic ones that repeat their prompts, and recorded ones with several checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailsieve_verl.simulate.workload import Floats, Ints, SyntheticWorkload, TraceWorkload, Workload
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.synthetic import LengthModel, Mixture
from tailsieve_verl.traces.trace import Trace

N, GROUP = 64, 8
#: Steps of a pass over the synthetic data set, and passes of a run; the first pass is not measured.
PASS, PASSES = 20, 4
#: Share of the prompts that are new in the load "newcomers".
NEW = 0.2


@dataclass(frozen=True)
class Case:
    """A load and how it is run.

    Attributes:
        workload: the stream for a seed.
        n_groups, replicas: N, and the R that it is run with.
        steps, skip: training steps, and how many of them come before what is measured.
    """

    name: str
    workload: Callable[[int], Workload]
    n_groups: int = N
    replicas: tuple[int, ...] = (4, 8)
    steps: int = PASS * PASSES
    skip: int = PASS


class Changed:
    """A load whose prompts have other levels from a step on: what was known of them is another model's."""

    def __init__(self, model: LengthModel, seed: int) -> None:
        self.n, self.cap = GROUP, model.cap
        self._before = _synthetic(model)(seed)
        self._after = _synthetic(model)(seed + 1000)

    def lengths(self, prompts: Sequence[int], attempts: Sequence[int], step: int) -> Floats:
        now = self._before if step <= PASS else self._after
        return now.lengths(prompts, attempts, step)

    def prompt_tokens(self, prompts: Sequence[int]) -> Floats:
        return self._before.prompt_tokens(prompts)

    def identity(self, prompts: Sequence[int]) -> Ints:
        return self._before.identity(prompts)  # of the other stream's prompts these names say nothing


class Newcomers:
    """A load of which some prompts are seen once only."""

    def __init__(self, model: LengthModel, seed: int) -> None:
        self._load = _synthetic(model)(seed)
        self.n, self.cap, self._seed = self._load.n, self._load.cap, seed
        self.lengths, self.prompt_tokens = self._load.lengths, self._load.prompt_tokens

    def identity(self, prompts: Sequence[int]) -> Ints:
        known = self._load.identity(prompts)
        serials = np.asarray(prompts, np.int64)
        new = np.array([np.random.default_rng((self._seed, 13, s)).random() < NEW for s in serials.tolist()])
        return np.where(new, PASS * N + serials, known)


def _synthetic(model: LengthModel, drift: float = 0.0) -> Callable[[int], SyntheticWorkload]:
    return lambda seed: SyntheticWorkload(model, GROUP, seed=seed, data_set=PASS * N, drift=drift)


REAL = LengthModel()
CASES = [
    Case("persistent", _synthetic(REAL)),
    Case("strong tail", _synthetic(LengthModel(p90=6960))),
    Case("weak tail", _synthetic(LengthModel(p90=1740))),
    Case("truncated prompts", _synthetic(LengthModel(prompt_share=0.8, mixture=Mixture(0.06, 14_000, 16_300)))),
    Case("newcomers", lambda seed: Newcomers(REAL, seed)),
    Case("drift", _synthetic(REAL, 0.01)),
    Case("chance", _synthetic(LengthModel(prompt_share=0.1))),
    Case("runaways", _synthetic(LengthModel(p50=400, p90=600, prompt_share=0.01, runaway=0.001))),
    Case("other model", lambda seed: Changed(REAL, seed)),
]


# ---- recorded lengths ---------------------------------------------------------------------------------------------


def trace_cases() -> list[Case]:
    """The traces with several checkpoints; what is measured runs on checkpoints after the first. Empty without them."""
    folder = _folder()
    if folder is None:
        return []
    maths = read_trace(folder / "lengths_rg_llama3b_math.csv", source="all")
    puzzles = folder / "lengths_rg_qwen3b_puzzles.csv.gz"
    long = "Sky-T1-math-correct-5K-32B-ckpts"
    greedy = read_trace(folder / "lengths_skythought_greedy.csv", source="skythought_aime24", model=long)
    found = [
        # 70 prompts, 50 samples each: three passes at step 400, then two at step 800.
        Case("llama3b maths 400 -> 800", _trace(maths, 8, 12), 16, (4,), 20, 12),
        # 30 prompts, one greedy sample at each of 11 checkpoints, one pass each.
        Case("skythought, 11 checkpoints", _trace(greedy, 1, 2), 15, (4,), 22, 2),
    ]
    for later in ("games_step_500", "algorithmic_step_500", "logic_step_400"):
        trace = _common(read_trace(puzzles, source="all", checkpoint=f"step_0,{later}"))
        size = min(N, trace.prompts // 8)
        passed = trace.prompts // size
        found.append(
            Case(
                f"puzzles step_0 -> {later.partition('_')[0]}", _trace(trace, 3, passed), size, (4,), 2 * passed, passed
            )
        )
    return found


def _trace(trace: Trace, n: int, steps: int) -> Callable[[int], Workload]:
    return lambda seed: TraceWorkload(trace, n, seed=seed, steps_per_checkpoint=steps)


def _common(trace: Trace) -> Trace:
    """The prompts with responses at every checkpoint."""
    cells = trace.cells()
    everywhere = np.bincount(cells.prompt, minlength=trace.prompts) == len(trace.checkpoints)
    return trace.select(everywhere[trace.prompt])


def _folder() -> Path | None:
    """TAILSIEVE_TRACES, else ../shared/traces beside the repository; None if absent."""
    given = os.environ.get("TAILSIEVE_TRACES")
    folder = Path(given) if given else Path(__file__).resolve().parents[3] / "shared" / "traces"
    return folder if folder.is_dir() else None
