import pytest

from tailsieve_verl.core.step import StepTracker


def tracker(batch=3, tail=1, residual=0, fresh=3):
    routes = [("t", "tail", tail), ("r", "residual", residual), ("f", "fresh", fresh)]
    return StepTracker(batch, [(f"{name}{i}", route) for name, route, count in routes for i in range(count)])


def test_the_cut_takes_the_earliest_fresh_groups_and_does_not_wait_for_the_tail():
    step = tracker()
    for time, uid in enumerate(["f2", "f0"]):
        assert step.verdict().action == "wait"
        step.generated(uid, float(time))
    assert step.verdict().action == "cut"
    assert step.cut(2.0) == ("f1",)
    assert {g.uid for g in step.selected()} == {"t0", "f0", "f2"}
    assert step.verdict().action == "wait"  # for the tail group, and for rewards
    step.generated("f1", 2.1)  # too late: it stays cut
    step.generated("t0", 3.0)
    for uid in ("t0", "f0", "f1"):
        step.stored(uid)
    assert step.verdict().action == "wait"
    step.stored("f2")
    assert step.verdict().action == "done"
    assert (step.pool_time_s(tail=True), step.pool_time_s(tail=False)) == (3.0, 1.0)


def test_the_cut_waits_for_residual_groups():
    step = tracker(batch=2, tail=0, residual=1, fresh=2)
    step.generated("f0", 1.0)
    step.generated("f1", 2.0)
    assert step.verdict().action == "wait"
    step.generated("r0", 3.0)
    assert step.cut(3.0) == ("f1",)


def test_a_failure_is_made_good_by_a_spare_group_first():
    step = tracker()
    assert step.fail("f0")
    assert step.verdict().action == "wait"  # two fresh groups are left, and two are needed
    assert step.fail("f1")
    verdict = step.verdict()
    assert (verdict.action, verdict.launch) == ("launch", 1)
    step.add([("n0", "fresh")])
    step.generated("n0", 1.0)
    step.generated("f2", 2.0)
    assert step.cut(2.0) == ()


def test_a_failed_tail_group_raises_what_the_fresh_groups_must_deliver():
    step = tracker()
    step.fail("t0")
    for uid in ("f0", "f1"):
        step.generated(uid, 1.0)
    assert step.verdict().action == "wait"
    step.generated("f2", 2.0)
    assert step.cut(2.0) == ()


def test_a_failure_after_the_cut_calls_for_a_group_that_must_finish():
    step = tracker()
    step.generated("f0", 1.0)
    step.generated("f1", 1.0)
    step.cut(1.0)
    assert step.fail("f0")  # its reward failed, say
    assert not step.fail("f2")  # it was cut: nobody misses it
    verdict = step.verdict()
    assert (verdict.action, verdict.launch) == ("launch", 1)
    with pytest.raises(ValueError, match="after the cut"):
        step.add([("n0", "fresh")])
    step.add([("n0", "residual")])
    for uid in ("t0", "n0"):
        step.generated(uid, 2.0)
    for uid in ("t0", "n0", "f1"):
        step.stored(uid)
    assert step.verdict().action == "done"


def test_what_is_waited_for_is_said():
    assert tracker().verdict().waiting_for == "2 more fresh groups to be generated and 1 tail groups to be generated"


def test_no_cut_before_its_time():
    with pytest.raises(RuntimeError, match="not ready"):
        tracker().cut(1.0)
