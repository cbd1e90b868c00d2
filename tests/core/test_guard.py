"""The guard speaks up where a split is clearly worse than uniform, and bars it longer each time that is measured."""

import math

import numpy as np
import pytest

from tailsieve_verl.core.controller_config import ControllerConfig
from tailsieve_verl.core.guard import FIRST_EXCESS, Guard
from tailsieve_verl.core.predict import Prediction

UNIFORM = Prediction(0, 0, np.full(8, 10.0))


def slower_by(share):
    return Prediction(4, 2, UNIFORM.step * (1.0 + share))


@pytest.mark.parametrize(("known", "least"), [(True, 0.1), (False, FIRST_EXCESS)])
def test_a_predicted_excess_counts_beyond_the_threshold(known, least):
    guard = Guard(ControllerConfig(guard_excess=0.1))
    assert guard.by_prediction(slower_by(least - 0.02), UNIFORM, known=known) == ""
    assert "worse than uniform" in guard.by_prediction(slower_by(least + 0.02), UNIFORM, known=known)


def test_a_measured_excess_counts_after_three_steps_and_bars_for_longer_each_time():
    guard = Guard(ControllerConfig())
    barred = []
    for step in (10, 100):
        for _ in range(2):
            guard.note(math.log(1.3))
        assert guard.by_measurement(step, UNIFORM) == ""
        guard.note(math.log(1.3))
        assert "measured 30% worse" in guard.by_measurement(step, UNIFORM)
        barred.append(guard.barred_until - step)
        guard.restart()
        assert guard.by_measurement(step, UNIFORM) == ""
    assert barred == [20, 40]


def test_state_goes_through():
    guard, restored = Guard(ControllerConfig()), Guard(ControllerConfig())
    for _ in range(3):
        guard.note(math.log(1.3))
    restored.load_state_dict(guard.state_dict())
    assert restored.by_measurement(5, UNIFORM) == guard.by_measurement(5, UNIFORM) != ""
    assert restored.state_dict() == guard.state_dict()
