"""Selectors in closed loop on the package's simulator: who plans, what is trained, and what a resume decides."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.history_judge import slowness
from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.core.selector import HistorySelector, SelectorConfig
from tailsieve_verl.core.steering import FREE, Pins
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

N, SESSIONS, R, EPOCH = 32, 4, 4, 6
PERSISTENT = LengthModel(prompt_share=0.8)
MILD = LengthModel(p50=1160, p90=1740, prompt_share=0.9)  # there the cutoff gains nothing
CHANCE = LengthModel(p50=400, p90=600, prompt_share=0.01, runaway=0.001)


def selector(name="history", curve=DENSE, n_groups=N, replicas=R, **settings):
    controller = Controller(ControllerConfig(), n_groups, replicas, curve=curve)
    return HistorySelector(controller, SelectorConfig(name, scenarios=12, **settings))


def rollout(policy, model=PERSISTENT, seed=0, data_set=N * EPOCH, n_groups=N, replicas=R):
    load = SyntheticWorkload(model, SESSIONS, seed=seed, data_set=data_set)
    return Rollout(policy, load, Machine(replicas, EngineCosts(DENSE), seed=seed))


def seconds(steps):
    return sum(s.observation.generation_s for s in steps)


def test_from_the_second_pass_on_nothing_is_cut_and_long_prompts_are_on_few_replicas():
    run = rollout(selector())
    steps = [run.step(k) for k in range(1, 3 * EPOCH + 1)]
    placed = [s for s in steps if s.observation.plan.by_history]
    assert [s.observation.plan.step for s in placed] == list(range(EPOCH + 2, 3 * EPOCH + 1))
    uneven = 0
    for step in placed[1:]:  # the first drains what the cutoff carried
        groups = step.observation.groups
        assert all(g.status == "trained" and g.route == "fresh" for g in groups)
        tokens = {r: [t for g in groups for q, t in zip(g.replicas, g.tokens, strict=True) if q == r] for r in range(R)}
        if len(tokens[R - 1]) < len(tokens[0]):
            uneven += 1
            assert np.mean(tokens[R - 1]) > 2 * np.mean(tokens[0])
    assert uneven > 0.7 * len(placed)  # the others were not predicted to gain over verl's default dispatch


def test_placed_steps_beat_verl_s_default_dispatch_on_persistent_loads():
    ours, verl = rollout(selector()), rollout(FixedPolicy(PolicyContext(N, R), 0, 0))
    last = 4 * EPOCH
    mine, theirs = ([run.step(k) for k in range(1, last + 1)][EPOCH + 1 :] for run in (ours, verl))
    assert seconds(theirs) > 1.04 * seconds(mine)
    assert mine[-1].decision.predicted_s is not None
    errors = [abs(s.decision.prediction_error) for s in mine if s.decision.prediction_error is not None]
    assert np.median(errors) < 0.15


def test_auto_takes_history_where_prompts_persist_and_says_why():
    run = rollout(selector("auto"), MILD)
    steps = [run.step(k) for k in range(1, 4 * EPOCH + 1)]
    assert steps[-1].observation.plan.by_history
    assert "by history" in steps[-1].decision.reason
    assert "by the cutoff" in steps[-1].decision.reason


def test_auto_stays_with_the_cutoff_where_length_is_chance():
    run = rollout(selector("auto"), CHANCE)
    plain = rollout(Controller(ControllerConfig(), N, R, curve=DENSE), CHANCE)
    steps, cutoff = ([r.step(k) for k in range(1, 4 * EPOCH + 1)] for r in (run, plain))
    assert sum(s.observation.plan.by_history for s in steps) <= 2
    assert seconds(steps) < 1.05 * seconds(cutoff)


def test_control_steps_come_as_often_as_asked_and_are_dealt():
    run = rollout(selector("auto", control_every=5), MILD)
    steps = [run.step(k) for k in range(1, 5 * EPOCH + 1)]
    control = [s.observation.plan.step for s in steps if "control" in s.observation.plan.reason]
    assert len(control) >= 2
    assert min(np.diff(control)) >= 5
    dealt = next(s for s in steps if s.observation.plan.step == control[0])
    load = Counter(r for g in dealt.observation.groups for r in g.replicas)
    assert max(load.values()) - min(load.values()) <= 1


def test_placed_steps_that_measure_slower_than_replayed_count_against_history():
    policy = selector("auto")
    run = rollout(policy, MILD)
    for k in range(1, 4 * EPOCH + 1):
        run.step(k)
    assert policy.by_history
    policy.judge.placed, policy.judge.control = [0.3, 0.31, 0.29], [0.0, 0.01, -0.01]
    policy._held_until = 0
    assert not policy._choose(99)[0]
    assert "slower than replayed" in policy._choose(99)[1]


def test_without_a_curve_or_a_history_the_cutoff_plans():
    policy = selector(curve=None)
    assert not policy.plan(step=1).by_history
    run = rollout(policy)
    assert "curve" in run.step(1).decision.reason or policy.controller.evidence.curve is not None
    assert "have a history" in run.step(2).decision.reason


def test_a_history_from_before_places_from_the_second_step_on():
    taught = selector()
    run = rollout(taught)
    for k in range(1, EPOCH + 1):
        run.step(k)
    fresh = HistorySelector(
        Controller(ControllerConfig(), N, R, curve=DENSE), SelectorConfig("history", scenarios=12), taught.forecast
    )
    again = rollout(fresh)
    again.step(1)
    assert again.step(2).observation.plan.by_history


def test_groups_of_different_sizes_or_unknown_ones_are_dealt():
    policy = selector()
    run = rollout(policy)
    for k in range(1, 2 * EPOCH + 1):
        run.step(k)
    plan = policy.plan(step=99)
    keys = [str(i) for i in range(N)]
    assert plan.by_history
    routes = ["fresh"] * N
    assert policy.arrange(plan, keys, routes, [SESSIONS] * N).replicas.shape == (N, SESSIONS)
    assert policy.arrange(plan, keys, routes, [SESSIONS] * (N - 1) + [1]) is None
    assert policy.arrange(plan, [f"new{i}" for i in range(N)], routes, [SESSIONS] * N) is None
    assert policy.arrange(replace(plan, by_history=False), keys, routes, [SESSIONS] * N) is None


def test_a_pin_hands_over_to_the_controller():
    policy = selector()
    run = rollout(policy)
    for k in range(1, 2 * EPOCH + 1):
        run.step(k)
    assert policy.hold_to(FREE, 2 * EPOCH) == (0, 0)
    assert policy.by_history
    assert policy.hold_to(Pins(4, 1, "pinned"), 2 * EPOCH) == (4, 1)
    assert not policy.plan(step=13).by_history
    assert "pinned" in run.step(2 * EPOCH + 1).decision.reason


def test_a_ranking_that_says_nothing_is_dealt_as_verl_does():
    """The prompts' names change their meaning after the first pass."""
    policy = selector()
    first = rollout(policy, LengthModel(prompt_share=0.8), seed=1)
    for k in range(1, EPOCH + 1):
        first.step(k)
    second, verl = (
        rollout(p, LengthModel(prompt_share=0.8), seed=2) for p in (policy, FixedPolicy(policy.context, 0, 0))
    )
    second.ledger = first.ledger
    names = second.workload.identity
    second.workload.identity = lambda prompts: (names(prompts) * 7 + 3) % (N * EPOCH)
    verl.ledger.drawn = verl.ledger.trained = first.ledger.trained
    mine = [second.step(k) for k in range(EPOCH + 1, 2 * EPOCH + 1)]
    theirs = [verl.step(k) for k in range(EPOCH + 1, 2 * EPOCH + 1)]
    assert all(s.observation.plan.by_history for s in mine[2:])
    assert seconds(mine[2:]) < 1.05 * seconds(theirs[2:])


