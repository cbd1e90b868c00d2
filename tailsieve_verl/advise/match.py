"""Simulated step times against measured ones: does the machine that the advice assumes behave as the run's did?

Each logged step is simulated with the lengths that it really had, dealt as the run dealt them. One number is fitted,
the scale of all costs; it changes seconds, not the gain. What is left over per step says how far lengths and curve
explain the measured times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.advise.fit import WorkloadFit
from tailsieve_verl.advise.steplog import GENERATION, STEP, StepLog
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.placement import Placement, UniformGroup, VerlDefault
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.engine import EngineCosts, simulate_replicas

PLACEMENTS: dict[str, Placement] = {"verl_default": VerlDefault(), "uniform_group": UniformGroup()}
#: The first step also compiles and warms up; with fewer steps than this there is none to spare.
_SPARE = 3
#: A scale outside 1 / SCALE .. SCALE is another engine's curve.
SCALE = 1.5
#: Simulated times that miss more than this share of the measured ones do not match. verl's replay buffer polls every
#: 2 s, so steps of a few seconds cannot match better.
TOLERANCE = 0.15


@dataclass(frozen=True)
class Match:
    """How well simulated generation times fit the log's.

    Attributes:
        scale: measured over simulated seconds, median over the steps; costs were multiplied by it.
        error: what the scaled simulation misses of a step's measured time, median; worst: largest.
        steps: steps compared; spread: longest over shortest simulated step, less 1: nothing is tested where it is 0.
        generation_share: generation's share of the whole step's time, median; None if not logged.
        measured_s: mean generation time.
    """

    scale: float
    error: float
    worst: float
    steps: int
    spread: float
    generation_share: float | None
    measured_s: float

    @property
    def good(self) -> bool:
        """Whether the times match, as far as more than one step can tell."""
        return self.steps > 1 and self.error <= TOLERANCE

    @property
    def telling(self) -> bool:
        """Whether a match says anything about the curve: its scale was near, and the steps differ."""
        return 1 / SCALE <= self.scale <= SCALE and self.spread > TOLERANCE


def match_steps(fit: WorkloadFit, log: StepLog, costs: EngineCosts, replicas: int, now: str) -> Match:
    """Compare the recorded steps' generation times.

    Raises:
        UserError: the log and the dump have no step in common.
    """
    steps = np.unique(fit.step).tolist()
    measured = log.get(GENERATION, steps)
    if not measured:
        raise UserError(
            f"{log.path} has none of the dump's steps ({steps[0]} to {steps[-1]}): give the log of that run."
        )
    if len(measured) >= _SPARE and min(measured) == min(log.steps):
        measured.pop(min(measured))
    simulated = {step: simulated_s(fit, step, costs, replicas, now) for step in measured}
    ratio = np.array([measured[step] / simulated[step] for step in measured])
    scale = float(np.median(ratio))
    miss = np.abs(scale / ratio - 1)
    whole = log.get(STEP, measured)
    shares = [measured[step] / whole[step] for step in whole if whole[step] > 0]
    return Match(
        scale=scale,
        error=float(np.median(miss)),
        worst=float(miss.max()),
        steps=len(measured),
        spread=max(simulated.values()) / min(simulated.values()) - 1,
        generation_share=min(float(np.median(shares)), 1.0) if shares else None,
        measured_s=float(np.mean(list(measured.values()))),
    )


def simulated_s(fit: WorkloadFit, step: int, costs: EngineCosts, replicas: int, now: str) -> float:
    """Seconds until the last response of a recorded step ends."""
    mine = fit.step == step
    lengths: NDArray[np.int64] = fit.lengths[mine]
    outcome = simulate_replicas(
        lengths,
        PLACEMENTS[now].place(lengths, replicas),
        replicas,
        costs,
        prompt_tokens=np.repeat(fit.prompt_tokens[mine], fit.n),
        share=np.repeat(np.arange(lengths.shape[0]), fit.n),
    )
    return float(outcome.finish.max())


def scaled(costs: EngineCosts, scale: float) -> EngineCosts:
    """The same machine, all costs multiplied."""
    curve = DecodeCurve(costs.curve.batch_sizes, [scale * tau for tau in costs.curve.seconds_per_token])
    return replace(costs, curve=curve, context_s=scale * costs.context_s, prefill_s=scale * costs.prefill_s)
