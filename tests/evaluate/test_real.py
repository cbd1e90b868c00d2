"""A checkpoint of verl's shards merged by verl's merger, and its answers drawn by real vLLM."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from tailsieve_verl.cli import main as cli
from tailsieve_verl.workloads.models import ensure_tiny

from . import questions

pytestmark = pytest.mark.slow


def test_from_shards_to_table_3(tmp_path):
    model = ensure_tiny(tmp_path / "tiny")
    actor = tmp_path / "run" / "global_step_3" / "actor"
    command = [sys.executable, str(Path(__file__).with_name("shards.py")), str(model), str(actor)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("3")
    path = questions.write(tmp_path / "q.parquet", 2)
    cli._register()
    result = CliRunner().invoke(
        cli.app,
        [
            *("evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--bench", f"made@2={path}"),
            *("--samples", "3", "--reward", "tests.evaluate.questions:equal", "--max-tokens", "8", "--device", "cpu"),
        ],
    )
    assert result.exit_code == 0, result.output
    before = load_file(model / "model.safetensors")
    after = load_file(tmp_path / "out" / "run" / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name].float() == after[name].float()).all() for name in before)
    lines = (tmp_path / "out" / "run" / "made.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert "| run | 0.00" in (tmp_path / "out" / "table3.md").read_text()
