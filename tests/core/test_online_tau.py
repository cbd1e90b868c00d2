import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, finish_times
from tailsieve_verl.core.online_tau import OnlineTau, nonnegative_quadratic
from tailsieve_verl.core.sessions import SessionTable

from .closed_loop import DENSE, EXPERTS

SIZES = np.arange(1, 65)


def table(curve, seed, *, slow=1.0, replicas=4, per_replica=64, cut=None):
    """A step: log-normal lengths on some replicas, cut at a share of the makespan if asked."""
    rng = np.random.default_rng(seed)
    tokens = np.rint(np.exp(rng.normal(6.5, 0.9, (replicas, per_replica))))
    ends = np.array([finish_times(row, curve) for row in tokens]) * slow
    if cut is not None:
        at = cut * ends.max()
        for lengths, times in zip(tokens, ends, strict=True):
            order = np.argsort(times)
            reached = np.interp(at, np.append(0, times[order]), np.append(0, lengths[order]))
            lengths[times > at] = np.floor(reached)
        ends = np.minimum(ends, at)
    where = np.repeat(np.arange(replicas), per_replica)
    return SessionTable(where, np.zeros(where.size), ends.ravel(), tokens.ravel())


def worst(tau, curve, sizes=SIZES):
    return float(np.abs(tau.curve(sizes) / curve(sizes) - 1.0).max())


@pytest.mark.parametrize("curve", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_within_five_percent_after_ten_steps(curve):
    tau = OnlineTau()
    for step in range(10):
        tau.observe(table(curve, step))
    assert worst(tau, curve) < 0.05
    assert tau.confidence > 0.95
    assert tau.changes == 0


@pytest.mark.parametrize(("before", "after"), [(DENSE, EXPERTS), (EXPERTS, DENSE)], ids=["flatter", "steeper"])
def test_right_again_within_ten_steps_after_a_change(before, after):
    tau = OnlineTau()
    for step in range(30):
        tau.observe(table(before if step < 20 else after, step))
    assert worst(tau, after) < 0.05
    assert tau.changes >= 1


def test_a_change_of_level_alone_is_noticed_too():
    tau = OnlineTau()
    for step in range(30):
        tau.observe(table(DENSE, step, slow=1.0 if step < 20 else 1.5))
    assert worst(tau, DecodeCurve(DENSE.batch_sizes, np.array(DENSE.seconds_per_token) * 1.5)) < 0.05


def test_a_noisy_clock_hardly_bends_the_curve():
    tau, rng = OnlineTau(), np.random.default_rng(3)
    for step in range(40):
        tau.observe(table(DENSE, step, slow=float(np.exp(rng.normal(0, 0.2)))))
    ratio = tau.curve(SIZES) / DENSE(SIZES)
    assert ratio.max() / ratio.min() < 1.05
    assert abs(np.log(ratio.mean())) < 0.15


def test_cut_requests_count_with_the_tokens_they_reached():
    tau = OnlineTau()
    for step in range(10):
        tau.observe(table(DENSE, step, cut=0.4))
    seen = np.arange(8, 65)
    assert worst(tau, DENSE, seen) < 0.05


def test_what_is_not_visited_is_not_forgotten():
    tau = OnlineTau()
    for step in range(10):
        tau.observe(table(DENSE, step))
    for step in range(60):
        tau.observe(table(DENSE, 100 + step, per_replica=4))
    assert worst(tau, DENSE) < 0.05


def test_slowness_is_told_by_replica_and_by_the_curve_as_it_was_before():
    tau = OnlineTau()
    assert not tau.observe(table(DENSE, 0)).ratio.size
    slow = tau.observe(table(DENSE, 1, slow=1.5))
    assert slow.replica.tolist() == [0, 1, 2, 3]
    assert slow.tokens.sum() == table(DENSE, 1).tokens.sum()
    assert slow.ratio == pytest.approx([1.5] * 4, rel=0.05)
    assert tau.observe(table(DENSE, 2, slow=1.5), DENSE).ratio == pytest.approx([1.5] * 4, rel=0.02)


def test_nothing_is_known_and_trusted_at_first():
    tau = OnlineTau()
    assert tau.curve is None
    assert not tau.trusted
    nothing = np.zeros(0)
    tau.observe(SessionTable(nothing.astype(int), nothing, nothing, nothing))
    tau.observe(SessionTable(np.array([0]), np.array([0.0]), np.array([0.0]), np.array([5.0])))
    assert tau.curve is None
    tau.observe(table(DENSE, 0))
    assert tau.trusted


def test_requests_that_fit_no_curve_are_not_trusted():
    tau, rng = OnlineTau(), np.random.default_rng(0)
    for _ in range(5):
        size = 64
        ends = rng.uniform(1, 100, size)
        tau.observe(SessionTable(np.zeros(size, dtype=int), np.zeros(size), ends, rng.uniform(1, 5000, size)))
    assert not tau.trusted


def test_the_state_is_plain_json_and_continues_identically():
    tau = OnlineTau()
    for step in range(12):
        copy = OnlineTau()
        copy.load_state_dict(json.loads(json.dumps(tau.state_dict())))
        for one in (tau, copy):
            one.observe(table(DENSE if step < 6 else EXPERTS, step))
        assert copy.state_dict() == tau.state_dict()
    with pytest.raises(ValueError, match="matrix must have the shape"):
        OnlineTau().load_state_dict({**tau.state_dict(), "matrix": [[1.0]]})


@given(st.integers(1, 12), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_quadratic_s_minimum_meets_its_conditions(size, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(size + 3, size))
    matrix, target = rows.T @ rows, rng.normal(size=size) * 3
    d = nonnegative_quadratic(matrix, target)
    slope = matrix @ d - target
    assert d.min() >= 0
    assert slope.min() > -1e-6
    assert abs(float(d @ slope)) < 1e-6


@given(
    st.lists(
        st.tuples(
            st.floats(0, 50, allow_subnormal=False), st.floats(0, 50, allow_subnormal=False), st.integers(0, 500)
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_observed_the_curve_is_valid(sessions):
    """Random starts, ends and tokens: `DecodeCurve` accepts what comes out, or nothing comes out."""
    start = np.array([min(a, b) for a, b, _ in sessions])
    end = np.array([max(a, b) for a, b, _ in sessions])
    tokens = np.array([t for *_, t in sessions], dtype=float)
    tau = OnlineTau()
    for _ in range(3):
        tau.observe(SessionTable(np.zeros(len(sessions), dtype=int), start, end, tokens))
        assert 0.0 <= tau.confidence <= 1.0
        if tau.curve is not None:
            assert np.isfinite(tau.curve(SIZES)).all()
