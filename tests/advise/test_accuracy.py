"""Predicted from a dump against simulated from the truth: the same split, the true model's own second attempts."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from tailsieve_verl.advise.run import SKIP, Question, study_dump
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.rollout import Machine
from tailsieve_verl.simulate.study import Setup, simulate_run
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

from .dumps import drawn_fit

COSTS = EngineCosts(DENSE)


@dataclass(frozen=True)
class Truth:
    gain: float
    bias_mean: float


@cache
def simulated(model, n_groups, n, replicas, label, steps, seeds):
    setup = Setup(n_groups, steps, Machine(replicas, COSTS), lambda seed: SyntheticWorkload(model, n, seed=seed), SKIP)
    gains, biases = [], []
    for seed in range(seeds):
        now, ours = (simulate_run(setup, parse_policy(name), 900 + seed) for name in ("verl_default", label))
        gains.append(np.log(now.seconds[SKIP:].sum() / ours.seconds[SKIP:].sum()))
        biases.append(ours.bias.mean)
    return Truth(float(np.exp(np.mean(gains))), float(np.mean(biases)))


def inside(value, interval):
    return interval.low <= value <= interval.high


def test_gain_and_bias_are_within_their_intervals():
    model = LengthModel(prompt_share=0.65)
    fit = drawn_fit(model, steps=4, n_groups=48, n=4, seed=2)
    found = study_dump(fit, Question(4, COSTS, steps=20, seeds=2, halves=6)).findings
    label = "tailsieve" if found.q is None else f"tailsieve:q={found.q},m={found.m}"
    truth = simulated(model, 48, 4, 4, label, 24, 6)
    assert inside(truth.gain, found.gain)
    assert inside(truth.bias_mean, found.bias_mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"prompt_share": s} for s in (0.0, 0.3, 0.65, 0.9)]
    + [{"p50": 400, "p90": 600, "prompt_share": 0.0, "runaway": 0.01}, {"prompt_share": 0.55, "runaway": 0.01}],
)
def test_eight_dumps_of_a_load(options):
    """Intervals of 95 % hold the truth seven times of eight at least."""
    model = LengthModel(**options)
    hits, told = [], []
    for seed in range(8):
        fit = drawn_fit(model, steps=4, n_groups=64, n=8, seed=seed)
        found = study_dump(fit, Question(8, COSTS, steps=30, seeds=2, halves=12, seed=100 * seed)).findings
        label = "tailsieve" if found.q is None else f"tailsieve:q={found.q},m={found.m}"
        truth = simulated(model, 64, 8, 8, label, 30, 8)
        hits.append((inside(truth.gain, found.gain), inside(truth.bias_mean, found.bias_mean)))
        told.append((truth.gain, found.gain, truth.bias_mean, found.bias_mean))
    assert (np.sum(hits, axis=0) >= 7).all(), told
