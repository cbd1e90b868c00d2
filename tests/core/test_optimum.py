"""The exact optimum against brute force, and the paper's statement on best-k isolation (A.4)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core import optimum
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import DecodeCurve, replica_time, replica_times
from tailsieve_verl.core.optimum import best_k_isolation, optimal_split

CURVES = {
    "concave": DecodeCurve([1, 2, 3, 5, 8, 12], [1.0, 1.6, 2.0, 2.4, 2.6, 2.7]),
    "convex": DecodeCurve([1, 3, 6, 12], [1.0, 1.1, 1.6, 3.2]),
    "flat": DecodeCurve([1], [0.01]),
    "proportional": DecodeCurve([1, 2], [0.5, 1.0]),
    "straight": DecodeCurve([1, 2], [1.0, 1.05]),
    "knots": DecodeCurve([1, 4, 5, 12], [1.0, 1.1, 2.0, 2.1]),
    "dip": DecodeCurve([1, 2, 4, 8], [1.0, 1.4, 1.2, 1.9]),
}
curves = st.sampled_from(sorted(CURVES)).map(CURVES.__getitem__)
lengths_of = st.one_of(
    st.lists(st.integers(0, 30), min_size=1, max_size=9),
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e4)), min_size=1, max_size=9),
)

# Table A.3, real workload: a log-normal with its P50 and P90 (1.2816 sigma up), cut at its maximum.
MEDIAN, P90, CAP = 1160.0, 4115.0, 11800.0
SLOPES = {
    "mixture of experts": DecodeCurve(
        [1, 2, 4, 8, 16, 32, 64, 128], [5.5e-3, 6.2e-3, 7.2e-3, 9e-3, 11.5e-3, 14e-3, 17e-3, 21e-3]
    ),
    "dense, flat": DecodeCurve([1, 128], [6e-3, 18.7e-3]),
    "dense, steep": DecodeCurve([1, 128], [6e-3, 107.6e-3]),
}


def brute_force(lengths, curve, replicas=2):
    """The least makespan over all assignments, straight from the definition."""
    tau = [curve(b) for b in range(len(lengths) + 1)]
    order = sorted(lengths, reverse=True)
    best = float("inf")
    for lanes in itertools.product(range(replicas), repeat=len(order)):
        times, counts = [0.0] * replicas, [0] * replicas
        for length, lane in zip(order, lanes, strict=True):
            counts[lane] += 1
            times[lane] += length * (tau[counts[lane]] - tau[counts[lane] - 1])
        best = min(best, max(times))
    return best


def rollout(seed, size=100):
    sigma = np.log(P90 / MEDIAN) / 1.2815515655
    return np.minimum(np.rint(MEDIAN * np.exp(sigma * np.random.default_rng(seed).standard_normal(size))), CAP)


@settings(max_examples=150, deadline=None)
@given(lengths_of, curves)
def test_equals_brute_force(lengths, curve):
    result = optimal_split(lengths, curve)
    assert result.makespan == pytest.approx(brute_force(lengths, curve), rel=1e-9, abs=1e-12)
    assert result.proven


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("seed", range(2))
def test_equals_brute_force_at_twelve(curve, seed):
    lengths = np.rint(np.random.default_rng(seed).lognormal(3, 1, 12))
    every = np.array(list(itertools.product(range(2), repeat=12)))
    lanes = every + 2 * np.arange(len(every))[:, None]
    times = replica_times(np.tile(lengths, (len(every), 1)), lanes, 2 * len(every), curve)
    assert optimal_split(lengths, curve).makespan == pytest.approx(times.reshape(-1, 2).max(axis=1).min(), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e4)), min_size=1, max_size=40), curves)
def test_order_of_policies_and_assignment(lengths, curve):
    result = optimal_split(lengths, curve)
    k, isolated = best_k_isolation(lengths, curve)
    slack = 1e-9 * max(isolated, 1e-9)
    assert result.makespan <= isolated + slack
    assert isolated <= replica_time(lengths, curve) + slack
    assert result.lower_bound <= result.makespan
    assert makespan_lower_bound(lengths, 2, curve) <= result.makespan + slack
    times = replica_times(lengths, np.array(result.assignment), 2, curve)
    assert times.max() == pytest.approx(result.makespan, rel=1e-9, abs=1e-12)
    assert result.assignment[int(np.argmax(lengths))] == 1
    down = np.sort(lengths)[::-1]
    assert max(replica_time(part, curve) for part in (down[:k], down[k:]) if part.size) == pytest.approx(
        isolated, rel=1e-9, abs=1e-12
    )


def test_best_k_tries_every_k():
    lengths, curve = [9, 7, 4, 4, 2], CURVES["straight"]
    options = [max(replica_time(lengths[:k], curve) if k else 0.0, replica_time(lengths[k:], curve)) for k in range(5)]
    k, makespan = best_k_isolation(lengths[::-1], curve)
    assert (k, makespan) == (int(np.argmin(options)), pytest.approx(min(options)))


def test_narrow_passes_still_give_the_exact_optimum(monkeypatch):
    lengths, curve = rollout(3, 40), SLOPES["dense, steep"]
    expected = optimal_split(lengths, curve).makespan
    monkeypatch.setattr(optimum, "PASS_WIDTHS", (0,))
    assert optimal_split(lengths, curve).makespan == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(optimum, "PASS_WIDTHS", (2, 4, 0))
    assert optimal_split(lengths, curve).makespan == pytest.approx(expected, rel=1e-9)


def test_giving_up_is_said():
    lengths, curve = rollout(3, 60), SLOPES["dense, steep"]
    exact = optimal_split(lengths, curve)
    stopped = optimal_split(lengths, curve, max_states=50)
    assert exact.proven
    assert not stopped.proven
    assert stopped.lower_bound <= exact.makespan <= stopped.makespan


@pytest.mark.parametrize("lengths", [[5], [0, 0, 0], [7, 7, 7, 7], [0, 3]])
def test_small_and_degenerate(lengths):
    for curve in CURVES.values():
        assert optimal_split(lengths, curve).makespan == pytest.approx(brute_force(lengths, curve), abs=1e-12)


def best_k_gaps(curve, groups):
    gaps = []
    for seed in range(groups):
        best = optimal_split(rollout(seed), curve)
        assert best.proven
        gaps.append(best_k_isolation(rollout(seed), curve)[1] / best.makespan - 1)
    return np.array(gaps)


@pytest.mark.parametrize("curve", SLOPES.values(), ids=SLOPES)
@pytest.mark.parametrize("groups", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_best_k_within_four_percent(curve, groups):
    """Paper A.4: within 4 % of the optimum on all 100 groups of 100, and within 1 % on 72 of them."""
    gaps = best_k_gaps(curve, groups)
    print(f"within 1 % on {np.mean(gaps <= 0.01):.0%} of {groups}, worst {gaps.max():.2%}")
    assert gaps.min() >= -1e-9
    assert gaps.max() <= 0.04


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "lengths must not be empty"),
        ([3, -1], "lengths must not be negative, got -1.0"),
        ([float("nan"), 2], "lengths must be finite, got nan"),
    ],
)
def test_bad_lengths(lengths, message):
    for function in (optimal_split, best_k_isolation):
        with pytest.raises(ValueError, match=message):
            function(lengths, CURVES["flat"])
    with pytest.raises(ValueError, match="max_states must be a whole number at least 1, got 0"):
        optimal_split([1], CURVES["flat"], max_states=0)
