"""A step's metrics (docs/metrics.md) from its plan, its observation and the policy's decision.

Names are without the ``tailsieve/`` prefix. A quantity that a step does not have is left out, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailsieve_verl.core.plan import Decision, StepObservation


def step_metrics(observation: StepObservation, decision: Decision, *, carried_next: int) -> dict[str, float]:
    """Plan, pool times, idle shares, decision; all durations in seconds."""
    plan = observation.plan
    metrics: dict[str, float] = {
        "tail_groups": plan.counts.tail,
        "tail_replicas": plan.m,
        "carried": plan.counts.tail + plan.counts.residual,
        "carried_next": carried_next,
        "residual": plan.counts.residual,
        "fresh": plan.counts.fresh + plan.counts.placed,
        "placed": plan.counts.placed,
        "generation_s": observation.generation_s,
        "abort_s": observation.abort_s,
        "q_next": decision.q,
        "m_next": decision.m,
        "settled": float(decision.settled),
        "switch": float(decision.switched),
        "dispatch_us": observation.dispatch_us,
        "failed": observation.failed,
        "retried": observation.retried,
    }
    optional = {
        "cut_s": observation.cut_s,
        "t_tail_s": observation.t_tail_s,
        "t_bulk_s": observation.t_bulk_s,
        "q_star": decision.q_star,
        "rate_tail": decision.rate_tail,
        "rate_bulk": decision.rate_bulk,
    }
    metrics.update({name: value for name, value in optional.items() if value is not None})
    metrics.update({f"idle_fraction/{pool}": share for pool, share in idle_fractions(observation).items()})
    metrics.update(decision.extra)
    return metrics


def idle_fractions(observation: StepObservation) -> dict[str, float]:
    """Share of each pool's replica time, from the step's opening to its makespan, with no request to serve."""
    plan, end = observation.plan, observation.generation_s
    shares: dict[str, float] = {}
    if end <= 0:
        return shares
    spans: dict[int, list[tuple[float, float]]] = {replica: [] for replica in range(plan.replicas)}
    for group in observation.groups:
        for replica, start, finish in zip(group.replicas, group.started_s, group.finished_s, strict=True):
            if replica >= 0 and start is not None:
                spans[replica].append((start, end if finish is None else min(finish, end)))
    for pool, replicas in (("tail", plan.tail_replicas), ("bulk", plan.bulk_replicas)):
        if len(replicas):
            busy = sum(_covered(spans[replica]) for replica in replicas)
            shares[pool] = 1.0 - busy / (end * len(replicas))
    return shares


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of a union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, finish in sorted(spans):
        if finish > reached:
            total += finish - max(start, reached)
            reached = finish
    return total
