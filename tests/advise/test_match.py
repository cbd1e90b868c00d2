"""Simulated against measured step times."""

from dataclasses import replace

import numpy as np
import pytest

from tailsieve_verl.advise.fit import WorkloadFit
from tailsieve_verl.advise.match import match_steps, scaled, simulated_s
from tailsieve_verl.advise.steplog import GENERATION, STEP, StepLog
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.traces.synthetic import LengthModel

from .dumps import drawn_fit

COSTS = EngineCosts(DecodeCurve([1, 8, 64], [0.01, 0.012, 0.03]), context_s=1e-8, prefill_s=1e-5)


def log_of(fit, costs, replicas, now, factor=None, share=0.5):
    factor = factor or {}
    seconds = {s: simulated_s(fit, s, costs, replicas, now) * factor.get(s, 1.0) for s in np.unique(fit.step).tolist()}
    return StepLog("run.log", {s: {GENERATION: t, STEP: t / share} for s, t in seconds.items()})


def test_a_recorded_step_takes_as_long_as_its_slowest_replica():
    fit = WorkloadFit(np.array([[10, 20], [30, 40]]), np.arange(2), np.ones(2, int), np.zeros(2, int), 2, None)
    costs = EngineCosts(DecodeCurve([1, 2], [1.0, 1.5]))
    assert simulated_s(fit, 1, costs, 2, "verl_default") == pytest.approx(20 * 1.5 + 20)  # 20 and 40 share one
    assert simulated_s(fit, 1, costs, 2, "uniform_group") == pytest.approx(30 * 1.5 + 10)


@pytest.mark.parametrize("now", ["verl_default", "uniform_group"])
def test_a_machine_that_is_slower_by_a_factor_matches(now):
    fit = drawn_fit(LengthModel(), steps=6)
    fit = replace(fit, lengths=fit.lengths * (1 + fit.step[:, None]))  # answers grow
    match = match_steps(fit, log_of(fit, scaled(COSTS, 1.3), 4, now), COSTS, 4, now)
    assert match.scale == pytest.approx(1.3)
    assert match.error == pytest.approx(0, abs=1e-9)
    assert match.generation_share == pytest.approx(0.5)
    assert (match.steps, match.good) == (5, True)  # the first step warms up


def test_the_first_step_s_start_up_does_not_count():
    fit = drawn_fit(LengthModel(), steps=4)
    match = match_steps(fit, log_of(fit, COSTS, 4, "verl_default", {1: 7.0}), COSTS, 4, "verl_default")
    assert match.scale == pytest.approx(1)
    assert match.worst == pytest.approx(0, abs=1e-9)


def test_times_that_do_not_follow_the_lengths_do_not_match():
    fit = drawn_fit(LengthModel(), steps=6)
    log = log_of(fit, COSTS, 4, "verl_default", {2: 1.0, 3: 2.0, 4: 0.5, 5: 3.0, 6: 0.7})
    match = match_steps(fit, log, COSTS, 4, "verl_default")
    assert not match.good
    assert match.worst > 0.4


def test_steps_that_are_alike_tell_nothing_of_the_curve():
    fit = WorkloadFit(np.full((8, 4), 50), np.arange(8), np.repeat([1, 2, 3, 4], 2), np.zeros(8, int), 2, 50)
    match = match_steps(fit, log_of(fit, COSTS, 2, "verl_default"), COSTS, 2, "verl_default")
    assert (match.good, match.telling) == (True, False)


def test_a_log_of_other_steps_is_refused():
    fit = drawn_fit(LengthModel(), steps=2)
    with pytest.raises(UserError, match="none of the dump's steps"):
        match_steps(fit, StepLog("run.log", {9: {GENERATION: 1.0}}), COSTS, 4, "verl_default")
