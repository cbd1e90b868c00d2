"""Figures of a step: totals, bias once there is one, and a monitor that fails costs its figures alone."""

import pytest

from tailsieve_verl.core.ledger import Ledger
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.integration.figures import step_figures, trained_figures

from ..records.steps import decision, observation


class BrokenMonitor(LengthMonitor):
    def add(self, observation):
        raise ArithmeticError("no quantile")


def test_totals_and_bias_stand_beside_the_step_s_own():
    found = step_figures(observation(), decision(), Ledger(max_retries=1), LengthMonitor())
    assert (found["trained_total"], found["dropped_total"], found["carried_next"]) == (0, 0, 0)
    assert found["generation_s"] == 3.1
    assert {"bias/mean", "bias/p99", "bias/truncated", "bias/ks"} <= set(found)


def test_a_bias_that_cannot_be_had_is_left_out(caplog):
    found = step_figures(observation(), decision(), Ledger(max_retries=1), BrokenMonitor())
    assert not any(name.startswith("bias/") for name in found)
    assert "no length bias for step 1: no quantile" in caplog.text


def test_reward_and_length_are_verl_s_if_it_has_them():
    found = trained_figures({"overhead_s": 0.5}, {"critic/rewards/mean": 0.25}, 10.0)
    assert found == {"overhead_s": 0.5, "step_s": 10.0, "overhead_share": pytest.approx(0.05), "reward": 0.25}
