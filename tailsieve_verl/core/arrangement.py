"""The arrangement of a step whose requests are placed by history, chosen among layouts by their predicted makespan.

Blocks are fitted to the scenarios that predict them, and so are predicted a little too good: they are taken only where
they gain `LEAST_GAIN` over dealing the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history_placement import Layout, dealt, dealt_deferred, lay_out, lay_out_deferred
from tailsieve_verl.core.plan import StepPlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Least predicted gain over verl's default dispatch for which requests are placed in blocks.
LEAST_GAIN = 0.02
#: Gain for which a placed step's tail pool takes another replica or gives one up.
LEAST_MOVE = 0.01


@dataclass(frozen=True)
class Arrangement:
    """How a step's launches run.

    Attributes:
        plan: the step's plan with the placed groups in its counts.
        placed: which of the launches are placed, by position.
        replicas: of each response, [G, n].
    """

    plan: StepPlan
    placed: tuple[int, ...]
    replicas: Ints


def blocks_or_default(scenarios: Floats, work: Floats, replicas: int, curve: DecodeCurve) -> Layout:
    """Blocks by predicted length, or verl's default dispatch where they are not predicted to gain over it.

    Args:
        scenarios: tokens, [S, G, n].
        work: expected tokens of a response, [G].
    """
    blocks = lay_out(scenarios, work, replicas, curve)
    default = dealt(scenarios, replicas, curve)
    return blocks if blocks.mean_s < (1.0 - LEAST_GAIN) * default.mean_s else default


def deferred(
    scenarios: Floats,
    work: Floats,
    plan: StepPlan,
    curve: DecodeCurve,
    m: int,
    tail: NDArray[np.bool_],
    residual: NDArray[np.bool_],
) -> tuple[Layout, int]:
    """Layout of a step that leaves groups over, and the next step's tail replicas: m, or another if that gains.

    Args:
        scenarios, work: as for `blocks_or_default`.
        tail, residual: groups that run for that reason, [G].
    """
    over = plan.counts.left_over
    layout = lay_out_deferred(scenarios, work, plan.replicas, curve, over, plan.m, tail, residual)
    plain = dealt_deferred(scenarios, plan.replicas, curve, over, plan.m, tail)
    if layout.mean_s > (1.0 - LEAST_GAIN) * plain.mean_s:
        return plain, m
    beside = plan.m + (1 if plan.step % 2 else -1)
    if plan.m and 1 <= beside < plan.replicas:
        other = lay_out_deferred(scenarios, work, plan.replicas, curve, over, beside, tail, residual)
        if other.mean_s < (1.0 - LEAST_MOVE) * layout.mean_s:
            m = beside
    return layout, m
