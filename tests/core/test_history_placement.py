"""Contiguous blocks: each request once, by predicted length, and faster than dealing where lengths are predictable."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, finish_times, replica_times
from tailsieve_verl.core.history_placement import (
    dealt_deferred,
    dealt_seconds,
    lay_out,
    lay_out_deferred,
    verl_default,
)

CURVE = DecodeCurve([1, 8, 32, 128], [0.006, 0.007, 0.0115, 0.03])


def scenarios(rng, pools=8, groups=32, n=4, between=0.8, within=0.4):
    level = 6.0 + between * rng.standard_normal(groups)
    return np.exp(level[None, :, None] + within * rng.standard_normal((pools, groups, n)))


def work(drawn):
    """What a response of each group comes to; typical ones, not what one scenario has."""
    return np.median(drawn, axis=(0, 2))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), groups=st.integers(1, 24), n=st.integers(1, 5), replicas=st.integers(1, 9))
def test_every_request_has_one_replica_and_longer_ones_a_higher_rank(seed, groups, n, replicas):
    drawn = scenarios(np.random.default_rng(seed), 3, groups, n)
    layout = lay_out(drawn, work(drawn), replicas, CURVE)
    assert layout.replicas.shape == (groups, n)
    assert layout.replicas.min() >= 0
    assert layout.replicas.max() < replicas
    order = np.argsort(-work(drawn), kind="stable")
    assert (np.diff(layout.replicas[order].ravel()) <= 0).all()
    assert layout.mean_s == pytest.approx(dealt_seconds(drawn, layout.replicas, replicas, CURVE).mean())


def test_predicted_seconds_are_those_of_the_decode_model():
    drawn = scenarios(np.random.default_rng(0))
    where = lay_out(drawn, work(drawn), 4, CURVE).replicas
    expected = [replica_times(pool, where, 4, CURVE).max() for pool in drawn]
    assert dealt_seconds(drawn, where, 4, CURVE) == pytest.approx(expected)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_faster_than_dealing_on_lengths_of_the_same_kind(replicas):
    rng = np.random.default_rng(3)
    level = 6.0 + 0.8 * rng.standard_normal(64)
    drawn, came = (np.exp(level[None, :, None] + 0.4 * rng.standard_normal((24, 64, 8))) for _ in range(2))
    ours = dealt_seconds(came, lay_out(drawn, work(drawn), replicas, CURVE).replicas, replicas, CURVE).mean()
    dealt = dealt_seconds(came, verl_default(64, 8, replicas), replicas, CURVE).mean()
    assert ours < 0.96 * dealt


def test_prompts_that_look_alike_lose_little():
    rng = np.random.default_rng(4)
    drawn, came = scenarios(rng, 24, 64, 8, between=0.0), scenarios(rng, 24, 64, 8, between=0.0)
    ours = dealt_seconds(came, lay_out(drawn, work(drawn), 8, CURVE).replicas, 8, CURVE).mean()
    assert ours < 1.02 * dealt_seconds(came, verl_default(64, 8, 8), 8, CURVE).mean()


def test_a_very_long_prompt_shares_its_replicas_with_hardly_anything():
    drawn = np.full((4, 16, 2), 100.0)
    drawn[:, 5] = 2000.0
    layout = lay_out(drawn, work(drawn), 4, CURVE)
    assert 3 in layout.replicas[5]
    assert layout.mean_s < 1.02 * 2000 * CURVE(1)


def test_more_replicas_than_requests():
    where = lay_out(np.array([[[5.0], [9.0]]]), np.array([5.0, 9.0]), 6, CURVE).replicas
    assert sorted(where.ravel()) == [4, 5]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    groups=st.integers(4, 20),
    replicas=st.integers(2, 6),
    q=st.integers(1, 2),
    data=st.data(),
)
def test_with_a_deferral_every_request_is_in_its_pool(seed, groups, replicas, q, data):
    rng = np.random.default_rng(seed)
    drawn = scenarios(rng, 3, groups, 3)
    carried = np.arange(groups) < data.draw(st.integers(0, groups - q - 2))
    fixed = (np.arange(groups) == groups - 1) & data.draw(st.booleans())
    m = data.draw(st.integers(int(carried.any()), replicas - 1))
    layout = lay_out_deferred(drawn, work(drawn), replicas, CURVE, q, m, carried, fixed)
    tail = layout.tail
    assert tail[carried].all()
    assert not tail[fixed].any()
    assert (layout.replicas[tail] >= replicas - m).all()
    assert (layout.replicas[~tail] < replicas - m).all()
    assert layout.replicas.min() >= 0
    assert layout.replicas.max() < replicas
    assert (~tail & ~fixed).sum() > q  # there is something to leave over


def test_a_deferral_of_a_runaway_costs_nothing():
    rng = np.random.default_rng(7)
    drawn = scenarios(rng, 12, 32, 4, between=0.3, within=0.2)
    nothing = np.zeros(32, dtype=bool)
    plain = lay_out_deferred(drawn, work(drawn), 4, CURVE, 1, 0, nothing, nothing).mean_s
    for pool in drawn:
        pool[rng.integers(32), 0] = 50_000.0
    assert lay_out_deferred(drawn, work(drawn), 4, CURVE, 1, 0, nothing, nothing).mean_s < 1.2 * plain
    assert lay_out(drawn, work(drawn), 4, CURVE).mean_s > 10 * plain


@pytest.mark.parametrize(("q", "m"), [(1, 0), (2, 1), (1, 3)])
def test_dealt_pools_are_predicted_as_the_decode_model_says(q, m):
    drawn = scenarios(np.random.default_rng(5), 3, 12, 3)
    carried = np.arange(12) < (2 if m else 0)
    layout = dealt_deferred(drawn, 4, CURVE, q, m, carried)
    assert (layout.replicas[carried] >= 4 - m).all()
    assert (layout.replicas[~carried] < 4 - m).all()
    for pool, seconds in zip(drawn, layout.seconds, strict=True):
        ends = np.empty((12, 3))
        for r in range(4):
            mine = layout.replicas == r
            if mine.any():
                ends[mine] = finish_times(pool[mine], CURVE)
        complete = ends.max(axis=1)
        tail = complete[carried].max(initial=0.0)
        assert seconds == pytest.approx(max(tail, np.sort(complete[~carried])[-1 - q]))


def test_a_deferral_that_cannot_be_is_refused():
    drawn, nothing = np.ones((2, 4, 2)), np.zeros(4, dtype=bool)
    for replicas, q, m, carried in ((2, 4, 1, nothing), (2, 1, 2, nothing), (2, 1, 0, ~nothing), (2, 0, 1, nothing)):
        with pytest.raises(ValueError, match="over with"):
            lay_out_deferred(drawn, work(drawn), replicas, CURVE, q, m, carried, nothing)


def test_nothing_to_place_is_refused():
    with pytest.raises(ValueError, match="one response"):
        lay_out(np.zeros((2, 0, 4)), np.zeros(0), 2, CURVE)
