"""The timeline of a step as plain numbers, for the page's drawing and the PNG: who ran what, until when, and the cut.

Invariants
    * Times are whole numbers of a :data:`TICKS`-th of the step's horizon, which ends with its last event.
    * At most :data:`MOST_LANES` replicas and a given number of requests are listed; the replica that ended each pool,
      and the group that did, are among them. Counts and drain times speak of all of a replica's requests.
    * Concurrency counts all requests of all replicas; in a sampled step each recorded one stands for its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsieve_verl.core.plan import GroupRecord, StepObservation
from tailsieve_verl.report.view import StepView

#: Finer than a pixel of any screen.
TICKS = 4000
#: Replicas in one drawing; more are no longer told apart on a laptop.
MOST_LANES = 32
#: Intervals of the concurrency curve.
BINS = 120
#: What became of a request, in the order of its code on the page.
KINDS = ("bulk", "tail pool", "drained in the bulk pool", "placed in the tail pool", "cut", "failed")


@dataclass(frozen=True)
class Timeline:
    """A step, ready to be drawn.

    Attributes:
        horizon_s: seconds of the axis; ``marks``: name -> seconds (tail done, bulk done, cut).
        lanes: rows of (replica, 1 for the tail pool, requests, tick at which it drained).
        requests: columns of the requests listed: lane, start and end (ticks), kind, prompt, tokens.
        concurrency: by pool, mean requests running in each of :data:`BINS` intervals of the axis.
        shown, total: requests listed and run; replicas: R.
    """

    horizon_s: float
    marks: Mapping[str, float]
    lanes: tuple[tuple[int, int, int, int], ...]
    requests: Mapping[str, tuple[int, ...]]
    concurrency: Mapping[str, tuple[float, ...]]
    shown: int
    total: int
    replicas: int


@dataclass(frozen=True)
class _Request:
    replica: int
    start: float
    end: float
    kind: int
    prompt: int
    tokens: int
    weight: float


def timeline(step: StepView, most_requests: int = 1500) -> Timeline:
    """Arrange a step.

    Args:
        most_requests: to list; of more, an even share of every replica, its longest among them.
    """
    seen, plan = step.seen, step.seen.plan
    horizon = _horizon(seen)
    requests = _requests(step, horizon)
    totals = (step.totals or {}).get("replicas")
    by_replica: dict[int, list[_Request]] = {replica: [] for replica in range(plan.replicas)}
    for request in requests:
        by_replica[request.replica].append(request)
    drained = {replica: max((r.end for r in ran), default=0.0) for replica, ran in by_replica.items()}
    counts = {replica: len(ran) for replica, ran in by_replica.items()}
    if totals:
        for replica, row in enumerate(totals[: plan.replicas]):
            counts[replica] = row["requests"]
            drained[replica] = min(horizon, max(drained[replica], row["last_s"] or 0.0))
    chosen = _lanes(plan.tail_replicas, plan.bulk_replicas, drained)
    listed = _thinned([by_replica[replica] for replica in chosen], most_requests)

    def ticks(seconds: float) -> int:
        return round(TICKS * min(max(seconds / horizon, 0.0), 1.0))

    rows = [(lane, r) for lane, ran in enumerate(listed) for r in ran]
    columns = {
        "lane": tuple(lane for lane, _ in rows),
        "start": tuple(ticks(r.start) for _, r in rows),
        "end": tuple(ticks(r.end) for _, r in rows),
        "kind": tuple(r.kind for _, r in rows),
        "prompt": tuple(r.prompt for _, r in rows),
        "tokens": tuple(r.tokens for _, r in rows),
    }
    marks = {
        "tail done": seen.t_tail_s,
        "bulk done": seen.t_bulk_s,
        "cut": seen.cut_s if plan.counts.left_over else None,
    }
    tail = set(plan.tail_replicas)
    return Timeline(
        horizon,
        {name: seconds for name, seconds in marks.items() if seconds is not None},
        tuple((replica, int(replica in tail), counts[replica], ticks(drained[replica])) for replica in chosen),
        columns,
        {
            pool: _running([r for r in requests if (r.replica in tail) == (pool == "tail")], horizon)
            for pool in (("tail", "bulk") if plan.m else ("bulk",))
        },
        len(rows),
        sum(counts.values()),
        plan.replicas,
    )


def plain(found: Timeline) -> dict[str, Any]:
    """For the page: short keys, plain lists."""
    return {
        "T": round(found.horizon_s, 4),
        "marks": {name: round(seconds, 4) for name, seconds in found.marks.items()},
        "lanes": [list(lane) for lane in found.lanes],
        "r": [list(found.requests[name]) for name in ("lane", "start", "end", "kind", "prompt", "tokens")],
        "c": {pool: [round(value, 1) for value in values] for pool, values in found.concurrency.items()},
        "shown": found.shown,
        "total": found.total,
        "R": found.replicas,
    }


def _horizon(seen: StepObservation) -> float:
    ends = [t for group in seen.groups for t in group.finished_s if t is not None]
    return max([seen.generation_s, seen.cut_s or 0.0, *ends, 1e-6])


def _requests(step: StepView, horizon: float) -> list[_Request]:
    weights = _weights(step)
    found = []
    for group in step.seen.groups:
        weight = weights.get(f"{group.route}/{group.status}", 1.0)
        for s, (replica, start, end, tokens) in enumerate(
            zip(group.replicas, group.started_s, group.finished_s, group.tokens, strict=True)
        ):
            if 0 <= replica < step.seen.plan.replicas and start is not None:
                kind = _kind(group, s)
                found.append(
                    _Request(replica, start, end if end is not None else horizon, kind, group.prompt, tokens, weight)
                )
    return found


def _kind(group: GroupRecord, session: int) -> int:
    if group.status == "failed":
        return 5
    if group.status == "cut" and not group.complete[session]:
        return 4
    return {"fresh": 0, "tail": 1, "residual": 2, "placed": 3}[group.route]


def _weights(step: StepView) -> dict[str, float]:
    """How many requests a recorded one stands for, by ``route/status``."""
    if step.totals is None:
        return {}
    recorded: dict[str, int] = {}
    for group in step.seen.groups:
        name = f"{group.route}/{group.status}"
        recorded[name] = recorded.get(name, 0) + len(group.tokens)
    routes = step.totals.get("routes", {})
    return {name: routes[name]["requests"] / count for name, count in recorded.items() if name in routes and count}


def _lanes(tail: range, bulk: range, drained: Mapping[int, float]) -> list[int]:
    """Replicas to draw: all, or of each pool its share, evenly spaced by when they drained, the last one included."""
    total = len(tail) + len(bulk)
    if total <= MOST_LANES:
        return [*tail, *bulk]
    most = {"tail": min(len(tail), max(2, round(MOST_LANES * len(tail) / total))) if len(tail) else 0}
    most["bulk"] = min(len(bulk), MOST_LANES - most["tail"])
    chosen: list[int] = []
    for pool, ranks in (("tail", tail), ("bulk", bulk)):
        order = sorted(ranks, key=lambda replica: -drained[replica])
        picks = np.unique(np.linspace(0, len(order) - 1, most[pool]).round().astype(int)) if order else np.zeros(0, int)
        chosen += sorted(order[i] for i in picks.tolist())
    return chosen


def _thinned(lanes: Sequence[list[_Request]], most: int) -> list[list[_Request]]:
    """Each lane's requests from the longest to the shortest; of too many, evenly spaced ones."""
    total = sum(len(ran) for ran in lanes)
    found = []
    for ran in lanes:
        order = sorted(ran, key=lambda r: (-r.end, r.start, r.prompt))
        if total > most:
            keep = max(1, math.floor(len(order) * most / total))
            order = [order[k * len(order) // keep] for k in range(keep)] if order else []
        found.append(order)
    return found


def _running(requests: Sequence[_Request], horizon: float) -> tuple[float, ...]:
    """Mean number of requests in each interval of the axis."""
    edges = np.linspace(0.0, horizon, BINS + 1)
    if not requests:
        return (0.0,) * BINS
    start, end, weight = (np.array([getattr(r, name) for r in requests]) for name in ("start", "end", "weight"))
    # Request-seconds before each edge, by sorted starts and ends: sum of w (edge - start) less sum of w (edge - end).
    area = _before(edges, start, weight) - _before(edges, np.maximum(start, end), weight)
    return tuple((np.diff(area) / np.diff(edges)).tolist())


def _before(edges: np.ndarray, times: np.ndarray, weight: np.ndarray) -> np.ndarray:
    order = np.argsort(times)
    mass = np.concatenate(([0.0], np.cumsum(weight[order])))
    moment = np.concatenate(([0.0], np.cumsum(weight[order] * times[order])))
    seen = np.searchsorted(times[order], edges, side="right")
    return edges * mass[seen] - moment[seen]
