import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, replica_times
from tailsieve_verl.core.history import Scenarios
from tailsieve_verl.core.outer import best_split, candidates, marginal_capacity
from tailsieve_verl.core.placement import UniformGroup, VerlDefault
from tailsieve_verl.core.pool_ends import pool_ends
from tailsieve_verl.core.predict import Predictor

from .closed_loop import DENSE


def scenarios(seed=0, pools=4, groups=64, n=8, spread=0.8):
    rng = np.random.default_rng(seed)
    level = rng.normal(7, spread, (pools, groups, 1))
    first, again = (np.rint(np.exp(level + rng.normal(0, 0.4, (pools, groups, n)))) for _ in range(2))
    return Scenarios(first, again)


def predictor(seed=0, replicas=8, groups=64, **options):
    return Predictor(scenarios(seed, groups=groups), DENSE, groups, replicas, **options)


@pytest.mark.parametrize(("placement", "granularity"), [(UniformGroup, "group"), (VerlDefault, "request")])
@pytest.mark.parametrize("replicas", [1, 3, 8])
@pytest.mark.parametrize("scale", [1.0, 1.0123456789])
def test_pools_end_as_the_cost_model_says(placement, granularity, replicas, scale):
    lengths = scenarios(pools=2, groups=13, n=5).first * scale
    finish, ends = pool_ends(lengths, replicas, granularity, DENSE)
    for pool in range(2):
        where = placement().place(lengths[pool], replicas)
        assert ends[pool] == pytest.approx(replica_times(lengths[pool], where, replicas, DENSE))
        assert finish[pool].max() == pytest.approx(ends[pool].max())
        lone = int(np.argmin(finish[pool]))
        assert finish[pool][lone] <= ends[pool][where[lone]].max()


def test_the_bulk_pool_is_predicted_as_it_runs():
    """F = N groups with a cut at N - q: the stragglers load the replicas until then."""
    model = predictor()
    finish, _ = pool_ends(model.scenarios.first, 5, "request", DENSE)
    assert model.bulk(6, 3) == pytest.approx(np.sort(finish, axis=1)[:, 64 - 6 - 1])


