import math

import numpy as np
import pytest

from tailsieve_verl.compare.speedup import paired_speedup, unpaired_speedup


def test_both_estimates_by_hand():
    found = paired_speedup([1, 2], [10.0, 30.0], [5.0, 30.0])
    assert found.of_means.value == pytest.approx(40 / 35)
    assert found.paired.value == pytest.approx(math.sqrt(2))
    assert (found.baseline_s, found.run_s, found.faster) == (20.0, 17.5, 0.5)
    assert (found.steps, found.first, found.last) == (2, 1, 2)


def test_the_paper_s_figure():
    assert paired_speedup([1], [119.34], [82.49]).of_means.value == pytest.approx(1.45, abs=0.005)


def test_equal_ratios_have_no_spread_and_one_step_no_interval():
    found = paired_speedup(range(5), [2.0, 4, 6, 8, 10], [1.0, 2, 3, 4, 5])
    for interval in (found.of_means, found.paired):
        assert (interval.low, interval.value, interval.high) == pytest.approx((2, 2, 2))
    assert math.isnan(paired_speedup([1], [2.0], [1.0]).paired.low)


def test_pairs_stay_together():
    """Steps differ tenfold and runs by 10 %: pairs know it to a few percent, means alone do not."""
    rng = np.random.default_rng(1)
    baseline = rng.uniform(10, 100, size=30)
    run = baseline / 1.1 * rng.lognormal(0, 0.02, size=30)
    steps = list(range(1, 31))
    together, alone = paired_speedup(steps, baseline, run), unpaired_speedup(steps, baseline, run)
    assert together.of_means.high - together.of_means.low < 0.04
    assert alone.of_means.high - alone.of_means.low > 0.3
    assert (alone.paired, alone.faster) == (None, None)
    assert alone.of_means.value == pytest.approx(together.of_means.value)


def test_intervals_cover():
    """A known ratio of 1.2 lies in about 95 % of the intervals."""
    rng = np.random.default_rng(2)
    inside = np.zeros(2)
    for _ in range(120):
        baseline = rng.uniform(50, 150, size=25)
        run = baseline / 1.2 * rng.lognormal(0, 0.15, size=25)
        found = paired_speedup(range(25), baseline, run)
        of_means = 1.2 / math.exp(0.15**2 / 2)
        inside += (
            found.of_means.low <= of_means <= found.of_means.high,
            found.paired.low <= 1.2 <= found.paired.high,
        )
    assert np.all(inside / 120 >= 0.87)


@pytest.mark.parametrize(
    ("steps", "a", "b"), [([], [], []), ([1], [0.0], [1.0]), ([1], [1.0], [math.nan]), ([1], [1.0, 2.0], [1.0])]
)
def test_times_that_make_no_sense_are_refused(steps, a, b):
    with pytest.raises(ValueError, match="times"):
        paired_speedup(steps, a, b)
