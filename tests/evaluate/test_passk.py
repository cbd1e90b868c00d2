import itertools
import math

import numpy as np
import pytest

from tailsieve_verl.evaluate.passk import pass_at_k, score


def test_it_is_the_share_of_subsets_with_a_right_sample():
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_closed_form_with_binomials():
    for n, c, k in ((32, 3, 10), (200, 7, 100), (64, 0, 10), (10, 10, 10), (1000, 1, 500)):
        assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)


def test_pass_at_1_is_the_mean():
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)


def test_it_is_unbiased():
    rng = np.random.default_rng(0)
    chance, k, n = 0.13, 4, 12
    right = rng.binomial(n, chance, size=20_000)
    estimates = np.array([pass_at_k(n, int(c), k) for c in right])
    assert estimates.mean() == pytest.approx(1 - (1 - chance) ** k, abs=4 * estimates.std() / math.sqrt(right.size))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def test_a_benchmark_is_the_mean_over_problems_with_its_standard_error():
    found = score([[True, False], [True, True], [False, False], [False, False]], 1)
    assert (found.value, found.problems, found.samples) == (pytest.approx(0.375), 4, 8)
    assert found.error == pytest.approx(np.std([0.5, 1, 0, 0], ddof=1) / 2)
    assert math.isnan(score([[True]], 1).error)
    with pytest.raises(ValueError, match="at least one problem"):
        score([], 1)