@given(st.integers(0, 50), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_tail_times_rise_and_bulk_times_fall_with_q(seed, m):
    model = predictor(seed, replicas=4, groups=16)
    tails = np.array([model.tail(q, m) for q in range(1, 9)])
    bulks = np.array([model.bulk(q, m) for q in range(1, 9)])
    assert (np.diff(tails, axis=0) >= -1e-9).all()
    assert (np.diff(bulks, axis=0) <= 1e-9).all()


@given(st.integers(0, 50), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_the_best_q_is_nearly_that_of_a_full_search(seed, m):
    model = predictor(seed, replicas=4, groups=16)
    everything = min(model.split(q, m).mean_s for q in range(1, 9))
    assert model.best_q(m).mean_s <= 1.05 * everything  # there may be several local minima


def test_most_tail_is_the_largest_q_that_meets_a_deadline():
    model = predictor()
    deadline = float(model.tail(5, 2).mean())
    assert model.most_tail(2, deadline) == 5
    assert model.most_tail(2, 0.0) == 0
    assert model.most_tail(2, 1e9) == 32


def test_slowness_scales_its_own_pool():
    plain, slow = predictor(), predictor(slow_tail=1.5)
    assert slow.tail(4, 2) == pytest.approx(1.5 * plain.tail(4, 2))
    assert slow.bulk(4, 2) == pytest.approx(plain.bulk(4, 2))


@pytest.mark.parametrize("split", [(0, 1), (64, 2), (4, 8), (4, 0)])
def test_impossible_splits_are_refused(split):
    with pytest.raises(ValueError, match="must be a split of 64 groups on 8"):
        predictor().split(*split)


def test_the_miniature_predicts_what_the_whole_would():
    """2048 groups on 64 replicas, from 256 of them: splits within 8 %, uniform, a maximum over all, within 12 %."""
    whole = scenarios(pools=4, groups=2048)
    full = Predictor(whole, DENSE, 2048, 64)
    small = Predictor(Scenarios(whole.first[:, ::8], whole.again[:, ::8]), DENSE, 2048, 64)
    assert small.uniform().mean_s == pytest.approx(full.uniform().mean_s, rel=0.12)
    for q, m in ((64, 16), (256, 24), (512, 40)):
        assert small.split(q, m).mean_s == pytest.approx(full.split(q, m).mean_s, rel=0.08), (q, m)


def test_candidates_lie_within_two_replicas_with_their_own_q_or_the_present_one():
    model = predictor()
    present = model.split(6, 4)
    found = [c for _, c in candidates(model, present, reoptimise=True, far=False)]
    assert [c.m for c in found] == [2, 3, 4, 5, 6, 0]
    assert all(c.feasible == (c.predicted_s <= present.mean_s) or c.m in (4, 0) for c in found)
    letter = [c for _, c in candidates(model, present, reoptimise=False, far=False)]
    assert {c.q for c in letter} == {6, 0}
    assert all(c.feasible == (c.gained >= c.lost) for c in letter if c.m not in (4, 0))


def test_the_letter_of_c2_deadlocks_at_balance_where_its_own_q_would_not():
    """At balance every neighbour with the same q can be worse, though with its own q it would be better."""
    deadlocks = 0
    for seed in range(6):
        model = Predictor(scenarios(seed, pools=12), DENSE, 64, 8)
        for m in range(1, 8):
            present = model.best_q(m)
            letter, own = (
                min(p.mean_s for p, c in candidates(model, present, reoptimise=reoptimise, far=False) if c.m)
                for reoptimise in (False, True)
            )
            deadlocks += letter == present.mean_s and own < 0.97 * present.mean_s
    assert deadlocks >= 3


def test_marginal_capacity_points_to_the_pool_that_is_short():
    model = predictor()
    few, many = model.best_q(1), model.best_q(7)
    m_tail, m_bulk = marginal_capacity(model, few.q, 1)
    assert m_tail > m_bulk > 0
    m_tail, m_bulk = marginal_capacity(model, many.q, 7)
    assert m_bulk is None or m_bulk > 0
    assert marginal_capacity(predictor(replicas=2), 4, 1) == (None, None)


def test_the_best_split_of_all_is_found_also_among_many_replicas():
    model = predictor(replicas=8)
    assert best_split(model).mean_s == min(model.best_q(m).mean_s for m in range(1, 8))
    large = Predictor(scenarios(groups=128), DENSE, 128, 40)
    assert best_split(large).mean_s <= 1.02 * min(large.best_q(m).mean_s for m in range(1, 40))
    assert best_split(predictor(replicas=1)) is None


@pytest.mark.parametrize("near", range(1, 8))
def test_where_the_search_starts_changes_nothing(near):
    fresh = predictor(seed=near)
    found = best_split(predictor(seed=near), near)
    assert (found.q, found.m) == (best_split(fresh).q, best_split(fresh).m)
    for m in range(7, 0, -1):
        assert fresh.best_q(m).q == predictor(seed=near).best_q(m).q


@given(st.integers(0, 50), st.integers(1, 3), st.floats(0.8, 1.2))
@settings(max_examples=25, deadline=None)
def test_an_m_is_dropped_only_if_every_q_is_slower(seed, m, factor):
    model = predictor(seed, replicas=4, groups=16)
    best = min(model.split(q, m).mean_s for q in range(1, 9))
    assert not model.slower(m, best)
    assert model.slower(m, best * factor) <= (factor < 1.0)
    assert model.slower(m, 0.5 * best)


def test_a_flat_curve_leaves_nothing_to_gain():
    flat = DecodeCurve([1, 64], [0.01, 0.0100001])
    model = Predictor(scenarios(), flat, 64, 4)
    assert model.tail(1, 1) == pytest.approx(model.tail(1, 3))  # concurrency costs nothing, replicas bring nothing
    assert model.split(4, 1).gain_over(model.split(4, 1))[0] == 0.0
