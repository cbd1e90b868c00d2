"""Curves by table of draft depths, and a controller whose pools draft differently."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.depth_taus import KEPT, DepthTaus, _continued
from tailsieve_verl.core.speculation import Acceptance, DepthTable, SpeculationCosts, effective_curve
from tailsieve_verl.simulate.drafting import Drafting
from tailsieve_verl.simulate.rollout import PoolDrafts

from .closed_loop import DENSE, LOADS, N, Rollout

R, M = 8, 3
ACCEPTANCE, COSTS = Acceptance((0.8,)), SpeculationCosts.modelled(DENSE, (1, 2, 3, 4, 5), 0.05)
DRAFTS = {name: Drafting(DepthTable.constant(int(name)), ACCEPTANCE, COSTS) for name in ("1", "3", "5")}


def names(plan, tail, bulk):
    return (bulk,) * (R - plan.m) + (tail,) * plan.m


def drafting(steps, tables, *, told=True, policy=None):
    """Steps of a closed loop whose pools follow ``tables(step)``, (tail, bulk): observation and decision."""
    rollout = Rollout(LOADS["real"], DENSE)
    policy = policy or Controller(ControllerConfig(8, M), N, R)
    for step in range(1, steps + 1):
        tail, bulk = tables(step)
        rollout.rollout.drafts = PoolDrafts(DRAFTS[bulk], DRAFTS[tail])
        plan = policy.plan(step=step, carried=len(rollout.carried))
        observation = rollout.step(plan)
        if told:
            observation = replace(observation, depths=names(plan, tail, bulk))
        yield policy, observation, policy.observe(observation)


def held():
    """A controller that has no switch left."""
    policy = Controller(ControllerConfig(8, M, switch_limit=1, guard=False), N, R)
    policy._switches = [10**6]
    return policy


def test_each_table_has_its_own_curve():
    *_, (policy, _, _) = drafting(12, lambda step: ("5", "1"))
    taus, sizes = policy.evidence.taus, np.arange(1, 12)
    for tail, name in ((True, "5"), (False, "1")):
        truth = effective_curve(COSTS, ACCEPTANCE, DRAFTS[name].table, 256)(sizes)
        assert np.abs(taus.curve(tail=tail)(sizes) / truth - 1).max() < 0.06, name


def test_what_other_splits_take_is_predicted_by_each_pool_s_own_curve():
    """The truth: a predictor with the true curves on the same history. For the split in force the measured slowness of
    each pool makes up for a wrong curve, elsewhere nothing does."""
    wrong = {}
    for told in (True, False):
        *_, (policy, observation, _) = drafting(15, lambda step: ("5", "1"), told=told)
        model = policy.evidence.predictor(observation.plan.step + 1)
        curves = [effective_curve(COSTS, ACCEPTANCE, DRAFTS[name].table, 512) for name in ("1", "5")]
        truth = replace(model, curve=curves[0], tail_curve=curves[1], slow_tail=1.0, slow_bulk=1.0, **empty())
        splits = [(4, 2), (8, 2), (8, 4), (12, 4), (16, 6), (0, 0)]
        wrong[told] = np.mean([abs(model.split(*s).mean_s / truth.split(*s).mean_s - 1) for s in splits])
    assert wrong[True] < 0.05
    assert wrong[True] < 0.5 * wrong[False]


def empty():
    return {name: {} for name in ("_pools", "_tails", "_splits", "_best", "_balance")}


def test_a_changed_depth_voids_its_own_pool_s_curve_alone():
    seen = list(drafting(24, lambda step: ("5", "1") if step < 16 else ("3", "1"), policy=held()))
    policy, *_ = seen[-1]
    sizes = np.arange(1, 16)
    truth = effective_curve(COSTS, ACCEPTANCE, DRAFTS["3"].table, 64)(sizes)
    assert np.abs(policy.evidence.taus.curve(tail=True)(sizes) / truth - 1).max() < 0.06
    assert set(policy.evidence.taus.state_dict()["taus"]) == {"1", "3", "5"}
    later = [d.prediction_error for *_, d in seen[18:] if d.prediction_error is not None]
    assert np.mean(np.abs(later)) < 0.12


def test_the_tail_pool_s_curve_goes_on_in_the_shape_of_the_bulk_pool_s():
    own = _continued(DecodeCurve([1, 4], [0.01, 0.02]), DecodeCurve([1, 4, 16, 64], [0.02, 0.03, 0.06, 0.2]))
    assert own(16.0) == pytest.approx(0.04)
    assert own(2.0) == pytest.approx(DecodeCurve([1, 4], [0.01, 0.02])(2.0))
    steep = _continued(DecodeCurve([1, 4], [0.01, 0.02]), DecodeCurve([1, 4, 16], [0.001, 0.001, 0.004]))
    assert steep(16.0) <= 0.08 / 0.5  # a curve that loses half its throughput would be refused


def test_tables_used_last_are_kept_and_the_state_restores():
    taus = DepthTaus()
    for name in "abcdef":
        taus._of(name)
    assert list(taus.state_dict()["taus"]) == list("cdef")
    assert KEPT == 4
    *_, (policy, _, _) = drafting(4, lambda step: ("5", "1"))
    copy = DepthTaus()
    copy.load_state_dict(json.loads(json.dumps(policy.evidence.taus.state_dict())))
    assert copy.curve(tail=True) == policy.evidence.taus.curve(tail=True)
    old = policy.evidence.tau.state_dict()  # of a version with one curve
    copy.load_state_dict(old)
    assert copy.tau.curve == policy.evidence.tau.curve


@pytest.mark.parametrize("start", [(0, 0), (8, 2)])
def test_the_tail_pool_never_outgrows_its_band(start):
    policy = Controller(ControllerConfig(*start, most_m=2), N, R)
    assert max(d.m for *_, d in drafting(25, lambda step: ("3", "3"), policy=policy)) <= 2
    free = [c.m for *_, d in drafting(25, lambda step: ("3", "3")) for c in d.candidates]
    assert max(free) > 2
    with pytest.raises(ValueError, match="m=3 must be at most 2"):
        Controller(ControllerConfig(8, 3, most_m=2), N, R)
