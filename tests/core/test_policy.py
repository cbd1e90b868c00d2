import itertools
import json

import pytest

from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy, PolicyContext, check_split

CONTEXT = PolicyContext(n_groups=64, replicas=4)


def run(policy, steps, times, carried=0, **facts):
    """Drive a policy as the ledger would; ``times(q)`` gives (t_tail, t_bulk). Returns the decisions."""
    decisions = []
    for step in range(1, steps + 1):
        plan = policy.plan(step=step, carried=carried)
        carried = plan.counts.left_over
        t_tail, t_bulk = times(plan.counts.tail)
        observation = StepObservation(plan, t_tail if plan.counts.tail else None, t_bulk, t_bulk, 0.0, (), **facts)
        decisions.append(policy.observe(observation))
    return decisions


def linear(q):
    """A tail pool that needs 1 s a group and a bulk pool that needs 0.2 s: balanced at q = 64 / 6."""
    return 1.0 * q, 0.2 * (64 - q)


@pytest.mark.parametrize("start", [1, 32])
def test_the_inner_loop_finds_the_balance_from_either_side(start):
    decisions = run(InnerLoopPolicy(CONTEXT, start, 1), 40, linear)
    assert abs(decisions[-1].q - 64 / 6) <= 1
    assert not any(d.switched for d in decisions[-10:])


def test_a_change_is_held_until_it_has_settled():
    decisions = run(InnerLoopPolicy(CONTEXT, 32, 1), 12, linear)
    switches = [d.step for d in decisions if d.switched]
    assert decisions[0].reason.startswith("in transition")  # nothing was carried into step 1
    assert all(later - earlier >= 3 for earlier, later in itertools.pairwise(switches))


def test_steps_are_clipped_and_q_stays_in_range():
    decisions = run(InnerLoopPolicy(CONTEXT, 1, 1), 60, lambda q: (1e-6, 100.0))
    sizes = [b.q - a.q for a, b in itertools.pairwise(decisions)]
    assert max(sizes) <= 8
    assert decisions[-1].q == 32
    assert run(InnerLoopPolicy(CONTEXT, 5, 1), 60, lambda q: (100.0, 1e-6))[-1].q == 1


@pytest.mark.parametrize("t_tail", [0.0, -1.0, float("nan"), float("inf"), None])
def test_absurd_times_are_ignored_and_counted(t_tail):
    policy = InnerLoopPolicy(CONTEXT, 8, 1)
    decisions = run(policy, 5, lambda q: (t_tail, 1.0))
    assert {d.q for d in decisions} == {8}
    assert policy.ignored == 4


def test_a_step_with_failures_is_not_compared():
    decisions = run(InnerLoopPolicy(CONTEXT, 8, 1), 5, linear, failed=1)
    assert {d.q for d in decisions} == {8}
    assert "failed" in decisions[-1].reason


def test_a_resume_continues_with_the_same_decisions():
    whole = [d.q for d in run(InnerLoopPolicy(CONTEXT, 32, 1), 20, linear)]
    policy = InnerLoopPolicy(CONTEXT, 32, 1)
    carried, resumed = 0, []
    for step in range(1, 21):
        fresh = InnerLoopPolicy(CONTEXT, 5, 2)
        fresh.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        policy = fresh
        plan = policy.plan(step=step, carried=carried)
        carried = plan.counts.left_over
        t_tail, t_bulk = linear(plan.counts.tail)
        resumed.append(policy.observe(StepObservation(plan, t_tail or None, t_bulk, t_bulk, 0.0, ())).q)
    assert resumed == whole


def test_a_schedule_holds_from_its_step_on():
    policy = FixedPolicy(CONTEXT, 4, 1, {3: (8, 2), 5: (0, 0)})
    assert [policy.plan(step=s, carried=4).q for s in range(1, 7)] == [4, 4, 8, 8, 0, 0]
    plan = policy.plan(step=3, carried=4)
    assert (list(plan.tail_replicas), list(plan.bulk_replicas)) == ([2, 3], [0, 1])
    uniform = policy.plan(step=5, carried=8)
    assert (uniform.m, uniform.counts.residual, list(uniform.bulk_replicas)) == (0, 8, [0, 1, 2, 3])


def test_the_first_step_uses_all_replicas_for_the_bulk_pool():
    plan = FixedPolicy(CONTEXT, 4, 1).plan(step=1, carried=0)
    assert (plan.m, plan.counts.fresh, list(plan.bulk_replicas)) == (0, 68, [0, 1, 2, 3])


@pytest.mark.parametrize("split", [(64, 1), (-1, 1), (4, 4), (4, 0), (0, 1)])
def test_impossible_splits_are_refused(split):
    with pytest.raises(ValueError, match=r"must be between"):
        check_split(*split, 64, 4)
