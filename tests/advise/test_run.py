"""From lengths to findings: the three real runs of examples/advise, and loads whose truth is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tailsieve_verl.advise.advice import decide
from tailsieve_verl.advise.dump import read_dump
from tailsieve_verl.advise.fit import fit_workload
from tailsieve_verl.advise.run import Question, best_split, study_dump, ticks
from tailsieve_verl.advise.steplog import GENERATION, STEP, StepLog
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine
from tailsieve_verl.traces.synthetic import LengthModel

from .dumps import drawn_fit

DATA = Path(__file__).parent / "data"
COSTS = EngineCosts(DENSE)
ASK = Question(8, COSTS, steps=30, seeds=2, halves=12)


@pytest.mark.parametrize(
    ("name", "steps", "halves", "verdict", "reason"),
    [("persistent", 8, 12, "use", "pays"), ("flat", 4, 3, "leave", "flat"), ("chance", 4, 5, "leave", "chance")],
)
def test_the_three_real_runs_get_three_answers(name, steps, halves, verdict, reason):
    fit = fit_workload(read_dump(DATA / f"{name}.csv"), n_groups=64)
    assert (fit.n, fit.steps, fit.lengths.shape) == (4, steps, (24 * steps, 4))
    called = []
    ask = replace(ASK, halves=halves)
    study = study_dump(fit, ask, tick=lambda: called.append(1))
    found, advice = study.findings, decide(study.findings)
    assert (advice.verdict, advice.reason) == (verdict, reason), advice.headline
    assert len(called) == ticks(ask)
    if name == "persistent":
        assert found.icc.low > 0.5
        assert found.gain.mean > 1.05
        assert found.held.mean > 1.04
        assert abs(found.bias_mean.mean) < 0.03
        assert advice.override.startswith("+tailsieve=default trainer.v1.tailsieve.q=")
    if name == "chance":
        assert found.icc.high < 0.15
        assert found.gain.mean > 1.1  # it would look faster
        assert found.held.mean < 1.08  # but hardly without shorter answers
        assert found.bias_mean.mean < -0.08
    if name != "flat":
        assert found.gain.low < found.gain.mean < found.gain.high
    assert len(study.table) == 4
    assert {c.policy for c in study.table} >= {"verl_default", "uniform_group"}


def test_the_run_s_own_batch_is_the_dump_s():
    fit = fit_workload(read_dump(DATA / "persistent.csv"))
    assert fit.n_groups == 24


def test_against_uniform_groups_the_gain_is_larger():
    fit = fit_workload(read_dump(DATA / "persistent.csv"), n_groups=64)
    small = replace(ASK, replicas=4, steps=12, seeds=1, halves=2)
    over_requests = study_dump(fit, small).findings
    over_groups = study_dump(fit, replace(small, now="uniform_group")).findings
    assert over_groups.gain.mean > over_requests.gain.mean
    assert over_groups.now_s > over_requests.now_s


@pytest.mark.parametrize("steps", [9, pytest.param(40, marks=pytest.mark.slow)])
def test_a_larger_dump_gives_a_narrower_interval(steps):
    """The same prompts recorded once or sixteen times: what is known of them is the same, how sure one is of it not."""
    small = drawn_fit(LengthModel(prompt_share=0.65), steps=2, n_groups=32, n=4)
    times = 16
    large = replace(
        small,
        lengths=np.tile(small.lengths, (times, 1)),
        prompt=np.arange(64 * times),
        step=np.arange(64 * times) // 32 + 1,
        prompt_tokens=np.zeros(64 * times, np.int64),
    )
    ask = replace(ASK, replicas=4, steps=steps, halves=10, seeds=1 if steps == 9 else 3)
    few, many = (study_dump(fit, ask).findings for fit in (small, large))
    assert many.icc.high - many.icc.low < 0.5 * (few.icc.high - few.icc.low)
    if steps > 9:  # the gain of a short run is uncertain whatever the dump
        assert np.log(many.gain.high / many.gain.low) < 0.8 * np.log(few.gain.high / few.gain.low)


def test_a_log_scales_the_costs_and_gives_the_step_s_gain():
    fit = drawn_fit(LengthModel(), steps=3, n_groups=16, n=4)
    seconds = {1: 100.0, 2: 50.0, 3: 55.0}
    log = StepLog("run.log", {s: {GENERATION: t, STEP: 2 * t} for s, t in seconds.items()})
    ask = replace(ASK, steps=12, seeds=1, halves=2)
    found = study_dump(fit, ask, log).findings
    assert found.match.generation_share == pytest.approx(0.5)
    assert found.now_s == pytest.approx(study_dump(fit, ask).findings.now_s * found.match.scale)
    assert found.step_gain == pytest.approx(1 / (0.5 + 0.5 / found.gain.mean))


def test_no_split_where_every_one_loses():
    curve = DecodeCurve([1, 64], [0.01, 0.64])  # compute-bound: only the tokens per replica count
    fit = drawn_fit(LengthModel(p50=1000, p90=1100, prompt_share=0.5), steps=2, n_groups=16, n=4)
    split = best_split(fit, Machine(4, EngineCosts(curve)), 0)
    assert split.gain < 1
    findings = study_dump(fit, replace(ASK, replicas=4, costs=EngineCosts(curve), steps=12, halves=3)).findings
    assert (findings.q, findings.m) == (None, None)
    assert decide(findings).override is None


def test_a_split_is_one_that_a_run_accepts():
    fit = drawn_fit(LengthModel(), steps=2, n_groups=2, n=2)
    split = best_split(fit, Machine(2, COSTS), 0)
    assert (split.q, split.m) == (1, 1)


@pytest.mark.parametrize(
    ("change", "word"),
    [({"replicas": 1}, "leave TailSieve off"), ({"now": "fast"}, "verl_default"), ({"halves": 1}, "2 halves"),
     ({"steps": 5}, "too little")],
)  # fmt: skip
def test_questions_without_an_answer(change, word):
    with pytest.raises(UserError, match=word):
        replace(ASK, **change)


def test_one_group_a_step_leaves_nothing_to_route():
    fit = drawn_fit(LengthModel(), steps=20, n_groups=1)
    with pytest.raises(UserError, match="one prompt group"):
        study_dump(fit, ASK)
