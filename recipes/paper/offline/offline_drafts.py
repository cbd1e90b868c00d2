"""What the scripts on speculative decoding share: acceptance curves as input, two kinds of drafter, speed-ups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from offline_common import GROUP, NamedCurve, run_steps, seconds, start, synthetic
from offline_runs import NOISE

from tailsieve_verl.core.speculation import Acceptance, DepthTable
from tailsieve_verl.simulate.drafting import Depth, Speculation
from tailsieve_verl.simulate.rollout import PoolDrafts
from tailsieve_verl.simulate.workload import Workload
from tailsieve_verl.traces.synthetic import LengthModel

N = 64
#: Chance of each draft position, given those before it. The paper prints none, so each table comes with several: two
#: round ones, and what eight multi-layer MTP drafts on GSM8K showed in public (vLLM pull request 48892, greedy: 76, 62,
#: 51, 42, 36, 31, 27, 24 % of the drafts were accepted up to there).
ACCEPTANCES: dict[str, tuple[float, ...]] = {
    "0.6": (0.6,),
    "0.7": (0.7,),
    "GSM8K": (0.762, 0.808, 0.832, 0.828, 0.858, 0.85, 0.88, 0.869),
}
#: Share of a plain step for each drafted token, and for drafting at all: MTP's head is one layer, run once a token; a
#: DFlash drafter of some five layers proposes its block at once. Both are guesses; no run of ours has measured them.
METHODS: dict[str, tuple[float, float]] = {"MTP": (0.05, 0.0), "DFlash": (0.0, 0.1)}
PLAIN = PoolDrafts()


def speculation(named: NamedCurve, method: str, acceptance: str, deepest: int = 5) -> Speculation:
    """Drafts of a method on a machine; `deepest` is of live depth."""
    per_token, per_step = METHODS[method]
    return Speculation(Acceptance(ACCEPTANCES[acceptance]), named.curve, per_token, per_step, deepest)


def pools(known: Speculation, bulk: int | Depth, tail: int | Depth | None = None) -> PoolDrafts:
    """Drafts of the pools at these depths; of both at the first without a second."""
    depths = [DepthTable.constant(d) if isinstance(d, int) else d for d in (bulk, bulk if tail is None else tail)]
    return PoolDrafts(*(known.drafting(depth, 2 * N * GROUP) for depth in depths))


@dataclass(frozen=True)
class Place:
    """Where policies are compared: a load, a curve, R, and how long."""

    load: str
    model: LengthModel
    named: NamedCurve
    replicas: int
    steps: int
    skip: int
    seeds: tuple[int, ...]

    def streams(self) -> dict[int, Workload]:
        """The prompts of each seed, drawn once for all policies."""
        return {seed: synthetic(self.model, seed) for seed in self.seeds}

    def total(self, streams: dict[int, Workload], policy: str, drafts: PoolDrafts = PLAIN) -> np.ndarray:
        """Seconds of all steps kept, [seeds]."""
        found = []
        for seed, stream in streams.items():
            run = start(policy, stream, N, self.replicas, self.named, drafts, noise=NOISE, seed=seed)
            found.append(seconds(run_steps(run, self.steps))[self.skip :].sum())
        return np.array(found)


def over(baseline: np.ndarray, mine: np.ndarray) -> tuple[float, float]:
    """Mean speed-up and its standard deviation over seeds."""
    ratio = baseline / mine
    return float(ratio.mean()), float(ratio.std(ddof=1)) if ratio.size > 1 else 0.0


def fastest(totals: Iterable[tuple[object, np.ndarray]]) -> tuple[object, np.ndarray]:
    """What took least in sum over the seeds, and its seconds."""
    return min(totals, key=lambda found: float(found[1].sum()))
