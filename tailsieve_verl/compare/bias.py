"""Lengths and bounds: was a run faster because of its placement, or because its responses were shorter?

Three answers, none of which needs the others:
    * the run's own figures, consumed lengths against its whole fresh pools (docs/metrics.md, `bias/...`);
    * its lengths against the baseline's over the same steps and prompts: relative mean and p99,
      Kolmogorov-Smirnov distance and its probability under equal distributions (which takes responses as independent;
      those of a prompt are not, so a small one is weaker evidence than it looks);
    * what no placement of the baseline's own responses could beat, at the decode speed that the baseline's completions
      show. A gain beyond it cannot come from routing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tailsieve_verl.compare.runlog import RunLog
from tailsieve_verl.core.bias import length_bias
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.online_tau import OnlineTau
from tailsieve_verl.core.sessions import session_table


@dataclass(frozen=True)
class LengthShift:
    """A run's lengths against the baseline's: mean and p99 relative, ks a distance, p its probability."""

    mean: float
    p99: float
    ks: float
    p: float
    responses: int


@dataclass(frozen=True)
class Bound:
    """Least mean seconds a step of any placement of a run's responses, and the steps it is known for.

    Attributes:
        by_step: step -> seconds.
        confidence: 0..1, of the decode curve it rests on; 1 for a given curve.
    """

    by_step: Mapping[int, float]
    confidence: float


def length_shift(run: RunLog, baseline: RunLog, steps: Sequence[int]) -> LengthShift | None:
    """``None`` where either run has no record of its lengths."""
    ours = [run.lengths[step] for step in steps if step in run.lengths]
    theirs = [baseline.lengths[step] for step in steps if step in baseline.lengths]
    if not ours or not theirs:
        return None
    mine, reference = np.concatenate(ours), np.concatenate(theirs)
    if not mine.size or not reference.size:
        return None
    found = length_bias(mine, reference)
    p = float(stats.ks_2samp(mine, reference).pvalue)
    return LengthShift(found.mean, found.p99, found.ks, p, int(mine.size))


def learned_curve(run: RunLog) -> tuple[DecodeCurve | None, float]:
    """The decode curve that a run's own completions show, with its confidence; drafts are in it."""
    tau = OnlineTau()
    for observation in run.observations:
        tau.observe(session_table(observation.groups))
    return tau.curve, tau.confidence


def lower_bound(run: RunLog, curve: DecodeCurve | None = None) -> Bound | None:
    """Every step's bound on the run's own lengths; ``None`` without lengths, replicas or a curve."""
    replicas = run.shape.get("replicas")
    confidence = 1.0
    if curve is None:
        curve, confidence = learned_curve(run)
    if curve is None or replicas is None or not run.lengths:
        return None
    by_step = {
        step: makespan_lower_bound(tokens, replicas, curve) for step, tokens in run.lengths.items() if tokens.size
    }
    return Bound(by_step, confidence)
