"""``tailsieve compare`` on runs written by the tests."""

import csv
import json

import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli import compare
from tailsieve_verl.errors import UserError
from tests.compare.runs import write_metrics, write_record

app = typer.Typer()
app.command("compare")(compare.command)


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def two(tmp_path):
    return (
        write_record(tmp_path / "uniform", [4.0] * 9, by_group=True),
        write_record(tmp_path / "ours", [2.0] * 9, split=range(1, 10)),
    )


def test_tables_files_and_json(two, tmp_path):
    out = tmp_path / "out"
    result = invoke(two[0], f"tailsieve={two[1]}", "--out", out)
    assert "(2.00-2.00)" in result.output
    with (out / "fig7.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18
    assert float(rows[9]["generation_s"]) == pytest.approx(2.0)
    with (out / "speedups.csv").open() as file:
        speedups = list(csv.DictReader(file))
    assert [(row["run"], row["window"]) for row in speedups] == [("tailsieve", "all"), ("tailsieve", "1-8")]
    assert (out / "fig7.png").read_bytes().startswith(b"\x89PNG")
    assert "| tailsieve | uniform |" in (out / "report.md").read_text()
    data = json.loads(invoke(*two, "--json").stdout)
    assert data["speedups"][0]["speedup"] == pytest.approx(2.0)
    assert data["runs"][0]["run"] == "uniform"


def test_a_run_that_cannot_be_compared_is_left_out_and_said(two, tmp_path):
    other = write_metrics(tmp_path / "other" / "metrics.jsonl", [1.0])
    out = tmp_path / "out"
    with pytest.raises(UserError, match="2 of 4 runs could not be compared; the notes say why"):
        invoke(two[0], other, tmp_path / "none", two[1], "--out", out)
    text = (out / "report.md").read_text()
    assert "| ours | uniform |" in text
    assert "Left out: other and uniform did not train" in text
    assert "none does not exist" in text


def test_bad_input_is_one_sentence(two, tmp_path):
    other = write_metrics(tmp_path / "other" / "metrics.jsonl", [1.0])
    for arguments, sentence in (
        ((two[0],), "at least two runs"),
        ((two[0], tmp_path / "none"), "none does not exist"),
        ((two[0], other), "did not train on the same prompts in the same order: other has neither"),
        ((*two, "--curve", tmp_path / "no.json"), "--curve .*no.json cannot be used"),
    ):
        with pytest.raises(UserError, match=sentence):
            invoke(*arguments)
    assert "4.00" in invoke(two[0], other, "--unpaired").output
