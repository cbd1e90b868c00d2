"""Lower bounds of the makespan: below every assignment, for any number of replicas and any curve."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core import bounds
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import DecodeCurve, replica_time, replica_times


@st.composite
def any_curve(draw):
    """Curves of any shape that DecodeCurve accepts: concave, convex, with jumps and with dips."""
    knots = sorted(draw(st.sets(st.integers(1, 10), min_size=1, max_size=5)))
    values = []
    for i, knot in enumerate(knots):  # aggregate throughput between half and all of its best, or above it
        best = max((b / v for b, v in zip(knots[:i], values, strict=True)), default=1.0)
        values.append(knot / (best * draw(st.floats(0.51, 3.0))))
    return DecodeCurve(knots, values)


def least_makespan(lengths, replicas, curve, limit=None):
    """Brute force over all assignments."""
    n = len(lengths)
    every = np.array(list(itertools.product(range(replicas), repeat=n)))
    lanes = every + replicas * np.arange(len(every))[:, None]
    total = replicas * len(every)
    times = replica_times(np.tile(lengths, (len(every), 1)), lanes, total, curve, max_num_seqs=limit)
    return times.reshape(-1, replicas).max(axis=1).min()


#: Whole and real; none so short that a product with seconds per token loses its digits.
some_lengths = st.lists(st.one_of(st.integers(0, 20), st.floats(1e-3, 1e3)), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(some_lengths, st.integers(1, 3), any_curve())
def test_never_above_the_optimum(lengths, replicas, curve):
    best = least_makespan(lengths, replicas, curve)
    assert 0 <= makespan_lower_bound(lengths, replicas, curve) <= best * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(some_lengths, st.integers(1, 3), any_curve())
def test_the_long_form_is_never_above_the_optimum(lengths, replicas, curve):
    best = least_makespan(lengths, replicas, curve)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "HOSTS_BUDGET", 0)
        patch.setattr(bounds, "PIGEONHOLE_DENSE", 2)
        assert 0 <= makespan_lower_bound(lengths, replicas, curve) <= best * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 2), any_curve(), st.integers(1, 5))
def test_never_above_the_optimum_with_an_admission_limit(lengths, replicas, curve, limit):
    best = least_makespan(lengths, replicas, curve, limit)
    assert makespan_lower_bound(lengths, replicas, curve, max_num_seqs=limit) <= best * (1 + 1e-9)


@given(some_lengths, any_curve())
def test_one_replica_is_exact_on_rising_curves(lengths, curve):
    rising = DecodeCurve(curve.batch_sizes, np.maximum.accumulate(curve.seconds_per_token))
    expected = replica_time(lengths, rising)
    assert makespan_lower_bound(lengths, 1, rising) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_contains_the_simple_bounds():
    rng = np.random.default_rng(0)
    curve = DecodeCurve([1, 2, 8, 64], [1.0, 1.2, 1.5, 4.0])
    for size, replicas in ((30, 2), (64, 4), (100, 8)):
        lengths = np.rint(rng.lognormal(5, 1, size))
        bound = makespan_lower_bound(lengths, replicas, curve)
        batches = np.arange(1, size + 1)
        assert bound >= lengths.max() * curve(1)
        assert bound >= lengths.sum() / replicas * (curve(batches) / batches).min() * (1 - 1e-9)
        assert bound >= replica_time(lengths, curve) / replicas * (1 - 1e-9)  # the curve is subadditive


def test_pigeonhole_by_hand():
    # Three equal requests on two replicas: two of them share one.
    curve = DecodeCurve([1, 2], [1.0, 1.5])
    assert makespan_lower_bound([10, 10, 10], 2, curve) == pytest.approx(15.0)


def test_more_replicas_than_requests():
    curve = DecodeCurve([1, 2], [1.0, 1.5])
    assert makespan_lower_bound([10, 4], 5, curve) == pytest.approx(10.0)


def test_long_inputs():
    lengths = np.random.default_rng(0).lognormal(7, 1, 20_000)
    curve = DecodeCurve([1, 64, 512], [5e-3, 15e-3, 70e-3])
    balanced = replica_times(lengths, np.arange(lengths.size) % 8, 8, curve).max()
    assert 0.65 * balanced <= makespan_lower_bound(lengths, 8, curve) <= balanced


def test_bad_input():
    curve = DecodeCurve([1], [1.0])
    for lengths, replicas, message in (
        ([], 2, "lengths must not be empty"),
        ([-1], 2, "lengths must not be negative, got -1.0"),
        ([float("nan")], 2, "lengths must be finite, got nan"),
        ([1], 0, "replicas must be a whole number at least 1, got 0"),
        ([1], 1.5, "replicas must be a whole number at least 1, got 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            makespan_lower_bound(lengths, replicas, curve)
    with pytest.raises(ValueError, match="max_num_seqs must be a whole number at least 1, got 0"):
        makespan_lower_bound([1], 1, curve, max_num_seqs=0)
