"""The lines of a run's record: ``<trainer.default_local_dir>/tailsieve/steps.jsonl``, one JSON object each.

    start     schema, first_step, n_groups (N), replicas (R), n (responses of a group)     a run begins, or resumes
    step      step, plan, times, groups, decision, metrics (with bias/...), batch          a rollout and its decision
    trained   step, metrics                                                                reward, step time, timings

Invariants
    * A line is written whole, and never changed afterwards. A resume voids earlier lines from its ``first_step`` on.
    * All floats are exact: a policy that is shown a recorded step decides what it decided in the run.
    * At most :data:`MOST_REQUESTS` requests of a step are written out, whatever N is; ``totals`` then holds the counts
      and the times of the others (:func:`sampled`).
    * Schema changes only when a reader of the older one would misread; fields and kinds of line may be added freely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailsieve_verl.core.plan import TAIL_ROUTES, Decision, GroupRecord, StepObservation, StepPlan

#: Version of the lines. 1: all groups of every step. 2: large steps are sampled, with ``totals``.
SCHEMA = 2
#: Where the record lies in a run's folder.
FILE = Path("tailsieve") / "steps.jsonl"
#: Requests of a step that are written out: about 0.4 MB a step at most, and a thousand steps still open in a browser.
MOST_REQUESTS = 4096


def start_line(run: Mapping[str, Any], first_step: int) -> dict[str, Any]:
    """A run, or a resumed run, begins: earlier lines from ``first_step`` on are void."""
    return {"kind": "start", "schema": SCHEMA, "first_step": first_step, **run}


def step_line(
    observation: StepObservation,
    decision: Decision,
    *,
    metrics: Mapping[str, float] | None = None,
    batch: Mapping[int, Any] | None = None,
    drafting: Mapping[int, Any] | None = None,
    most_requests: int = MOST_REQUESTS,
) -> dict[str, Any]:
    """A finished rollout.

    Args:
        metrics: by name, without the ``tailsieve/`` prefix.
        batch: by prompt, what the store said of the trained groups (a named tuple).
        drafting: by replica, what its engine reported of its drafts.
        most_requests: requests to write out; the groups beyond are sampled.
    """
    plan = observation.plan
    groups = sampled(observation.groups, most_requests)
    line: dict[str, Any] = {
        "kind": "step",
        "step": plan.step,
        "plan": plan_fields(plan),
        "t_tail_s": observation.t_tail_s,
        "t_bulk_s": observation.t_bulk_s,
        "cut_s": observation.cut_s,
        "abort_s": observation.abort_s,
        "failed": observation.failed,
        "retried": observation.retried,
        "groups": [vars(group) for group in groups],
        "decision": decision_fields(decision),
    }
    if len(groups) < len(observation.groups):
        line["totals"] = totals(observation.groups, plan.replicas)
    if batch is not None:
        kept = batch if len(groups) == len(observation.groups) else {g.prompt for g in groups} & set(batch)
        line["batch"] = {str(prompt): batch[prompt]._asdict() for prompt in kept}
    line["metrics"] = dict(metrics or {})
    if drafting:
        line["drafting"] = {str(rank): report for rank, report in drafting.items()}
    return line


def trained_line(step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """What is known only when the training step is over: reward, lengths, step time."""
    return {"kind": "trained", "step": step, "metrics": dict(metrics)}


def plan_fields(plan: StepPlan) -> dict[str, Any]:
    return {**vars(plan), "counts": vars(plan.counts), "left_over": plan.counts.left_over}


def decision_fields(decision: Decision) -> dict[str, Any]:
    candidates = [dict(vars(candidate)) for candidate in decision.candidates]
    return {**vars(decision), "candidates": candidates, "extra": dict(decision.extra)}


def sampled(groups: Sequence[GroupRecord], most_requests: int) -> list[GroupRecord]:
    """Groups with about ``most_requests`` requests in all, in launch order; all of them if they have no more.

    Every route and status keeps its share, evenly spaced in launch order, and at least one group. The last group of
    each pool that was trained stays, because it ends the step.
    """
    requests = sum(len(group.tokens) for group in groups)
    if requests <= most_requests:
        return list(groups)
    strata: dict[tuple[str, str], list[int]] = {}
    last: dict[bool, int] = {}
    for i, group in enumerate(groups):
        strata.setdefault((group.route, group.status), []).append(i)
        if group.status == "trained" and group.generated_s is not None:
            pool = group.route in TAIL_ROUTES
            if pool not in last or group.generated_s > (groups[last[pool]].generated_s or 0.0):
                last[pool] = i
    kept = set(last.values())
    for members in strata.values():
        count = max(1, math.floor(len(members) * most_requests / requests))
        kept.update(members[k * len(members) // count] for k in range(count))
    return [groups[i] for i in sorted(kept)]


def totals(groups: Sequence[GroupRecord], replicas: int) -> dict[str, Any]:
    """Counts and times over all groups of a step.

    Returns:
        ``routes``: by ``route/status``, groups, requests and tokens; ``replicas``: by rank, requests, tokens, and the
        times of the first dispatch and of the last token (seconds, ``None`` without a request).
    """
    routes: dict[str, list[int]] = {}
    load = [[0, 0] for _ in range(replicas)]
    first, last = [math.inf] * replicas, [-math.inf] * replicas
    for group in groups:
        route = routes.setdefault(f"{group.route}/{group.status}", [0, 0, 0])
        route[0] += 1
        route[1] += len(group.tokens)
        route[2] += sum(group.tokens)
        for rank, tokens, started, finished in zip(
            group.replicas, group.tokens, group.started_s, group.finished_s, strict=True
        ):
            if rank < 0:
                continue
            load[rank][0] += 1
            load[rank][1] += tokens
            if started is not None and started < first[rank]:
                first[rank] = started
            if finished is not None and finished > last[rank]:
                last[rank] = finished
    return {
        "routes": {name: dict(zip(("groups", "requests", "tokens"), row, strict=True)) for name, row in routes.items()},
        "replicas": [
            {"requests": requests, "tokens": tokens, "first_s": _finite(begin), "last_s": _finite(end)}
            for (requests, tokens), begin, end in zip(load, first, last, strict=True)
        ],
    }


def plain(value: Any) -> Any:
    """For ``json.dumps``: numpy and torch scalars as Python numbers."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"cannot record a {type(value).__name__}")


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
