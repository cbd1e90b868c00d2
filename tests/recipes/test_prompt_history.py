"""The recipe of prompt history, small: its loads are what they say, and its tables hold what was simulated."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "recipes" / "prompt_history"


@pytest.fixture(scope="module")
def recipe():
    """The modules ``loads`` and ``run`` of the recipe."""
    sys.path.insert(0, str(FOLDER))
    try:
        import loads
        import run

        yield loads, run
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("loads", "run"):
            sys.modules.pop(name, None)


def test_newcomers_are_seen_once_and_the_others_again(recipe):
    loads, _ = recipe
    load = loads.Newcomers(loads.REAL, 0)
    seen = [set(load.identity(range(k, k + loads.PASS * loads.N)).tolist()) for k in (0, loads.PASS * loads.N)]
    again = len(seen[0] & seen[1]) / len(seen[0])
    assert again == pytest.approx((1 - loads.NEW) ** 2, abs=0.05)


def test_another_model_ranks_prompts_otherwise(recipe):
    loads, _ = recipe
    load = loads.Changed(loads.REAL, 0)
    prompts = list(range(loads.N))
    before, after = (load.lengths(prompts, [0] * loads.N, step).mean(axis=1) for step in (1, loads.PASS + 1))
    assert abs(np.corrcoef(np.log(before), np.log(after))[0, 1]) < 0.4


def test_tables_hold_every_policy_paired_by_seed(recipe, tmp_path, monkeypatch):
    loads, run = recipe
    small = replace(loads.CASES[0], steps=6, skip=2, replicas=(4,))
    monkeypatch.setattr(run, "CASES", [small])
    monkeypatch.setattr(run, "trace_cases", list)
    for seeds in ("1", "2"):  # the second call keeps what is there
        monkeypatch.setattr(sys, "argv", ["run.py", "--seeds", seeds, "--out", str(tmp_path)])
        run.main()
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert len(rows) == 2 * len(run.POLICIES)
    summary = {r["policy"]: r for r in csv.DictReader((tmp_path / "summary.csv").open())}
    assert float(summary["verl_default"]["over_verl"]) == 1.0
    of = {(r["policy"], r["seed"]): float(r["step_s"]) for r in rows}
    ratios = [of["verl_default", s] / of["tailsieve", s] for s in ("0", "1")]
    assert float(summary["tailsieve"]["over_verl"]) == pytest.approx(np.exp(np.log(ratios).mean()))
    audit = {r["policy"]: r for r in csv.DictReader((tmp_path / "bias.csv").open())}
    assert float(audit["verl_default"]["bias_mean"]) == pytest.approx(0.0, abs=1e-9)
    assert (tmp_path / "gains.png").stat().st_size > 10_000