def test_a_deferral_leaves_only_surprises_over_and_places_long_prompts_while_they_are_fresh():
    run = rollout(selector(q=2), MILD)
    steps = [run.step(k) for k in range(1, 4 * EPOCH + 1)]
    placed = [s for s in steps if s.observation.plan.by_history]
    assert placed
    fresh_in_tail = 0
    for step in placed[2:]:
        plan = step.observation.plan
        assert plan.counts.tail == plan.counts.left_over == 2
        assert sum(g.status == "cut" for g in step.observation.groups) == 2
        for group in step.observation.groups:
            pool = plan.tail_replicas if group.route in ("tail", "placed") else plan.bulk_replicas
            assert set(group.replicas) <= set(pool)
            assert group.route == "fresh" or group.status == "trained"
        fresh_in_tail += plan.counts.placed
    assert fresh_in_tail
    assert (placed[-1].decision.q, placed[-1].decision.m) == (2, run.policy._m)


def test_a_deferral_does_not_wait_for_surprises():
    none, some = (rollout(selector(q=q), CHANCE) for q in (0, 1))
    times = [seconds([run.step(k) for k in range(1, 4 * EPOCH + 1)][EPOCH + 2 :]) for run in (none, some)]
    assert times[1] < 0.9 * times[0]


@pytest.mark.parametrize("q", [0, 2])
def test_a_resume_decides_the_same(q):
    straight = rollout(selector("auto", q=q))
    expected = [straight.step(k) for k in range(1, 4 * EPOCH + 1)]
    run = rollout(selector("auto", q=q))
    for k in range(1, 4 * EPOCH + 1):
        found = run.step(k)
        ours = expected[k - 1]
        assert found.decision.reason == ours.decision.reason
        assert found.observation.generation_s == ours.observation.generation_s
        resumed = selector("auto", q=q)
        resumed.load_state_dict(json.loads(json.dumps(run.policy.state_dict())))
        resumed.forecast.load_arrays(run.policy.forecast.arrays())
        run.policy = resumed


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_groups=st.integers(2, 8),
    replicas=st.integers(2, 5),
    repeats=st.booleans(),
    q=st.integers(0, 1),
)
def test_every_prompt_is_trained_once_whoever_plans(seed, n_groups, replicas, repeats, q):
    """Transitions at random, epochs that end anywhere, prompts that repeat inside an epoch."""
    rng = random.Random(seed)
    policy = selector("auto", n_groups=n_groups, replicas=replicas, q=q)
    data_set = rng.randint(1, n_groups) if repeats else rng.randint(n_groups, 4 * n_groups)
    run = rollout(policy, seed=seed % 1000, data_set=data_set, n_groups=n_groups, replicas=replicas)
    trained = []
    for k in range(1, 13):
        if rng.random() < 0.4 and policy.controller.evidence.curve is not None and k > 2:
            policy.by_history = not policy.by_history
        step = run.step(k, last=k == 12)
        plan = step.observation.plan
        carried = plan.counts.tail + plan.counts.residual
        assert carried + plan.counts.placed + plan.counts.fresh == n_groups + plan.counts.left_over
        if plan.by_history:
            assert plan.counts.left_over == (0 if k == 12 else q)
        assert len(step.prompts) == n_groups
        trained += step.prompts.tolist()
    assert sorted(trained) == list(range(12 * n_groups))
    assert not run.ledger.carried


