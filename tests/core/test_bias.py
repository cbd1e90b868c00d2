import numpy as np
import pytest

from tailsieve_verl.core.bias import length_bias, product_limit, tail_order
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.core.plan import GroupRecord, LaunchCounts, StepObservation, StepPlan


def test_without_censoring_it_is_the_empirical_distribution():
    support, mass = product_limit([3, 1, 1, 2], [True] * 4)
    assert support.tolist() == [1, 2, 3]
    assert np.allclose(mass, [0.5, 0.25, 0.25])


def test_a_worked_example_with_censoring():
    # At 1 one of four ends (survival 3/4); at 2 one is censored; at 3 one of two ends (3/8); the last is censored at 4.
    support, mass = product_limit([1, 2, 3, 4], [True, False, True, False])
    assert support.tolist() == [1, 2, 3, 4]
    assert np.allclose(mass, [1 / 4, 0, 3 / 8, 3 / 8])


def test_it_recovers_a_censored_distribution():
    rng = np.random.default_rng(0)
    true = rng.exponential(100, 20_000)
    limit = rng.uniform(50, 400, 20_000)
    support, mass = product_limit(np.minimum(true, limit), true <= limit)
    assert np.interp(0.5, np.cumsum(mass), support) == pytest.approx(np.median(true), rel=0.03)


def test_no_bias_where_everything_fresh_is_consumed():
    lengths = [5, 10, 20, 64]
    bias = length_bias(lengths, lengths, [True] * 4, max_tokens=64)
    assert (bias.mean, bias.p99, bias.truncated, bias.ks) == (0, 0, 0, 0)


def test_dropping_the_long_ones_shows():
    fresh = np.arange(1, 101)
    bias = length_bias(fresh[:90], fresh, [True] * 100, max_tokens=100)
    assert bias.mean == pytest.approx(45.5 / 50.5 - 1)
    assert bias.p99 < -0.05
    assert bias.truncated == pytest.approx(-0.01)
    assert bias.ks == pytest.approx(0.1)


def test_tail_order_prefers_unfinished_then_tokens():
    assert tail_order([1, 3, 3, 1], [90, 10, 20, 90]) == [2, 1, 0, 3]


def record(prompt, route, status, tokens, complete):
    n = len(tokens)
    return GroupRecord(prompt, "", route, status, (0,) * n, (0.0,) * n, (1.0,) * n, tokens, complete, 1.0)


def test_the_monitor_counts_consumed_and_fresh_apart():
    plan = StepPlan(1, 2, 2, 1, 1, LaunchCounts(1, 0, 2, 1))
    groups = (
        record(0, "tail", "trained", (9, 9), (True, True)),
        record(1, "fresh", "trained", (1, 2), (True, True)),
        record(2, "fresh", "cut", (3, 4), (True, False)),
        record(3, "fresh", "failed", (7, 7), (False, False)),
    )
    monitor = LengthMonitor()
    assert monitor.bias() is None
    monitor.add(StepObservation(plan, 1.0, 1.0, 1.0, 0.0, groups))
    state = monitor.state_dict()
    assert state == {"consumed": [9, 9, 1, 2], "fresh": [[1, True], [2, True], [3, True], [4, False]]}
    again = LengthMonitor()
    again.load_state_dict(state)
    assert again.bias() == monitor.bias()


@pytest.mark.parametrize(("lengths", "complete"), [([], []), ([1, 2], [True])])
def test_bad_input(lengths, complete):
    with pytest.raises(ValueError, match="shape"):
        product_limit(lengths, complete)
