"""`tailsieve doctor`: what it prints, and its exit status."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tailsieve_verl.cli import doctor
from tailsieve_verl.doctor.findings import Finding, Report
from tailsieve_verl.errors import UserError
from tailsieve_verl.workloads.cpu_run import CpuRun

RUN = CpuRun(model=Path("model"), data=Path("data"), out=Path("out"), replicas=8)


def run(*arguments):
    app = typer.Typer()
    app.command(context_settings=doctor.CONTEXT)(doctor.command)
    result = CliRunner().invoke(app, ["--no-import", *arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize("dashes", [["--"], []], ids=["with --", "without"])
def test_a_right_command(dashes):
    status, output = run(*dashes, *RUN.command("+tailsieve=default"))
    assert status == 0, output
    assert "8 devices / (TP 1 x DP 1 x PP 1) = 8 replicas" in " ".join(output.split())
    assert output.strip().endswith("Nothing is wrong.")


def test_a_wrong_command_in_words_and_in_json():
    words = ["--", *RUN.command("+tailsieve=default", "trainer.v1.tailsieve.m=8")]
    status, output = run(*words)
    assert status == 2
    assert "error: trainer.v1.tailsieve.q and trainer.v1.tailsieve.m" in " ".join(output.split())
    assert "It will not work like this. (1 error)" in output
    status, output = run("--json", *words)
    found = json.loads(output)
    assert (status, found["status"], found["exit_status"]) == (2, "error", 2)
    (error,) = [f for f in found["findings"] if f["status"] == "error"]
    assert error["section"] == "Your command"
    assert error["remedy"]


def test_statuses_are_told_apart_without_colour():
    findings = tuple(Finding("Things", status, f"a {status}", "do so") for status in doctor.SIGNS)
    plain, coloured = io.StringIO(), io.StringIO()
    doctor.show(Report(findings), Console(file=plain, width=80))
    doctor.show(Report(findings), Console(file=coloured, width=80, force_terminal=True, color_system="truecolor"))
    assert "✗ error: a error" in plain.getvalue()
    assert "! warning: a warning" in plain.getvalue()
    assert plain.getvalue().count("-> do so") == 4
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b[" not in plain.getvalue()


def test_gpu_memory_must_be_a_size():
    with pytest.raises(UserError, match="--gpu-memory -1 must be a positive number of GiB"):
        run("--gpu-memory", "-1")


def test_nothing_heavy_is_imported():
    code = (
        "import sys, tailsieve_verl.doctor.run as run\n"
        "run.diagnose(sys.argv[1:], with_import=False)\n"
        "print([m for m in ('verl', 'torch', 'vllm', 'ray', 'transformers') if m in sys.modules])\n"
    )
    words = [sys.executable, "-c", code, *RUN.command("+tailsieve=default")]
    assert subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout.strip() == "[]"


def test_the_real_verl_loads_the_plug_in():
    words = [sys.executable, "-m", "tailsieve_verl.cli.main", "doctor", "--json"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    found = json.loads(result.stdout)
    assert result.returncode == 0, found
    assert "verl loads the plug-in (tried: import verl)" in [f["text"] for f in found["findings"]]
    assert "importing verl" in result.stderr