def test_slowness_is_the_measured_time_over_the_curve_s():
    run = rollout(FixedPolicy(PolicyContext(N, R), 0, 0))
    run.machine = Machine(R, EngineCosts(DENSE), noise=0.3, seed=5)
    step = run.step(1)
    assert slowness(step.observation.groups, DENSE) == pytest.approx(np.log(run.machine.slowness(1)), abs=1e-6)


@pytest.mark.parametrize("settings", [{"name": "cutoff"}, {"q": -1}, {"scenarios": 0}, {"control_every": 1}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match="must be"):
        SelectorConfig(**settings)


def test_a_forecast_is_kept_up_under_the_cutoff_as_well():
    policy = selector()
    run = rollout(policy)
    run.step(1)
    assert len(policy.forecast.history) >= N
    assert isinstance(policy.forecast, LengthForecast)


def test_a_run_that_selected_by_the_cutoff_goes_on_with_its_controller():
    plain = rollout(Controller(ControllerConfig(), N, R, curve=DENSE))
    for k in range(1, EPOCH + 1):
        plain.step(k)
    policy = selector()
    policy.load_state_dict(json.loads(json.dumps(plain.policy.state_dict())))
    assert (policy.controller.q, policy.controller.m) == (plain.policy.q, plain.policy.m)
    assert not policy.by_history


def test_draft_depths_that_change_while_history_plans_change_the_curve_it_plans_by():
    policy = selector(curve=None)
    run = rollout(policy)
    for k in range(1, 2 * EPOCH + 1):
        plan = policy.plan(step=k, carried=len(run.ledger.carried))
        run.policy, table = _Planned(plan, policy), "3" if k < 2 * EPOCH else "5"
        policy.observe(replace(run.step(k).observation, depths=(table,) * R))
    assert plan.by_history
    assert policy.controller.evidence.taus.bulk == "5"


class _Planned:
    """A policy whose observations are taken in by the test."""

    def __init__(self, plan, policy):
        self.context, self._plan, self.arrange = policy.context, plan, policy.arrange

    def plan(self, **_):
        return self._plan

    def observe(self, observation):
        return None
