"""From engine steps to costs: tau(b), the context term and the prefill cost. Pure functions of arrays.

The model of an engine step that gives b running requests, which hold C tokens of context in sum, one token each:

    seconds = tau(b) + k C        and p seconds more for every prompt token that the step prefills
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.decode import MIN_AGGREGATE_SHARE, DecodeCurve
from tailsieve_verl.replay.engine import EngineRun

Floats = NDArray[np.float64]

#: Most of a step that context may be made responsible for: where noise drives the fit beyond, it is held here.
MOST_CONTEXT = 0.9
#: Steps of a run are summed up in this many stretches for the context term: a median over a stretch is robust against
#: the machine's hiccups, and the context grows from stretch to stretch.
STRETCHES = 4


@dataclass(frozen=True)
class Steps:
    """Decode steps of one run at full batch.

    Attributes:
        batch: b, requests that decoded.
        seconds: [S] duration of each step.
        context: [S] tokens of context in sum before each step.
    """

    batch: int
    seconds: Floats
    context: Floats


@dataclass(frozen=True)
class Prefill:
    """Start of one run: until every request has its first token.

    Attributes:
        tokens: prompt tokens of all requests.
        seconds: from the start to the last first token.
        decoding: [[running requests, their context], ...] of each step up to there.
    """

    tokens: int
    seconds: float
    decoding: tuple[tuple[int, int], ...]


def decode_steps(run: EngineRun, batch: int) -> Steps:
    """The steps of `run` after the last first token in which all ``batch`` requests got a token."""
    table = np.array(run.steps, dtype=np.float64).reshape(-1, 5)
    durations = np.diff(table[:, 0], prepend=0.0)
    started = np.flatnonzero(table[:, 4] > 0)
    keep = np.arange(len(table)) > (started[-1] if started.size else -1)
    keep &= table[:, 1] == batch
    return Steps(batch, durations[keep], table[keep, 3])


def prefill_phase(run: EngineRun, tokens: int) -> Prefill:
    """The steps of `run` up to the last first token; ``tokens`` prompt tokens were prefilled in them."""
    last = max(i for i, step in enumerate(run.steps) if step[4])
    steps = run.steps[: last + 1]
    return Prefill(tokens, steps[-1][0], tuple((running, context) for _, running, _, context, _ in steps))


def fit_context(records: Sequence[Steps]) -> float:
    """k, seconds per token of context: the slope of duration over context at equal batch size.

    Least squares with an offset for every batch size, on medians over stretches of each run. Held between 0 and what
    leaves every run's median step a positive rest.
    """
    most = np.inf
    points: dict[int, list[tuple[float, float, int]]] = {}
    for record in records:
        order = np.argsort(record.context, kind="stable")
        if order.size:
            most = min(most, MOST_CONTEXT * float(np.median(record.seconds) / record.context.max()))
        for part in np.array_split(order, min(STRETCHES, order.size) or 1):
            if part.size:
                median = float(np.median(record.seconds[part]))
                points.setdefault(record.batch, []).append((float(record.context[part].mean()), median, part.size))
    covariance = variance = 0.0
    for group in points.values():
        context, seconds, weight = np.array(group).T
        centred = context - np.average(context, weights=weight)
        covariance += float(np.sum(weight * centred * seconds))
        variance += float(np.sum(weight * centred**2))
    return min(max(0.0, covariance / variance), most) if variance > 0 else 0.0


def fit_prefill(phases: Sequence[Prefill], curve: DecodeCurve, k: float) -> tuple[float, float]:
    """(seconds per prompt token, fixed seconds of a run), both at least 0.

    What the phases took beyond tau(b) + k C of their steps, by least squares of the relative error.
    """
    if not phases:
        return 0.0, 0.0
    tokens = np.array([phase.tokens for phase in phases], dtype=np.float64)
    rest = np.array([p.seconds - sum(curve(float(b)) + k * c for b, c in p.decoding) for p in phases])
    weight = 1.0 / np.array([phase.seconds for phase in phases])
    design = np.stack((tokens, np.ones_like(tokens)), axis=1)
    if np.unique(tokens).size > 1:
        slope, fixed = np.linalg.lstsq(design * weight[:, None], rest * weight, rcond=None)[0]
        if slope >= 0 and fixed >= 0:
            return float(slope), float(fixed)
    slope = np.sum(weight**2 * tokens * rest) / np.sum(weight**2 * tokens**2)  # through the origin
    return max(0.0, float(slope)), 0.0


def non_decreasing(values: ArrayLike) -> Floats:
    """The closest non-decreasing sequence in the least-squares sense (pool adjacent violators), [K]."""
    blocks: list[tuple[float, int]] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, na), (b, nb) = blocks[-2:]
            blocks[-2:] = [((a * na + b * nb) / (na + nb), na + nb)]
    return np.concatenate([np.full(count, value) for value, count in blocks]) if blocks else np.zeros(0)


def clean_curve(batch_sizes: Sequence[int], seconds: Sequence[float]) -> DecodeCurve:
    """A curve through the measured points, changed only if `DecodeCurve` refuses them.

    Then the points are made non-decreasing, and a spike of the machine that still costs more than half of the
    throughput of a smaller batch is cut to that half.
    """
    try:
        return DecodeCurve(batch_sizes, seconds)
    except ValueError:
        sizes = np.asarray(batch_sizes, dtype=np.float64)
        values = non_decreasing(seconds)
        per_request = np.minimum.accumulate(values / sizes)
        return DecodeCurve(sizes, np.minimum(values, sizes * per_request / (1.001 * MIN_AGGREGATE_SHARE)))
