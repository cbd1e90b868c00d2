"""``tailsieve report`` on runs written by the tests."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli import report
from tailsieve_verl.errors import UserError
from tests.report.views import write

app = typer.Typer()
app.command("report")(report.command)


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_files_and_words(tmp_path):
    run = write(tmp_path / "mine", (0, 0, 1, 1, 1, 1, 1))
    said = invoke(run).output
    assert "Worth it: generation is 1.25x" in said
    folder = run / "tailsieve" / "report"
    assert "<h1>mine</h1>" in (folder / "report.html").read_text()
    assert (folder / "generation.png").read_bytes().startswith(b"\x89PNG")


def test_another_folder_name_and_json(tmp_path):
    run = write(tmp_path / "mine", (0, 1))
    data = json.loads(invoke(run, "--out", tmp_path / "out", "--name", "other", "--last", "1", "--json").stdout)
    assert data["facts"]["steps"] == 1
    assert data["verdict"]["tolerable"] == "yes"
    assert "<h1>other</h1>" in (tmp_path / "out" / "report.html").read_text()


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        invoke(tmp_path)
    with pytest.raises(UserError, match="no finished rollout yet"):
        invoke(write(tmp_path, ()))
    assert not list(tmp_path.rglob("report.html"))
