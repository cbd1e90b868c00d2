import pytest

from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy, PolicyContext
from tailsieve_verl.integration.guarded import GuardedPolicy

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
