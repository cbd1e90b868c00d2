"""Runs written by hand for the report: a controller's run of a few steps, whose times are easy."""

import json

from tailsieve_verl.core.plan import Decision, GroupRecord, LaunchCounts, StepObservation, StepPlan
from tailsieve_verl.integration.record import RunRecord
from tailsieve_verl.records.lines import FILE
from tailsieve_verl.report.view import read_view

N, SAMPLES, REPLICAS = 4, 2, 4


def group(prompt, route="fresh", status="trained", *, replica=0, start=0.0, end=1.0, tokens=100):
    cut = status == "cut"
    return GroupRecord(
        prompt, f"data/{prompt}", route, status, (replica,) * SAMPLES, (start,) * SAMPLES, (end,) * SAMPLES,
        (tokens,) * SAMPLES, (not cut,) * SAMPLES, None if cut else end,
    )  # fmt: skip


def bulk(first, replicas, bulk_s):
    """A group on each replica; they end a second apart."""
    return [group(first + i, replica=i, end=bulk_s - i, tokens=round(50 * (bulk_s - i))) for i in replicas]


def observation(step, *, split, tail_s=8.0, bulk_s=8.0, cut_s=8.0, tail_tokens=350, failed=0):
    """50 tokens a second everywhere.

    Uniform: N groups, one a replica. Split: a tail group on the last replica, and a group that is cut.
    """
    counts = LaunchCounts(1, 0, N, N - 1) if split else LaunchCounts(0, 0, N, N)
    plan = StepPlan(step, N, REPLICAS, int(split), int(split), counts)
    first = 10 * step
    if not split:
        groups = bulk(first, range(N), bulk_s)
        return StepObservation(plan, None, bulk_s, None, 0.0, tuple(groups), failed)
    groups = [group(first, "tail", replica=3, end=tail_s, tokens=tail_tokens)]
    groups += bulk(first + 1, range(N - 1), bulk_s)
    groups.append(group(first + N, status="cut", replica=0, end=cut_s, tokens=300))
    return StepObservation(plan, tail_s, bulk_s, cut_s, 0.0, tuple(groups), failed)


def write(folder, splits, *, generation_s=8.0, uniform_s=10.0, bias=0.0, bound=6.0, metrics=None, start=None, first=1):
    """A record with a step for each of ``splits``; each decision is on the split of the next step."""
    record = RunRecord(folder)
    shape = {"n_groups": N, "replicas": REPLICAS, "n": SAMPLES, "policy": "controller", "speculation": "none"}
    record.start({**shape, **(start or {})}, first_step=first)
    for step, split in enumerate(splits, start=first):
        after = int(splits[min(step - first + 1, len(splits) - 1)])
        seen = observation(step, split=bool(split), tail_s=generation_s - 1, bulk_s=generation_s, cut_s=generation_s)
        decision = Decision(
            step, after, after, True, after != int(split), f"reason {step}", predicted_uniform_s=uniform_s,
            lower_bound_s=bound, confidence=0.9 if uniform_s else None,
        )  # fmt: skip
        facts = {"bias/mean": bias, "bias/p99": 0.0, "bias/truncated": 0.0, "bias/ks": 0.0, **(metrics or {})}
        record.step(seen, decision, batch={}, metrics={**facts, "settled": 1.0})
        record.trained(step, {**facts, "step_s": 2 * generation_s, "reward": 0.5})
    return folder


def view_of(folder, splits=(0, 0, 0, 1, 1, 1, 1, 1), **settings):
    return read_view(write(folder, splits, **settings))


def cut_off(folder, characters=200):
    """As a crash leaves it: the last line is torn."""
    path = folder / FILE
    path.write_text(path.read_text()[:-characters])
    assert not path.read_text().endswith("\n")
    json.loads(path.read_text().splitlines()[0])
    return folder
