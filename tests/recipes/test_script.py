"""A recipe's script from end to end, the engines replaced at the outermost edge: `run_ppo` and what is behind it."""

import sys
from pathlib import Path

import pandas

from tests.compare.runs import write_dump, write_metrics
from tests.evaluate import questions

from .composed import launch

ENGINELESS = Path(__file__).with_name("engineless.py")


def test_missing_runs_are_launched_and_all_are_compared(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {ENGINELESS} "$@"\n')
    python.chmod(0o755)
    questions.write(tmp_path / "data" / "train.parquet", 80)
    done = write_metrics(tmp_path / "runs" / "uniform" / "metrics-1.jsonl", [100.0] * 3)
    # write_dump has two responses of each, a recipe has eight.
    write_dump(done, {step: 4 * [f"prompt {step} {i}" for i in range(64)] for step in (1, 2, 3)})
    (done / "latest_checkpointed_iteration.txt").write_text("3")
    knobs = {"PYTHON": str(python), "DATA": str(tmp_path / "data"), "OUT": str(tmp_path / "runs")}
    result = launch("qwen3_5_2b_math", VARIANTS="uniform mtp", STEPS="3", **knobs)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert result.stdout.count("has its 3 steps already") == 1
    table = pandas.read_csv(tmp_path / "runs" / "comparison" / "speedups.csv")
    assert table.loc[0, ["run", "baseline", "steps", "speedup"]].tolist() == ["mtp", "uniform", 3, 1.25]
    assert (tmp_path / "runs" / "comparison" / "fig7.png").exists()


def test_a_setting_that_cannot_work_ends_before_ray(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {ENGINELESS} "$@"\n')
    python.chmod(0o755)
    questions.write(tmp_path / "data" / "train.parquet", 8)
    knobs = {"PYTHON": str(python), "DATA": str(tmp_path / "data"), "OUT": str(tmp_path / "runs"), "VARIANTS": "verl"}
    result = launch("qwen3_4b_code", **knobs)
    assert result.returncode != 0
    assert "data.train_files holds 8 prompts, fewer than data.train_batch_size=64" in result.stderr
