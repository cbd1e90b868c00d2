"""Length bias: hand-worked cases, and simulated runs whose true bias is known because the cut lengths are."""

import numpy as np
import pytest

from tailsieve_verl.core.bias import length_bias, tail_order
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.core.plan import GroupRecord, LaunchCounts, StepObservation, StepPlan


def test_no_bias_where_everything_fresh_is_consumed():
    lengths = [5, 10, 20, 64]
    bias = length_bias(lengths, lengths, max_tokens=64)
    assert (bias.mean, bias.p99, bias.truncated, bias.ks) == (0, 0, 0, 0)


def test_dropping_the_long_ones_shows():
    fresh = np.arange(1, 101)
    bias = length_bias(fresh[:90], fresh, max_tokens=100)
    assert bias.mean == pytest.approx(45.5 / 50.5 - 1)
    assert bias.p99 == pytest.approx(90 / 99 - 1)
    assert bias.truncated == pytest.approx(-0.01)
    assert bias.ks == pytest.approx(0.1)


def test_weights_count():
    bias = length_bias([1, 2], [1, 2, 9], [1.0, 0.5, 0.5])
    assert bias.reference_mean == pytest.approx((1 + 1 + 4.5) / 2)
    assert bias.ks == pytest.approx(0.25)


def test_tail_order_prefers_unfinished_then_tokens():
    assert tail_order([1, 3, 3, 1], [90, 10, 20, 90]) == [2, 1, 0, 3]


def record(prompt, route, status, tokens, complete=None):
    n = len(tokens)
    complete = (True,) * n if complete is None else complete
    return GroupRecord(prompt, "", route, status, (0,) * n, (0.0,) * n, (1.0,) * n, tuple(tokens), complete, 1.0)


def step(*groups):
    return StepObservation(StepPlan(1, 2, 2, 1, 1, LaunchCounts(1, 0, 2, 1)), 1.0, 1.0, 1.0, 0.0, groups)


def test_a_cut_response_is_completed_by_its_own_prompt_then_by_all_then_by_itself():
    monitor = LengthMonitor()
    assert monitor.bias() is None
    monitor.add(step(record(0, "fresh", "trained", [1, 2]), record(1, "fresh", "cut", [3, 4], (True, False))))
    assert monitor.state_dict()["reference"] == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
    monitor.add(step(record(1, "tail", "trained", [2, 10]), record(2, "fresh", "cut", [5, 12], (False, False))))
    assert monitor.state_dict()["reference"][3:] == [[10.0, 1.0]]  # its own regeneration, above 4
    monitor.add(step(record(2, "tail", "trained", [1, 1])))  # nothing above 5 or 12: all recent ones, or itself
    assert monitor.state_dict()["reference"][4:] == [[10.0, 1.0], [12.0, 1.0]]
    again = LengthMonitor()
    again.load_state_dict(monitor.state_dict())
    assert again.state_dict() == monitor.state_dict()
    assert again.bias() == monitor.bias()


def test_failed_groups_count_on_neither_side():
    monitor = LengthMonitor()
    monitor.add(step(record(3, "fresh", "failed", [7, 7], (False, False)), record(0, "fresh", "trained", [1, 1])))
    assert monitor.state_dict() == {"consumed": [1, 1], "reference": [[1.0, 1.0], [1.0, 1.0]], "open": []}


def test_steps_larger_than_the_window_are_sampled_by_prompt_on_both_sides():
    lengths = np.random.default_rng(0).integers(1, 100, (3, 400))
    monitor, whole = LengthMonitor(window=1000), LengthMonitor(window=100_000)
    for number, row in enumerate(lengths.tolist()):
        serial = range(400 * number, 400 * (number + 1))
        groups = [record(p, "fresh", "trained", [tokens] * 2) for p, tokens in zip(serial, row, strict=True)]
        for one in (monitor, whole):
            one.add(step(*groups))
            assert (one.bias().mean, one.bias().p99, one.bias().ks) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    kept = monitor.state_dict()["consumed"]
    assert kept == [tokens for tokens in lengths.ravel()[::4].tolist() for _ in range(2)]  # 800 responses, 4 steps
    assert len(whole.state_dict()["consumed"]) == 2400


N, GROUP, CAP = 64, 8, 16_000


def persistent(rng, level):
    return np.minimum(level * rng.lognormal(0, 0.35, GROUP), CAP)


def runaways(rng, level):
    return np.where(rng.random(GROUP) < 0.01, CAP, rng.lognormal(5, 0.3, GROUP))


def simulate(lengths_of, q, steps=60, seed=0):
    """Groups finish in order of their longest response; the cut stops all others at the length it had reached."""
    rng = np.random.default_rng(seed)
    monitor, carried, serial = LengthMonitor(max_tokens=CAP), [], 0
    consumed, true_reference = [], []
    for _ in range(steps):
        groups = []
        for prompt, level in carried:
            tokens = lengths_of(rng, level)
            groups.append(record(prompt, "tail", "trained", tokens.astype(int).tolist()))
            consumed.append(tokens)
        levels = rng.lognormal(7, 1.0, N - len(carried) + q)
        fresh = [lengths_of(rng, level) for level in levels]
        true_reference += fresh
        order = np.argsort([f.max() for f in fresh])
        reached = fresh[order[N - len(carried) - 1]].max()
        carried = []
        for i in order:
            tokens = np.minimum(fresh[i], reached)
            cut = fresh[i].max() > reached
            complete = tuple(bool(done) for done in fresh[i] <= reached)
            groups.append(record(serial, "fresh", "cut" if cut else "trained", tokens.astype(int).tolist(), complete))
            if cut:
                carried.append((serial, levels[i]))
            else:
                consumed.append(fresh[i])
            serial += 1
        monitor.add(step(*groups))
    window = monitor.state_dict()
    true = length_bias(np.concatenate(consumed), np.concatenate(true_reference), max_tokens=CAP)
    assert len(window["consumed"]) == min(steps * N * GROUP, 20_000)
    return monitor.bias(), true


@pytest.mark.parametrize("q", [2, 8, 16])
def test_on_persistent_loads_the_reported_bias_is_near_the_true_one_which_is_small(q):
    reported, true = simulate(persistent, q)
    assert abs(true.mean) < 0.03
    assert reported.mean == pytest.approx(true.mean, abs=0.05)
    assert reported.p99 == pytest.approx(true.p99, abs=0.12)


@pytest.mark.parametrize("q", [4, 8])
def test_chance_runaways_that_are_rolled_away_are_reported(q):
    """Not in full: what replaces a cut runaway is drawn from all lengths above the cut, some of them ordinary."""
    reported, true = simulate(runaways, q)
    assert true.mean < -0.08
    assert 1.1 * true.mean < reported.mean < 0.6 * true.mean
    assert 1.1 * true.truncated < reported.truncated < 0.6 * true.truncated


@pytest.mark.parametrize(("consumed", "reference", "weights"), [([], [1], None), ([1], [], None), ([1], [1], [1, 1])])
def test_bad_input(consumed, reference, weights):
    with pytest.raises(ValueError, match=r"empty|weights"):
        length_bias(consumed, reference, weights)
