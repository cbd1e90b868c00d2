"""Tail construction and tail statistics on examples worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailsieve_verl.core.tails import scale_tail, tail_auc, variance_shares


def test_scale_tail_by_hand():
    # 0, 10, ..., 100: median 50, P90 90. Ratio 3 maps 90 to 150, so s = 100 / 40 = 2.5.
    scaled = scale_tail(np.arange(0, 101, 10), 3)
    assert scaled.tolist() == [0, 10, 20, 30, 40, 50, 75, 100, 125, 150, 175]


@pytest.mark.parametrize(("ratio", "largest"), [(1.5, 3248.4), (6.0, 22043.9)])
def test_scale_tail_follows_the_formula_on_table_a3(ratio, largest):
    lengths = [100, 500, 900, 1000, 1100, 1160, 2000, 2500, 3000, 4115, 11800]  # P50 1160, P90 4115
    assert scale_tail(lengths, ratio).max() == pytest.approx(largest, abs=0.1)


@given(st.lists(st.floats(1, 1e5), min_size=3, max_size=50), st.floats(1.01, 20))
def test_scale_tail_properties(lengths, ratio):
    tokens = np.array(lengths)
    p50, p90 = np.percentile(tokens, [50, 90])
    assume(p90 > p50 * (1 + 1e-6))
    scaled = scale_tail(tokens, ratio)
    if tokens.size % 2:
        assert np.percentile(scaled, 50) == pytest.approx(p50)
    assert np.percentile(scaled, 90) == pytest.approx(ratio * p50)
    assert (scaled[tokens <= p50] == tokens[tokens <= p50]).all()
    order = np.argsort(tokens)
    assert (np.diff(scaled[order]) >= -1e-9).all()


def test_scale_tail_keeps_the_shape():
    assert scale_tail([[1, 2], [3, 10]], 4).shape == (2, 2)


@pytest.mark.parametrize(
    ("lengths", "ratio", "message"),
    [
        ([], 2, "lengths must not be empty"),
        ([1, -3], 2, "lengths must not be negative, got -3.0"),
        ([1, float("nan")], 2, "lengths must be finite, got nan"),
        ([1, 2, 3], 1, "ratio must be a finite number above 1, got 1"),
        ([1, 2, 3], float("nan"), "ratio must be a finite number above 1, got nan"),
        ([5, 5, 5], 2, "got P50 5.0 and P90 5.0"),
        ([0, 0, 9], 2, "got P50 0.0 and P90"),
    ],
)
def test_scale_tail_bad_input(lengths, ratio, message):
    with pytest.raises(ValueError, match=message):
        scale_tail(lengths, ratio)


def test_variance_shares_by_hand():
    # Cell means [[2, 4], [6, 12]], mean 6; prompt means 3, 9; checkpoint means 4, 8; repeats one off their cell.
    # Sums of squares: prompts 4 * (9 + 9) = 72, checkpoints 4 * (4 + 4) = 32, interaction 2 * 4 * 1 = 8, sampling 8.
    x = np.array([[[1, 3], [3, 5]], [[5, 7], [11, 13]]])
    shares = variance_shares(x)
    assert shares.prompt == pytest.approx(72 / 120)
    assert shares.checkpoint == pytest.approx(32 / 120)
    assert shares.interaction == pytest.approx(8 / 120)
    assert shares.sampling == pytest.approx(8 / 120)


@given(st.integers(0, 10_000))
def test_variance_shares_add_up(seed):
    shape = np.random.default_rng(seed).integers(1, 5, 3)
    x = np.random.default_rng(seed).lognormal(6, 1, shape)
    assume(x.size > 1)
    shares = variance_shares(x)
    parts = (shares.prompt, shares.checkpoint, shares.interaction, shares.sampling)
    assert sum(parts) == pytest.approx(1)
    assert min(parts) >= 0
    total = ((x - x.mean()) ** 2).sum()
    assert shares.sampling * total == pytest.approx(((x - x.mean(axis=2, keepdims=True)) ** 2).sum(), abs=1e-6 * total)


def test_variance_shares_extremes():
    prompts = np.arange(1, 5).reshape(4, 1, 1) * np.ones((1, 3, 2))
    assert variance_shares(prompts).prompt == pytest.approx(1)
    assert variance_shares(np.swapaxes(prompts, 0, 1)).checkpoint == pytest.approx(1)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((2, 2)), "x must have 3 axes"),
        (np.ones((2, 0, 2)), "x must not be empty"),
        (np.ones((2, 2, 2)), "x must vary, got 1.0 everywhere"),
        (np.full((1, 1, 2), np.nan), "x must be finite, got nan"),
        (-np.ones((1, 1, 2)), "x must not be negative, got -1.0"),
    ],
)
def test_variance_shares_bad_input(x, message):
    with pytest.raises(ValueError, match=message):
        variance_shares(x)


def test_tail_auc_by_hand():
    # Tail of half of five, rounded up: 9, 8, 7 (prompts 1, 3, 0); outside are prompts 2 and 4 with targets 5 and 2.
    # Pairs: 4 > 2; 5 = 5 (one half), 5 > 2; 9 > 5, 9 > 2. Against 5, the 4 loses: 4.5 of 6.
    assert tail_auc([7, 9, 1, 8, 2], [4, 5, 5, 9, 2], fraction=0.5) == pytest.approx(4.5 / 6)


def test_tail_auc_breaks_source_ties_by_smaller_index():
    assert tail_auc([3, 3, 3, 1], [1, 9, 9, 0], fraction=0.25) == pytest.approx(1 / 3)
    assert tail_auc([3, 3, 3, 1], [9, 1, 9, 0], fraction=0.25) == pytest.approx(2.5 / 3)


def test_tail_auc_tail_size_is_rounded_up_without_binary_noise():
    # 0.1 * 70 is 7.000000000000001; the tail is 7 prompts. 0.1 * 64 is 6.4: 7 prompts too (paper Appendix B).
    for prompts in (70, 64):
        source = np.arange(prompts, 0, -1)
        target = np.where(np.arange(prompts) < 7, 1.0, 0.0)
        assert tail_auc(source, target) == 1.0


@given(st.integers(2, 40), st.integers(0, 10_000), st.floats(0.05, 0.6))
def test_tail_auc_against_all_pairs(prompts, seed, fraction):
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, 6, prompts), rng.integers(0, 6, prompts)
    size = int(np.ceil(round(fraction * prompts, 9)))
    assume(size < prompts)
    ranked = sorted(range(prompts), key=lambda i: (-source[i], i))
    pairs = [(target[i], target[j]) for i in ranked[:size] for j in ranked[size:]]
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert tail_auc(source, target, fraction) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("source", "target", "fraction", "message"),
    [
        ([], [], 0.1, "source must not be empty"),
        ([1, 2], [1], 0.1, r"one score per prompt of source \(2\), got 1"),
        ([1, 2], [1, float("nan")], 0.1, "target must be finite, got nan"),
        ([1, 2], [1, 2], 0.0, r"fraction must be in \(0, 1\), got 0.0"),
        ([1, 2], [1, 2], 0.9, "leaves none outside the tail of 2"),
    ],
)
def test_tail_auc_bad_input(source, target, fraction, message):
    with pytest.raises(ValueError, match=message):
        tail_auc(source, target, fraction)
