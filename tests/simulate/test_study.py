"""Comparisons: paired over seeds, baselines at exactly one, bias only where something was generated again."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tailsieve_verl.core.speculation import Acceptance, DepthTable
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.drafting import PoolDepths, Speculation
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import parse_policies
from tailsieve_verl.simulate.rollout import Machine
from tailsieve_verl.simulate.study import Setup, compare, interval, simulate_run
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel


def setup(**model):
    lengths = LengthModel(**({"p50": 300, "p90": 1500, "cap": 6000} | model))
    return Setup(16, 12, Machine(4, EngineCosts(DENSE)), lambda seed: SyntheticWorkload(lengths, 4, seed=seed), skip=2)


def table(names, seeds, speculation=None, depths=None, **model):
    case = replace(setup(**model), speculation=speculation, depths=depths)
    runs = [simulate_run(case, spec, seed) for seed in range(seeds) for spec in parse_policies(names)]
    return {row.policy: row for row in compare(case, runs)}


def test_baselines_are_one_and_oracles_beat_them():
    rows = table(["uniform_group", "verl_default", "seer_oracle"], 4)
    assert rows["uniform_group"].speedup["uniform_group"].mean == 1
    assert rows["verl_default"].speedup["verl_default"].mean == 1
    assert rows["seer_oracle"].speedup["uniform_group"].low > 1
    assert rows["seer_oracle"].speedup["verl_default"].mean > 1
    for row in rows.values():
        assert row.over_bound.mean >= 1
        assert row.bias_mean.mean == pytest.approx(0, abs=1e-12)
        assert 0 <= row.idle_bulk < 1
        assert math.isnan(row.idle_tail)


def test_chance_runaways_are_trained_on_less_and_that_shows_as_bias():
    rows = table(["fixed:q=2,m=1"], 4, p90=450, runaway=0.01, prompt_share=0.0)
    assert rows["fixed:q=2,m=1"].bias_mean.high < 0
    assert rows["fixed:q=2,m=1"].bias_truncated.mean < 0


def test_one_seed_has_no_interval_and_skipped_steps_do_not_count():
    case = setup()
    run = simulate_run(case, parse_policies(["verl_default"])[0], 0)
    row = compare(case, [run])[0]
    assert row.step_s.mean == pytest.approx(run.seconds[2:].mean())
    assert math.isnan(row.step_s.low)
    assert "uniform_group" not in row.speedup


def test_ticks_count_steps():
    ticks = []
    simulate_run(setup(), parse_policies(["verl_default"])[0], 0, lambda: ticks.append(1))
    assert len(ticks) == 12


def test_intervals_are_student_s():
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.low) == (2.0, pytest.approx(2 - 4.302652730 / math.sqrt(3)))
    assert interval([2.0, 8.0], log=True).mean == pytest.approx(4.0)
    assert "±" in str(found)
    with pytest.raises(ValueError, match="at least one"):
        interval([])


def test_the_same_seed_gives_the_same_run():
    spec = parse_policies(["tailsieve"])[0]
    assert np.array_equal(simulate_run(setup(), spec, 1).seconds, simulate_run(setup(), spec, 1).seconds)


def test_drafts_are_rows_and_baselines_of_their_own():
    known = Speculation(Acceptance((0.7,)), DENSE)
    names = [
        "uniform_group",
        "verl_default",
        "verl_default:depth=2",
        "verl_default:depth=auto",
        "fixed:q=2,m=1,depth=4",
    ]
    rows = table(names, 2, known)
    live, fixed, plain = (rows[name] for name in ("verl_default:depth=auto", "verl_default:depth=2", "verl_default"))
    assert live.step_s.mean < fixed.step_s.mean < plain.step_s.mean
    assert live.speedup["verl_default"].mean > live.speedup["verl_default:depth=2"].mean > 1
    assert set(live.speedup) == set(names[:4])
    for row in rows.values():
        assert row.over_bound.mean >= 1
    assert plain.bound_s == live.bound_s < table(["verl_default"], 2)["verl_default"].bound_s


def test_a_depth_for_all_is_that_of_policies_without_one():
    known = Speculation(Acceptance((0.7,)), DENSE)
    every = PoolDepths(DepthTable.constant(2), DepthTable.constant(2))
    rows = table(["verl_default", "verl_default:depth=2", "verl_default:depth=0"], 1, known, every)
    assert rows["verl_default"].step_s.mean == rows["verl_default:depth=2"].step_s.mean
    plain = table(["verl_default"], 1)["verl_default"]
    assert rows["verl_default:depth=0"].step_s.mean == pytest.approx(plain.step_s.mean)


def test_a_depth_without_an_acceptance_is_refused():
    with pytest.raises(UserError, match="how many drafts are accepted is not given"):
        table(["verl_default:depth=2"], 1)


def test_a_run_may_leave_its_bounds_out():
    run = simulate_run(replace(setup(), bounds=0), parse_policies(["verl_default"])[0], 0)
    assert math.isnan(run.bound)
    assert math.isnan(run.bound_ratio)
