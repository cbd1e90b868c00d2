"""A histogram as lengths: its quantiles, without chance."""

from __future__ import annotations

import numpy as np
import pytest

from tailsieve_verl.traces.histogram import sample_histogram


def test_by_hand():
    # Half of the mass on 1..2, a quarter on 10, a quarter on 20..23: 8 lengths.
    lengths = sample_histogram([1, 10, 20], [2, 10, 23], [0.5, 0.25, 0.25], 8)
    assert sorted(lengths) == [1, 1, 2, 2, 10, 10, 21, 23]


def test_the_same_each_time_and_not_in_order():
    first, second = (sample_histogram([1, 500], [100, 900], [1, 1], 1000) for _ in range(2))
    assert (first == second).all()
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.1


def test_empty_bins_give_nothing():
    lengths = sample_histogram([1, 5, 9], [4, 8, 12], [0, 1, 0], 100)
    assert (lengths.min(), lengths.max()) == (5, 8)


def test_quantiles_of_a_fine_histogram():
    tokens = np.arange(1, 2001)
    lengths = sample_histogram(tokens, tokens, 1 / tokens, 20_000)
    cdf = np.cumsum(1 / tokens) / np.sum(1 / tokens)
    for q in (0.1, 0.5, 0.9, 0.99):
        assert abs(np.quantile(lengths, q) - tokens[np.searchsorted(cdf, q)]) <= 1


@pytest.mark.parametrize(
    ("low", "high", "probability", "responses", "message"),
    [
        ([], [], [], 5, "needs low, high and probability"),
        ([1, 2], [2, 3], [1, 1], 5, "without overlap"),
        ([5], [4], [1], 5, "in increasing order"),
        ([1], [2], [0], 5, "not all 0"),
        ([1, 3], [2, 4], [1, -1], 5, "0 or more"),
        ([1], [2], [float("nan")], 5, "0 or more"),
        ([1], [2], [1], 0, "responses must be at least 1"),
    ],
)
def test_bad_input(low, high, probability, responses, message):
    with pytest.raises(ValueError, match=message):
        sample_histogram(low, high, probability, responses)
