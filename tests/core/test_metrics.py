import pytest

from tailsieve_verl.core.metrics import idle_fractions, step_metrics
from tailsieve_verl.core.plan import Decision, GroupRecord, LaunchCounts, StepObservation, StepPlan


def observation(**changes):
    plan = StepPlan(3, 2, 2, 1, 1, LaunchCounts(1, 0, 2, 1))
    groups = (
        GroupRecord(0, "", "tail", "trained", (1, 1), (0.0, 1.0), (2.0, 3.0), (5, 5), (True, True), 3.0),
        GroupRecord(1, "", "fresh", "trained", (0, 0), (0.0, 0.0), (1.0, 2.0), (5, 5), (True, True), 2.0),
        GroupRecord(2, "", "fresh", "cut", (0, -1), (1.5, None), (2.5, None), (5, 0), (False, False), None),
    )
    facts = {"t_tail_s": 3.0, "t_bulk_s": 2.0, "cut_s": 2.0, "abort_s": 0.1, "groups": groups} | changes
    return StepObservation(plan, **facts)


def test_idle_is_what_no_request_covers():
    assert idle_fractions(observation()) == {"tail": pytest.approx(0.0), "bulk": pytest.approx(1 - 2.5 / 3)}


def test_an_absent_pool_has_no_time():
    metrics = step_metrics(observation(), Decision(3, 1, 1, True, False, ""), carried_next=1)
    assert metrics["generation_s"] == 3.0
    assert "q_star" not in metrics
    without = step_metrics(observation(t_tail_s=None), Decision(3, 1, 1, True, False, "", q_star=1.5), carried_next=1)
    assert "t_tail_s" not in without
    assert without["q_star"] == 1.5
