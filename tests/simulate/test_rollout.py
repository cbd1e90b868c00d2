"""Simulated steps: the accounting of a real run, times by the engines, idle shares, records a controller can read."""

import numpy as np
import pytest

from tailsieve_verl.core.decode import replica_time
from tailsieve_verl.core.placement import UniformGroup, VerlDefault
from tailsieve_verl.core.speculation import Acceptance, DepthTable, effective_curve
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.drafting import Speculation
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.rollout import Machine, PoolDrafts, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

N, n, R = 16, 4, 4


def workload(seed=0):
    return SyntheticWorkload(LengthModel(p50=300, p90=1200, cap=3000), n, seed=seed)


def rollout(policy, costs=None, seed=0, **machine):
    built, placement, _ = parse_policy(policy).build(N, R)
    return Rollout(built, workload(seed), Machine(R, costs or EngineCosts(DENSE), **machine), placement)


@pytest.mark.parametrize(("policy", "placement"), [("uniform_group", UniformGroup()), ("verl_default", VerlDefault())])
def test_uniform_steps_take_what_the_core_says(policy, placement):
    ours, load = rollout(policy), workload()
    for step in range(1, 4):
        lengths = load.lengths(range(N * (step - 1), N * step), [0] * N, step)
        where = placement.place(lengths, R)
        expected = max(replica_time(lengths[where == r], DENSE) for r in range(R))
        seen = ours.step(step)
        assert seen.observation.generation_s == pytest.approx(expected, rel=1e-12)
        assert np.array_equal(seen.lengths, lengths)


def test_a_split_carries_its_slowest_groups_and_trains_every_prompt_once():
    ours = rollout("fixed:q=3,m=1")
    trained, carried = [], set()
    for step in range(1, 9):
        seen = ours.step(step, last=step == 8)
        plan, groups = seen.observation.plan, seen.observation.groups
        assert {g.prompt for g in groups if g.route == "tail"} == carried
        cut = [g for g in groups if g.status == "cut"]
        carried = {g.prompt for g in cut}
        assert list(ours.ledger.carried) and carried == set(ours.ledger.carried) if step < 8 else not carried
        assert all(not all(g.complete) for g in cut)
        assert seen.prompts.size == N == plan.counts.batch
        trained += seen.prompts.tolist()
        assert {r for g in groups if g.route == "tail" for r in g.replicas} <= set(plan.tail_replicas)
        assert {r for g in groups if g.route == "fresh" for r in g.replicas} <= set(plan.bulk_replicas)
    assert sorted(trained) == list(range(8 * N))


def test_cut_responses_are_recorded_as_far_as_they_came():
    seen = rollout("fixed:q=4,m=1").step(1)
    cut_s = seen.observation.cut_s
    for group in seen.observation.groups:
        for finished, tokens, complete in zip(group.finished_s, group.tokens, group.complete, strict=True):
            assert finished <= cut_s + 1e-9 or group.status == "trained"
            assert complete or (group.status == "cut" and finished == cut_s and tokens >= 0)
    censored = [g for g in seen.observation.groups if g.status == "cut"]
    assert len(censored) == 4
    assert any(tokens > 0 for g in censored for tokens, whole in zip(g.tokens, g.complete, strict=True) if not whole)


def test_idle_shares_and_preemptions_are_reported():
    step = None
    ours = rollout("fixed:q=3,m=1")
    for number in (1, 2):
        step = ours.step(number)
    assert 0 <= step.idle_tail < 1
    assert 0 <= step.idle_bulk < 1
    assert rollout("verl_default").step(1).idle_tail is None
    tight = rollout("verl_default", EngineCosts(DENSE, kv_tokens=3000)).step(1)
    assert tight.preemptions > 0
    assert tight.observation.generation_s > rollout("verl_default").step(1).observation.generation_s


def test_noise_is_the_same_for_every_policy():
    plain, noisy = rollout("verl_default"), rollout("verl_default", noise=0.2, seed=0)
    other = rollout("uniform_group", noise=0.2, seed=0)
    reference = rollout("uniform_group")
    for step in range(1, 4):
        factor = noisy.step(step).observation.generation_s / plain.step(step).observation.generation_s
        assert factor != pytest.approx(1)
        ratio = other.step(step).observation.generation_s / reference.step(step).observation.generation_s
        assert ratio == pytest.approx(factor)


def test_oracles_place_whole_uniform_steps():
    for name in ("uniform_oracle", "seer_oracle", "streamrl_oracle:m=2"):
        oracle, uniform = rollout(name), rollout("uniform_group")
        assert np.array_equal(oracle.step(1).lengths, uniform.step(1).lengths)


def test_a_replica_drafts_as_its_pool_does():
    known = Speculation(Acceptance((1.0,)), DENSE, draft_share=0.0)
    deep = known.drafting(DepthTable.constant(3), 64)
    plain, drafted = rollout("fixed:q=3,m=1"), rollout("fixed:q=3,m=1")
    drafted.drafts = PoolDrafts(tail=deep)
    for number in (1, 2):
        before, after = plain.step(number), drafted.step(number)
        assert after.observation.t_bulk_s == before.observation.t_bulk_s
    tail = [np.array(g.tokens, float) for g in after.observation.groups if g.route == "tail"]
    curve = effective_curve(deep.costs, deep.acceptance, deep.table, 64)
    assert after.observation.t_tail_s == pytest.approx(replica_time(np.concatenate(tail), curve))
    assert after.observation.t_tail_s < before.observation.t_tail_s


def test_sampled_drafts_are_the_same_for_every_policy():
    known = Speculation(Acceptance((0.7,)), DENSE)
    ours, other = rollout("verl_default", seed=3), rollout("fixed:q=0,m=0", seed=3)
    for one in (ours, other):
        one.drafts = PoolDrafts(known.drafting("auto", 64), None, sampled=True)
    times = [(ours.step(s).observation.generation_s, other.step(s).observation.generation_s) for s in (1, 2)]
    assert times[0][0] == times[0][1] != times[1][0]
