import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from tailsieve_verl.core.custom import PlacedGroup, PoolPlacement, SplitPolicy, TailSelector
from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy, PolicyContext
from tailsieve_verl.core.steering import Request
from tailsieve_verl.integration.guarded import GuardedPlacement, GuardedPolicy, GuardedSelector

from ..records.steps import group

CONTEXT = PolicyContext(8, 2)


class Broken(FixedPolicy):
    def __init__(self, where):
        super().__init__(CONTEXT, 2, 1)
        self.where = where

    def plan(self, **facts):
        if self.where == "plan" and facts["step"] >= 2:
            raise KeyError("history")
        return super().plan(**facts)

    def observe(self, observation):
        if self.where == "observe":
            raise ZeroDivisionError("no rate")
        return super().observe(observation)


def test_a_policy_that_works_is_left_alone():
    policy = GuardedPolicy(FixedPolicy(CONTEXT, 2, 1))
    assert policy.plan(step=1, carried=0).q == 2
    assert policy.failure is None
    assert policy.state_dict() == {}


def test_a_plan_that_fails_drains_the_carried_groups_uniformly(caplog):
    policy = GuardedPolicy(Broken("plan"))
    assert policy.plan(step=1, carried=0).counts.left_over == 2
    plan = policy.plan(step=2, carried=2)
    assert (plan.q, plan.m, plan.counts.residual, plan.counts.left_over) == (0, 0, 2, 0)
    assert "goes on under uniform dispatch" in caplog.text
    assert "KeyError: 'history'" in policy.failure


def test_a_judgement_that_fails_makes_the_next_step_uniform():
    policy = GuardedPolicy(Broken("observe"))
    plan = policy.plan(step=1, carried=0)
    decision = policy.observe(StepObservation(plan, None, 1.0, 1.0, 0.0, ()))
    assert (decision.q, decision.m) == (0, 0)
    assert "ZeroDivisionError: no rate" in decision.reason
    assert policy.plan(step=2, carried=2).q == 0


def test_a_breach_of_the_accounting_is_not_hidden():
    policy = GuardedPolicy(FixedPolicy(CONTEXT, 2, 1))
    with pytest.raises(ValueError, match="carried"):
        policy.plan(step=1, carried=99)


def test_a_checkpoint_after_a_failure_can_be_resumed(caplog):
    failed = GuardedPolicy(Broken("observe"))
    plan = failed.plan(step=1, carried=0)
    failed.observe(StepObservation(plan, None, 1.0, 1.0, 0.0, ()))
    resumed = GuardedPolicy(InnerLoopPolicy(CONTEXT, 2, 1))
    resumed.load_state_dict(failed.state_dict())
    assert "had failed before the checkpoint" in caplog.text
    assert resumed.plan(step=2, carried=2).q == 2


def test_a_state_that_cannot_be_read_makes_the_run_uniform_not_lost(caplog):
    policy = GuardedPolicy(InnerLoopPolicy(CONTEXT, 2, 1))
    policy.load_state_dict({"of": "another version"})
    assert policy.plan(step=2, carried=2).q == 0
    assert "uniform" in caplog.text


class Custom(FixedPolicy):
    """A policy of the user's own that misbehaves in one way."""

    def __init__(self, plan=None, decision=None, wait_s=0.0):
        super().__init__(CONTEXT, 2, 1)
        self.bad_plan, self.bad_decision, self.wait_s = plan, decision, wait_s

    def plan(self, **facts):
        time.sleep(self.wait_s)
        good = super().plan(**facts)
        return self.bad_plan(good) if self.bad_plan else good

    def observe(self, observation):
        return self.bad_decision(super().observe(observation)) if self.bad_decision else super().observe(observation)


