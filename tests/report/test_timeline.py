from dataclasses import replace

import pytest

from tailsieve_verl.core.plan import LaunchCounts, StepObservation, StepPlan
from tailsieve_verl.records.lines import totals
from tailsieve_verl.report.timeline import BINS, KINDS, MOST_LANES, TICKS, plain, timeline

from .views import group, view_of


@pytest.fixture
def step(tmp_path):
    return view_of(tmp_path).steps[-1]


def many(step, *, replicas, each, m=4, sampled=None):
    """``each`` groups on every replica; replica r drains at 1 + r / 100 s."""
    plan = StepPlan(9, replicas * each, replicas, m * each, m, LaunchCounts(m * each, 0, (replicas - m) * each, 1))
    tail = set(plan.tail_replicas)
    groups = tuple(
        group(r * each + i, "tail" if r in tail else "fresh", replica=r, end=(1 + r / 100) * (i + 1) / each)
        for r in range(replicas)
        for i in range(each)
    )
    seen = StepObservation(plan, 1 + (replicas - 1) / 100, 1 + (replicas - m - 1) / 100, 1.0, 0.0, groups)
    whole = replace(step, seen=seen)
    if sampled is None:
        return whole
    return replace(whole, seen=replace(seen, groups=groups[::sampled]), totals=totals(groups, replicas))


def test_who_ran_what_until_when(step):
    found = timeline(step)
    assert found.horizon_s == 8.0
    assert found.marks == {"tail done": 7.0, "bulk done": 8.0, "cut": 8.0}
    assert [lane[:3] for lane in found.lanes] == [(3, 1, 2), (0, 0, 4), (1, 0, 2), (2, 0, 2)]
    assert [lane[3] for lane in found.lanes] == [TICKS * 7 // 8, TICKS, TICKS * 7 // 8, TICKS * 6 // 8]
    assert (found.shown, found.total, found.replicas) == (10, 10, 4)
    kinds = sorted(zip(found.requests["lane"], found.requests["kind"], strict=True))
    assert [KINDS[kind] for lane, kind in kinds if lane == 0] == ["tail pool"] * 2
    assert [KINDS[kind] for lane, kind in kinds if lane == 1] == ["bulk"] * 2 + ["cut"] * 2


def test_concurrency_is_the_requests_running(step):
    found = timeline(step)
    assert found.concurrency["bulk"][0] == pytest.approx(8)
    assert found.concurrency["bulk"][-1] == pytest.approx(4)  # the slowest group and the cut one
    assert found.concurrency["tail"][BINS // 2] == pytest.approx(2)
    assert found.concurrency["tail"][-1] == pytest.approx(0)
    seconds = sum(found.concurrency["bulk"]) * found.horizon_s / BINS
    assert seconds == pytest.approx(2 * (8 + 7 + 6 + 8))


def test_many_replicas_are_chosen_evenly_and_the_last_ones_stay(step):
    found = timeline(many(step, replicas=100, each=1))
    shown = [lane[0] for lane in found.lanes]
    assert len(shown) <= MOST_LANES
    assert {99, 95, 0} <= set(shown)  # the last of each pool, and the first that drained
    assert found.total == 200


def test_many_requests_are_thinned_and_each_replica_s_last_one_stays(step):
    found = timeline(many(step, replicas=8, each=50), 200)
    assert 150 <= found.shown <= 200
    last = {lane: max(e for k, e in zip(found.requests["lane"], found.requests["end"], strict=True) if k == lane)
            for lane in range(8)}  # fmt: skip
    assert [last[k] for k in range(8)] == [lane[3] for lane in found.lanes]


def test_a_sampled_step_speaks_of_all(step):
    whole, part = (timeline(many(step, replicas=8, each=48, sampled=sampled)) for sampled in (None, 4))
    assert part.total == whole.total == 8 * 48 * 2
    assert part.lanes == whole.lanes
    assert part.shown == whole.shown / 4
    assert part.concurrency["bulk"][0] == pytest.approx(whole.concurrency["bulk"][0], rel=0.1)


def test_a_request_that_never_ended_or_never_began(step):
    groups = step.seen.groups
    lost = replace(groups[0], status="failed", finished_s=(None, None), generated_s=None)
    never = replace(groups[1], replicas=(-1, -1), started_s=(None, None), finished_s=(None, None), status="failed")
    found = timeline(replace(step, seen=replace(step.seen, groups=(lost, never, *groups[2:]))))
    assert found.total == 8
    assert [KINDS[k] for k in found.requests["kind"]].count("failed") == 2
    assert max(found.requests["end"]) == TICKS


def test_the_page_s_numbers_are_plain(step):
    data = plain(timeline(step))
    assert len({len(column) for column in data["r"]}) == 1
    assert len(data["c"]["bulk"]) == BINS
