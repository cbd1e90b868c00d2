"""Runaways in closed form, against pools in which they are drawn."""

import numpy as np
import pytest

from tailsieve_verl.core.history import Scenarios, WorkHistory
from tailsieve_verl.core.policy import FixedPolicy
from tailsieve_verl.core.predict import Predictor
from tailsieve_verl.core.runaways import PoolTime, Runaways, cut_around, number_of_runaways

from .closed_loop import DENSE, LIMIT, LOADS, N, Rollout, context

R, RATE = 8, 0.001


def drawn(pools, rate, seed=0, groups=N, n=8):
    rng = np.random.default_rng(seed)
    level = rng.normal(6, 0.3, (pools, groups, 1))
    usual = np.rint(np.exp(level + rng.normal(0, 0.2, (2, pools, groups, n))))
    return Scenarios(*np.where(rng.random(usual.shape) < rate, LIMIT, usual))


@pytest.mark.parametrize("split", [(0, 0), (1, 1), (2, 1), (3, 1), (6, 2), (12, 3)])
def test_expected_times_are_those_of_very_many_pools(split):
    truth = Predictor(drawn(6000, RATE), DENSE, N, R).split(*split).mean_s
    usual = drawn(40, 0.0, seed=1)
    known = usual._replace(runaways=Runaways(np.full((40, N), RATE), LIMIT))
    assert Predictor(known, DENSE, N, R).split(*split).mean_s == pytest.approx(truth, rel=0.06)
    if split != (12, 3):  # where a sample of a usual size tells nothing
        assert Predictor(usual, DENSE, N, R).split(*split).mean_s < 0.95 * truth


def test_a_rate_of_zero_changes_nothing():
    usual = drawn(8, 0.0)
    none = usual._replace(runaways=Runaways(np.zeros((8, N)), LIMIT))
    one, other = Predictor(usual, DENSE, N, R), Predictor(none, DENSE, N, R)
    for split in ((0, 0), (1, 1), (6, 2)):
        assert one.split(*split).step == pytest.approx(other.split(*split).step)
    assert one.best_q(2).q == other.best_q(2).q


def test_tail_times_rise_and_bulk_times_fall_with_q():
    model = Predictor(drawn(8, 0.0)._replace(runaways=Runaways(np.full((8, N), 0.004), LIMIT)), DENSE, N, R)
    assert (np.diff([model.tail(q, 2) for q in range(1, 33)], axis=0) >= -1e-9).all()
    assert (np.diff([model.bulk(q, 2).mean() for q in range(1, 33)]) <= 1e-9).all()


def test_two_pools_by_hand():
    one = PoolTime(np.array([2.0]), np.array([10.0]), np.array([0.5]))
    other = PoolTime(np.array([3.0]), np.array([5.0]), np.array([0.1]))
    # neither 0.45 x 3, the first 0.45 x 10, the second 0.05 x 5, both 0.05 x 10
    assert one.both(other) == pytest.approx([0.45 * 3 + 0.45 * 10 + 0.05 * 5 + 0.05 * 10])
    assert one.expected == pytest.approx([6.0])


def test_runaways_take_places_of_the_cut_by_hand():
    assert number_of_runaways(0.5, 10)[:3] == pytest.approx(np.exp(-0.5) * np.array([1.0, 0.5, 0.125]))
    time, risk = cut_around(np.array([[9.0, 7.0, 6.0]]), np.array([0.6, 0.3, 0.1]))
    assert risk == pytest.approx([0.4, 0.1, 0.0])
    assert time[0] == pytest.approx([9.0, (0.6 * 7 + 0.3 * 9) / 0.9, 0.6 * 6 + 0.3 * 7 + 0.1 * 9])


@pytest.mark.parametrize("split", [(1, 1), (3, 1), (9, 2)])
def test_the_rate_is_learned_under_splits_that_cut_nearly_all_of_them(split):
    history, rollout, policy = WorkHistory(N), Rollout(LOADS["runaway"], DENSE), FixedPolicy(context(4), *split)
    for step in range(1, 101):
        history.observe(rollout.step(policy.plan(step=step, carried=len(rollout.carried))))
    found = history.scenarios(16, 101)
    if found.runaways is None:  # none ended within memory: how long they run is not known
        assert split == (1, 1)
        return
    assert 0.5 * RATE < found.runaways.rate.mean() < 2 * RATE
    assert found.runaways.tokens > 0.5 * LIMIT
    assert found.first.max() < 0.25 * LIMIT


def test_loads_whose_long_answers_belong_to_long_prompts_have_none():
    for load in ("weak", "real", "strong"):
        history, rollout, policy = WorkHistory(N), Rollout(LOADS[load], DENSE), FixedPolicy(context(8), 8, 4)
        for step in range(1, 41):
            history.observe(rollout.step(policy.plan(step=step, carried=len(rollout.carried))))
        assert history.scenarios(16, 41).runaways is None, load
