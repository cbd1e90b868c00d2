"""The regression of observed on predicted levels finds offset, slope and drift, and says what it leaves."""

import numpy as np
import pytest

from tailsieve_verl.core.level_regression import LevelRegression, features_of

BETWEEN = 0.5


def learned(offset=0.0, slope=0.0, drift=0.0, noise=0.0, steps=40, groups=64):
    rng, regression = np.random.default_rng(0), LevelRegression()
    for _ in range(steps):
        features = features_of(BETWEEN * rng.standard_normal(groups), rng.integers(1, 200, groups))
        missed = features @ [offset, slope, drift] + noise * rng.standard_normal(groups)
        regression.learn(features, missed, np.ones(groups, bool), 0.0, BETWEEN**2)
    return regression


def test_nothing_seen_corrects_nothing():
    regression = LevelRegression()
    assert (regression.coefficients(BETWEEN**2) == 0.0).all()
    assert regression.error == 0.0


@pytest.mark.parametrize("truth", [(0.3, 0.0, 0.0), (0.0, -0.5, 0.0), (0.0, 0.0, 0.2)])
def test_what_levels_miss_is_found(truth):
    assert learned(*truth).coefficients(BETWEEN**2) == pytest.approx(truth, abs=0.05)


def test_what_is_left_is_the_error():
    assert learned(offset=0.3, noise=0.25).error == pytest.approx(0.25, rel=0.1)
