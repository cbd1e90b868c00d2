"""A step's figures for the logs and the record: what the step tells, the totals, the length bias, and verl's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tailsieve_verl.core.ledger import Ledger
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.core.metrics import step_metrics
from tailsieve_verl.core.plan import Decision, StepObservation

logger = logging.getLogger(__name__)


def step_figures(
    observation: StepObservation, decision: Decision, ledger: Ledger, lengths: LengthMonitor
) -> dict[str, float]:
    """Figures of a step once it is decided on; ``lengths`` takes it in."""
    return {
        **step_metrics(observation, decision, carried_next=len(ledger.carried)),
        "trained_total": ledger.trained,
        "dropped_total": ledger.dropped,
        **_bias(observation, lengths),
    }


def trained_figures(figures: Mapping[str, float], metrics: Mapping[str, Any], step_s: float) -> dict[str, float]:
    """A step's figures with what is known after its update: ``metrics`` are verl's."""
    found = {**figures, "step_s": step_s, "overhead_share": figures["overhead_s"] / step_s}
    for name, source in (("reward", "critic/rewards/mean"), ("length", "response_length/mean")):
        if source in metrics:
            found[name] = float(metrics[source])
    return found


def _bias(observation: StepObservation, lengths: LengthMonitor) -> dict[str, float]:
    try:
        lengths.add(observation)
        bias = lengths.bias()
    except Exception as error:  # a figure that cannot be had must not end the run
        logger.warning("tailsieve: no length bias for step %d: %s", observation.plan.step, error)
        return {}
    if bias is None:
        return {}
    return {"bias/mean": bias.mean, "bias/p99": bias.p99, "bias/truncated": bias.truncated, "bias/ks": bias.ks}