BAD_PLANS = {
    "nothing": (lambda plan: None, "TypeError: a NoneType is no StepPlan"),
    "another step": (lambda plan: replace(plan, step=7), r"\(step, N, R\) = \(7, 8, 2\) is not \(1, 8, 2\)"),
    "a smaller batch": (
        lambda plan: replace(plan, counts=replace(plan.counts, fresh_needed=7)), "is not what 0 carried groups and q=2"
    ),
    "no bulk replica": (lambda plan: replace(plan, m=2), "m=2 cannot serve 0 tail groups on 2 replicas"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_plan_that_the_books_do_not_allow_is_not_run(name):
    bad, said = BAD_PLANS[name]
    policy = GuardedPolicy(Custom(plan=bad))
    assert policy.plan(step=1, carried=0) == FixedPolicy(CONTEXT, 0, 0).plan(step=1, carried=0)
    assert re.search(said, policy.failure)


BAD_DECISIONS = {
    "nothing": (lambda d: None, "'NoneType' object has no attribute 'm'|a NoneType is no Decision"),
    "q of N": (lambda d: replace(d, q=8), "q=8 must be between 1 and 7"),
    "half a group": (lambda d: replace(d, q=1.5), "q must be a whole number"),
    "m alone": (lambda d: replace(d, q=0), "q=0 must be between"),
    "no figures": (lambda d: replace(d, extra=None), "'NoneType' object is not iterable"),
    "words for a figure": (lambda d: replace(d, extra={"mood": "good"}), "could not convert string to float"),
}


@pytest.mark.parametrize("name", BAD_DECISIONS)
def test_a_decision_that_is_no_split_is_not_carried_out(name):
    bad, said = BAD_DECISIONS[name]
    policy = GuardedPolicy(Custom(decision=bad))
    plan = policy.plan(step=1, carried=0)
    decision = policy.observe(StepObservation(plan, None, 1.0, 1.0, 0.0, ()))
    assert (decision.q, decision.m) == (0, 0)
    assert re.search(said, policy.failure)


def test_a_policy_of_one_s_own_that_hangs_is_left_behind(caplog):
    policy = GuardedPolicy(Custom(wait_s=3.0), deadline_s=0.1)
    assert policy.plan(step=1, carried=0).q == 0
    assert "did not finish within 0.1 s" in policy.failure


class Counting(SplitPolicy):
    """A policy of the user's own that counts with numpy, as one that looks at arrays does."""

    def __init__(self, state=None):
        super().__init__(CONTEXT)
        self.state = state

    def decide(self, observation):
        return np.int64(3), np.argmax([0, 1]), "counted"

    def state_dict(self):
        return super().state_dict() if self.state is None else self.state()


def decided(policy):
    plan = policy.plan(step=1, carried=0)
    policy.amend(policy.observe(StepObservation(plan, None, 1.0, 1.0, 0.0, ())))
    return policy


def test_numpy_numbers_of_a_policy_of_one_s_own_can_be_saved():
    policy = decided(GuardedPolicy(Counting(), deadline_s=5.0))
    assert policy.failure is None
    saved = json.loads(json.dumps({"state": policy.state_dict(), "steering": policy.steering_state()}))
    assert saved["state"] == {"q": 3, "m": 1, "reason": "counted"}
    assert saved["steering"]["next"] == [3, 1]


BAD_STATES = {
    "an error": (lambda: 1 / 0, "ZeroDivisionError"),
    "no mapping": (lambda: [1, 2], "a list is no mapping"),
    "no JSON": (lambda: {"seen": {1, 2}}, "cannot record a set"),
    "no end": (lambda: time.sleep(3), "did not finish within 0.2 s"),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_cannot_be_saved_costs_the_state_and_not_the_run(name, caplog):
    state, said = BAD_STATES[name]
    policy = decided(GuardedPolicy(Counting(state), deadline_s=0.2))
    saved = json.loads(json.dumps(policy.state_dict()))
    assert said in saved["failed"]
    assert "a resume will start it afresh" in caplog.text
    assert policy.plan(step=2, carried=0).q == 3  # it goes on
    resumed = GuardedPolicy(Counting())
    resumed.load_state_dict(saved)
    assert resumed.plan(step=2, carried=0).q == 0


def test_numpy_scalars_in_a_state_of_one_s_own_are_saved_as_numbers():
    policy = decided(GuardedPolicy(Counting(lambda: {"mean": np.float32(0.5), "seen": np.int64(7)}), deadline_s=5.0))
    assert policy.state_dict() == {"mean": 0.5, "seen": 7}


class Placement(PoolPlacement):
    def __init__(self, answer):
        self.answer = answer

    def slots(self, groups, replicas):
        return self.answer(groups, replicas)


GROUPS = [PlacedGroup("a", 2), PlacedGroup("b", 2)]
BAD_SLOTS = {
    "a row short": (lambda g, r: [[0, 1]], "slots has 1 rows for 2 groups"),
    "an entry short": (lambda g, r: [[0, 1], [0]], "slots of group 1 has 1 entries for 2 responses"),
    "outside of the pool": (
        lambda g, r: [[0, 1], [0, 3]],
        r"slots of group 1 must be a whole number in \[0, 2\], got 3",
    ),
    "no numbers": (lambda g, r: [["a", "b"], [0, 0]], "slots of group 0 must be a whole number"),
    "nothing": (lambda g, r: None, "TypeError"),
    "an error": (lambda g, r: 1 / 0, "ZeroDivisionError"),
    "no end": (lambda g, r: time.sleep(3), "did not finish within 0.2 s"),
}


@pytest.mark.parametrize("name", BAD_SLOTS)
def test_a_placement_that_fails_gives_way_to_round_robin(name, caplog):
    bad, said = BAD_SLOTS[name]
    guarded = GuardedPlacement(Placement(bad), "tail", 0.2)
    assert guarded.slots(GROUPS, 3) is None
    assert re.search(said, caplog.text)
    assert "dealt round robin from here on" in caplog.text
    caplog.clear()
    assert guarded.slots(GROUPS, 3) is None  # it is not asked again
    assert not caplog.records


def test_a_placement_that_works_is_used():
    guarded = GuardedPlacement(
        Placement(lambda groups, replicas: [[i % replicas] * g.sessions for i, g in enumerate(groups)]), "bulk", 5
    )
    assert guarded.slots(GROUPS, 3) == [(0, 0), (1, 1)]
    assert guarded.slots([], 3) is None


class Selector(TailSelector):
    def __init__(self, answer):
        self.answer = answer

    def order(self, cut):
        return self.answer(cut)


CUT = [group(i, status="cut", tokens=10 * i) for i in range(3)]


@pytest.mark.parametrize(
    "bad", [lambda cut: [0, 1], lambda cut: [0, 1, 1], lambda cut: [0, 1, 9], lambda cut: None, lambda cut: 1 / 0]
)
def test_a_selector_that_fails_gives_way_to_the_tail_signal(bad, caplog):
    selector = GuardedSelector(Selector(bad))
    assert selector.order(CUT) == GuardedSelector().order(CUT) == [2, 1, 0]
    assert "tail_selector Selector failed" in caplog.text
    assert "most unfinished responses go first" in caplog.text


def test_a_selector_that_works_is_used():
    assert GuardedSelector(Selector(lambda cut: [1, 2, 0])).order(CUT) == [1, 2, 0]


def test_pins_that_do_not_fit_the_run_end_with_a_warning(caplog):
    pinned = GuardedPolicy(FixedPolicy(PolicyContext(8, 4), 2, 1), callbacks=["Mine"])
    pinned.request(Request("Mine", "pin", "x", m=3))
    state = pinned.steering_state()
    other = GuardedPolicy(FixedPolicy(CONTEXT, 2, 1), callbacks=["Mine"])
    other.load_steering_state(state, same=False)
    assert "the pins of the checkpoint do not fit this run and end: m must be a whole number in [1, 1]" in caplog.text
    assert other.plan(step=2, carried=2).m == 1
