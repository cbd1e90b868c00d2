"""The decode cost model against independent reference code."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, finish_times, replica_time, replica_times

CURVES = {
    "concave": DecodeCurve([1, 2, 4, 8, 16], [5.5e-3, 6.2e-3, 7.2e-3, 9e-3, 11.5e-3]),
    "straight": DecodeCurve([1, 2], [6e-3, 6.4e-3]),
    "convex": DecodeCurve([1, 4, 8], [5e-3, 6e-3, 9e-3]),
    "flat": DecodeCurve([1], [0.01]),
    "dip": DecodeCurve([2, 3, 5, 9], [6e-3, 5.8e-3, 8e-3, 8e-3]),
}
curves = st.sampled_from(sorted(CURVES)).map(CURVES.__getitem__)
whole = st.lists(st.integers(0, 40), min_size=1, max_size=12)
real = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e4)), min_size=1, max_size=30)


def by_intervals(lengths, curve):
    """Section 2.1, first form: intervals with j active requests."""
    down = [*sorted(lengths, reverse=True), 0.0]
    return math.fsum(curve(j) * (down[j - 1] - down[j]) for j in range(1, len(down)))


def by_marginals(lengths, curve):
    """Section 2.1, second form: marginal cost of the j-th longest request."""
    down = sorted(lengths, reverse=True)
    return math.fsum(length * (curve(j) - curve(j - 1)) for j, length in enumerate(down, 1))


def by_positions(lengths, curve):
    """Appendix D, first form: token by token; whole lengths only."""
    return math.fsum(curve(sum(length >= x for length in lengths)) for x in range(1, max(lengths) + 1))


def by_shares(lengths, curve):
    """Appendix D, second form: every position shared evenly by its active requests; whole lengths only."""
    total = []
    for length in lengths:
        for x in range(1, length + 1):
            active = sum(other >= x for other in lengths)
            total.append(curve(active) / active)
    return math.fsum(total)


def token_by_token(lengths, curve, limit):
    """Serve whole lengths one token at a time, first come first served; finish times in input order."""
    waiting, left, finished, clock = list(range(len(lengths))), {}, [0.0] * len(lengths), 0.0
    while waiting or left:
        while waiting and len(left) < limit:
            i = waiting.pop(0)
            if lengths[i]:
                left[i] = lengths[i]
            else:
                finished[i] = clock
        clock += curve(len(left))
        for i in list(left):
            left[i] -= 1
            if left[i] == 0:
                finished[i] = clock
                del left[i]
    return finished


@given(whole, curves)
def test_the_four_forms_agree(lengths, curve):
    expected = replica_time(lengths, curve)
    for form in (by_intervals, by_marginals, by_positions, by_shares):
        assert form(lengths, curve) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(real, curves)
def test_real_lengths(lengths, curve):
    expected = replica_time(lengths, curve)
    for form in (by_intervals, by_marginals):
        assert form(lengths, curve) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(whole, curves, st.integers(1, 13))
def test_finish_times_match_a_token_by_token_simulation(lengths, curve, limit):
    expected = token_by_token(lengths, curve, limit)
    assert finish_times(lengths, curve, max_num_seqs=limit) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert replica_time(lengths, curve, max_num_seqs=limit) == pytest.approx(max(expected), rel=1e-9, abs=1e-12)


@given(real, curves)
def test_finish_times_keep_the_input_order(lengths, curve):
    times = finish_times(lengths, curve)
    order = np.argsort(lengths, kind="stable")
    assert (np.diff(times[order]) >= 0).all()
    assert times.max() == replica_time(lengths, curve)
    assert (finish_times(lengths, curve, max_num_seqs=len(lengths)) == times).all()


def test_first_come_first_served_by_hand():
    curve = DecodeCurve([1, 2], [1.0, 1.5])
    # Two slots: 4 and 2 run; at 3 s the 2 is done and 3 starts; the 4 has 2 tokens left (3 s more), then 3 runs alone.
    assert finish_times([4, 2, 3], curve, max_num_seqs=2).tolist() == [6.0, 3.0, 7.0]
    assert finish_times([4, 2, 3], curve, max_num_seqs=1).tolist() == [4.0, 6.0, 9.0]


@settings(max_examples=50)
@given(st.data(), curves, st.integers(1, 4), st.sampled_from([None, 1, 2, 5]))
def test_replica_times_match_one_replica_at_a_time(data, curve, replicas, limit):
    lengths = np.array(
        data.draw(st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 100)), min_size=6, max_size=6))
    ).reshape(3, 2)
    where = np.array(data.draw(st.lists(st.integers(0, replicas - 1), min_size=6, max_size=6))).reshape(3, 2)
    times = replica_times(lengths, where, replicas, curve, max_num_seqs=limit)
    for r in range(replicas):
        mine = lengths[where == r]
        expected = replica_time(mine, curve, max_num_seqs=limit) if mine.size else 0.0
        assert times[r] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_curve_between_and_beyond_knots():
    curve = DecodeCurve([2, 4, 8], [0.010, 0.014, 0.030])
    assert curve(0) == 0.0
    assert curve(0.5) == curve(1) == curve(2) == 0.010
    assert curve(3) == pytest.approx(0.012)
    assert curve(10) == pytest.approx(0.038)
    values = curve(np.array([0, 3, 10]))
    assert values == pytest.approx([0.0, 0.012, 0.038])
    assert curve.table(4) == pytest.approx([0.0, 0.010, 0.010, 0.012, 0.014])
    assert isinstance(curve(3), float)


def test_a_falling_last_segment_is_not_extrapolated():
    assert DecodeCurve([1, 2], [0.010, 0.009])(50) == 0.009


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_dict_round_trip(curve):
    again = DecodeCurve.from_dict(json.loads(json.dumps(curve.to_dict())))
    assert again == curve
    assert hash(again) == hash(curve)


def test_curves_are_frozen():
    with pytest.raises(AttributeError):
        CURVES["flat"].batch_sizes = (1.0,)


@pytest.mark.parametrize(
    ("knots", "values", "message"),
    [
        ([], [], "batch_sizes must not be empty"),
        ([1], [], "seconds_per_token must not be empty"),
        ([1, 2], [0.1], "one value per batch size.*got 1"),
        ([0, 2], [0.1, 0.2], "batch_sizes must be positive, got 0.0"),
        ([-1, 2], [0.1, 0.2], "batch_sizes must be positive, got -1.0"),
        ([1, 2], [0.1, -0.2], "seconds_per_token must be positive, got -0.2"),
        ([1, 2], [0.1, float("nan")], "seconds_per_token must be finite, got nan at index 1"),
        ([1, float("inf")], [0.1, 0.2], "batch_sizes must be finite, got inf at index 1"),
        ([1, 4, 2], [0.1, 0.2, 0.3], "got unsorted 2.0 after 4.0"),
        ([1, 4, 4], [0.1, 0.2, 0.3], "got duplicated 4.0 after 4.0"),
        ([1, 4, 5], [0.1, 0.2, 0.9], "seconds_per_token 0.9 at batch size 5.0 leaves 28%"),
        ("abc", [0.1], "batch_sizes must be numeric"),
    ],
)
def test_bad_curves(knots, values, message):
    with pytest.raises(ValueError, match=message):
        DecodeCurve(knots, values)


def test_bad_curve_data_and_batch():
    with pytest.raises(ValueError, match="lacks 'seconds_per_token'"):
        DecodeCurve.from_dict({"batch_sizes": [1]})
    for bad in (-1, float("nan"), np.array([1.0, -1.0])):
        with pytest.raises(ValueError, match="batch must be finite and not negative"):
            CURVES["flat"](bad)


@pytest.mark.parametrize("function", [replica_time, finish_times])
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "lengths must not be empty"),
        ([1, -2], "lengths must not be negative, got -2.0 at index 1"),
        ([float("nan")], "lengths must be finite, got nan at index 0"),
        ([[1, 2]], "lengths must have 1 axes"),
    ],
)
def test_bad_lengths(function, lengths, message):
    with pytest.raises(ValueError, match=message):
        function(lengths, CURVES["flat"])


def test_bad_limits_and_assignments():
    curve = CURVES["flat"]
    for limit in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_num_seqs must be a whole number at least 1"):
            replica_time([1, 2], curve, max_num_seqs=limit)
    with pytest.raises(ValueError, match="assignment must have the shape"):
        replica_times([1, 2], [0], 1, curve)
    with pytest.raises(ValueError, match=r"whole numbers in \[0, 2\), got 0..2"):
        replica_times([1, 2], [0, 2], 2, curve)
    with pytest.raises(ValueError, match="replicas must be a whole number at least 1, got 0"):
        replica_times([1, 2], [0, 0], 0, curve)
