"""`tailsieve trace`: what it prints and writes."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tailsieve_verl.cli import trace as command
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.synthetic import PAPER_SHARES, LengthModel

MIXED = "model,prompt_id,tokens\nsmall,q1,10\nsmall,q1,30\nsmall,q2,20\nsmall,q2,22\nlarge,q1,20\nlarge,q1,30\n"


def run(*arguments):
    """Standard output and standard error; an error of the user's is raised as `main` would catch it."""
    result = CliRunner().invoke(command.app, [str(argument) for argument in arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text(MIXED)
    return path


def test_a_negative_seed_is_no_seed(tmp_path):
    result = CliRunner().invoke(command.app, ["make", str(tmp_path / "x.csv"), "--seed", "-1"])
    assert result.exit_code == 2
    assert not (tmp_path / "x.csv").exists()


def test_a_folder_is_no_file_to_write(mixed, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"folder\.csv cannot be written: it is a folder"):
        run("convert", mixed, tmp_path / "folder.csv", "--model", "small")


def test_make_and_summary(tmp_path):
    path = tmp_path / "run.csv.gz"
    output, remarks = run("make", path, "--prompts", 64, "--samples", 8, "--checkpoints", 30, "--seed", 3)
    assert output == ""
    assert "15360 responses of 64 prompts at 30 checkpoints" in " ".join(remarks.split())
    (result,) = json.loads(run("summary", path, "--json")[0])
    assert result["p50"] == pytest.approx(1160, rel=0.1)
    assert result["p90"] == pytest.approx(4115, rel=0.1)
    assert result["shares"]["prompt"] == pytest.approx(PAPER_SHARES.prompt, abs=0.06)
    assert len(result["checkpoint_auc"]) == 29
    table, _ = run("summary", path)
    for word in ("synthetic", "half_auc", "tail_ratio", "share_prompt", "bias-corrected"):
        assert word in table


def test_make_is_repeatable_and_follows_its_options(tmp_path):
    options = ["--prompts", 500, "--samples", 20, "--p50", 300, "--p90", 900, "--cap", 2000, "--prompt-share", 0.2]
    run("make", tmp_path / "a.csv", *options, "--runaway", 0.01)
    run("make", tmp_path / "b.csv", *options, "--runaway", 0.01)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    trace = read_trace(tmp_path / "a.csv")
    assert np.percentile(trace.tokens, [50, 90]) == pytest.approx([300, 900], rel=0.05)
    assert (trace.cap, trace.tokens.max()) == (2000, 2000)
    run("make", tmp_path / "c.csv", *options, "--mixture", 0.5, 1500, 1800)
    assert np.median(read_trace(tmp_path / "c.csv").tokens) > 500


def test_make_fits_open_shares_to_what_is_asked(tmp_path):
    """Paper shares that would not fit beside a large prompt share, or beside a heavy tail."""
    run("make", tmp_path / "a.csv", "--checkpoints", 4, "--prompt-share", 0.97)
    run("make", tmp_path / "b.csv", "--checkpoints", 4, "--p90", 20000, "--cap", 65536)
    run("make", tmp_path / "c.csv", "--checkpoints", 4, "--checkpoint-share", 0.1)


def test_the_defaults_are_the_model_s():
    options = inspect.signature(command.make).parameters
    for name in ("p50", "p90", "cap", "prompt_share", "runaway", "mixture"):
        assert options[name].default == getattr(LengthModel(), name), name


def test_summary_of_several(mixed, tmp_path):
    table, _ = run("summary", mixed, "--each", "--csv", tmp_path / "s.csv", "--png", tmp_path / "s.png")
    assert "small" in table
    assert "large" in table
    rows = pd.read_csv(tmp_path / "s.csv")
    assert rows["name"].tolist() == ["mixed/small", "mixed/large"]
    assert rows["mean"].tolist() == [20.5, 25]
    assert {"icc", "half_auc", "checkpoint_auc", "share_prompt", "dispersion_max", "remarks"} <= set(rows)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_two_files_of_one_name_are_told_apart_by_path(tmp_path):
    for name in ("a.csv", "b.csv"):
        run("make", tmp_path / name, "--prompts", 12, "--samples", 2)
    results = json.loads(run("summary", tmp_path / "a.csv", tmp_path / "b.csv", "--json")[0])
    assert [result["name"] for result in results] == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]


def test_remarks_go_to_standard_error(tmp_path):
    (tmp_path / "t.csv").write_text("tokens\n5\n7\n")
    output, remarks = run("summary", tmp_path / "t.csv", "--json")
    assert json.loads(output)[0]["icc"] is None
    assert "one sample per prompt" in remarks


def test_convert(mixed, tmp_path):
    run("convert", mixed, tmp_path / "small.jsonl", "--model", "small")
    assert read_trace(tmp_path / "small.jsonl").tokens.tolist() == [10, 30, 20, 22]
    _, remark = run("make", tmp_path / "real.csv", "--prompts", 100, "--samples", 10)
    assert "1000 responses of 100 prompts at 1 checkpoint;" in " ".join(remark.split())
    run("convert", tmp_path / "real.csv", tmp_path / "strong.csv.gz", "--tail-ratio", 6)
    p50, p90 = np.percentile(read_trace(tmp_path / "strong.csv.gz").tokens, [50, 90])
    assert p90 / p50 == pytest.approx(6, rel=0.01)


def test_convert_a_dump(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "1.jsonl").write_text('{"input": "secret question", "output": "a secret answer", "step": 1}\n')
    _, remarks = run("convert", folder, tmp_path / "run.csv", "--cap", 100)
    assert "characters / 4" in " ".join(remarks.split())
    assert "secret" not in (tmp_path / "run.csv").read_text()
    assert read_trace(tmp_path / "run.csv").tokens.tolist() == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["summary", "{mixed}"], "mixes 2 models: choose a model of small, large"),
        (["summary", "{mixed}", "--each", "--model", "small"], "--each reads every model and data set"),
        (["summary", "none.csv"], "none.csv does not exist"),
        (["summary", "no_folder"], "no_folder does not exist: give a trace file, or the folder of a verl dump"),
        (["convert", "{mixed}", "x.txt", "--model", "small"], "must end in .csv, .csv.gz or .jsonl"),
        (["make", "x.csv", "--p90", "20000"], "p90 20000.0 cannot be reached under the cap 16384"),
        (["make", "x.csv", "--runaway", "0.05"], "give less of either"),
        (["make", "x.csv", "--prompts", "0"], "prompts must be at least 1"),
    ],
)
def test_errors_are_one_sentence(mixed, arguments, message):
    with pytest.raises(UserError) as caught:
        run(*(argument.format(mixed=mixed) for argument in arguments))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["summary", "convert", "make"])
def test_help_teaches_by_example(name):
    output, _ = run(name, "--help")
    assert f"tailsieve trace {name}" in output
