import json

import pytest

from tailsieve_verl.core.custom import SplitPolicy
from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.core.policy import PolicyContext
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

CONTEXT = PolicyContext(16, 4)


class Growing(SplitPolicy):
    """One group more after every step, up to ``most``."""

    def __init__(self, context, most, **start):
        super().__init__(context, **start)
        self.most = most

    def decide(self, observation):
        return min(self.q + 1, self.most), 1, f"after step {observation.plan.step}"


def test_a_policy_that_only_says_the_next_split_runs_whole_steps():
    rollout = Rollout(Growing(CONTEXT, 4), SyntheticWorkload(LengthModel()), Machine(4, EngineCosts(DENSE)))
    steps = [rollout.step(number, last=number == 7) for number in range(1, 8)]
    assert [s.observation.plan.q for s in steps] == [0, 1, 2, 3, 4, 4, 4]
    assert [s.observation.plan.counts.tail for s in steps] == [0, 0, 1, 2, 3, 4, 4]
    assert [s.decision.switched for s in steps] == [True] * 4 + [False] * 3
    assert steps[1].observation.plan.reason == "after step 1"
    assert rollout.ledger.trained == 7 * 16


def test_its_split_survives_a_resume():
    policy, again = Growing(CONTEXT, 9, q=3, m=2), Growing(CONTEXT, 9)
    policy.observe(StepObservation(policy.plan(step=1), None, 1.0, 1.0, 0.0, ()))
    again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert again.plan(step=2, carried=3) == policy.plan(step=2, carried=3)


def test_a_split_that_is_none_is_refused():
    with pytest.raises(ValueError, match="q=16 must be between 1 and 15"):
        Growing(CONTEXT, 9, q=16, m=1)
    policy = Growing(CONTEXT, most=99, q=15, m=1)
    with pytest.raises(ValueError, match="q=16 must be between"):
        policy.observe(StepObservation(policy.plan(step=1), None, 1.0, 1.0, 0.0, ()))
