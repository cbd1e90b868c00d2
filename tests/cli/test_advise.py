"""``tailsieve advise`` as a user meets it."""

import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli import advise
from tailsieve_verl.errors import UserError
from tests.advise.dumps import write_dump

DATA = Path(__file__).parents[1] / "advise" / "data"
QUICK = ["--steps", "12", "--seeds", "1", "--halves", "3"]

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(advise.command)


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args], catch_exceptions=False)


def test_the_answer_comes_first_and_the_figures_below():
    result = run(DATA / "chance.csv", "-R", 8, "--groups", 64, *QUICK)
    assert result.exit_code == 0
    assert result.stdout.startswith("Leave it off, because the tail is chance")
    assert "- The prompt tells" in result.stdout
    assert "64 groups of 4 on 8 replicas, against verl_default" in result.stdout
    assert "bias_mean" in result.stdout


def test_a_verl_dump_with_its_log(tmp_path):
    groups = [(f"p{g}", [20 * (g + 1)] * 3) for g in range(4)]
    folder = write_dump(tmp_path / "rollouts", dict.fromkeys((1, 2, 3), groups))
    log = tmp_path / "run.log"
    log.write_text("".join(f"step:{s} - timing_s/gen:2.5 - timing_s/step:5.0\n" for s in (1, 2, 3)))
    result = run(folder, "-R", 2, "--log", log, "--now", "uniform_group", *QUICK)
    assert "characters / 4" in result.stdout
    assert "against uniform_group" in result.stdout
    assert "step_gain" in result.stdout
    assert "cannot tell whether the curve" in result.stdout


def test_json_csv_and_png(tmp_path):
    result = run(DATA / "flat.csv", "-R", 4, "--json", "--csv", tmp_path / "a.csv", "--png", tmp_path / "a.png", *QUICK)
    data = json.loads(result.stdout)
    assert data["advice"]["verdict"] == "leave"
    assert data["advice"]["reason"] == "flat"
    assert data["findings"]["lengths"]["n_groups"] == 24
    assert {row["policy"] for row in data["comparison"]} >= {"verl_default", "tailsieve"}
    table = pd.read_csv(tmp_path / "a.csv").set_index("figure")
    assert table.loc["cap", "value"] == 16
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_drafts_are_an_answer_of_their_own(tmp_path):
    options = ["-R", 4, "--speculation", "0.8,0.6", "--csv", tmp_path / "a.csv", *QUICK]
    result = run(DATA / "chance.csv", *options)
    assert result.stdout.startswith("Leave it off")
    assert "Drafts pay: accepted with 0.8, 0.6" in result.stdout
    assert "speculation.method=" in result.stdout
    table = pd.read_csv(tmp_path / "a.csv").set_index("figure")
    assert table.loc["now_live_depth", "value"] > 1.1
    assert "policy=fixed" in result.stdout.replace("\n", " ")  # drafts under the run's own dispatch


def test_the_same_question_gets_the_same_answer():
    first, second = (run(DATA / "chance.csv", "-R", 4, "--json", *QUICK).stdout for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["no/such", "-R", 8], "does not exist"),
        ([DATA, "-R", 8], "rollout_data_dir"),
        ([DATA / "chance.csv", "-R", 1], "leave TailSieve off"),
        ([DATA / "chance.csv", "-R", 8, "--now", "x"], "verl_default"),
        ([DATA / "chance.csv", "-R", 8, "--curve", "x"], "curve"),
        ([DATA / "chance.csv", "-R", 8, "--log", "no.log"], "no.log"),
        ([DATA / "chance.csv", "-R", 8, "--rollouts", 9], "--rollouts"),
        ([DATA / "chance.csv", "-R", 8, "--max-tokens", 100], "cap"),
        ([DATA / "chance.csv", "-R", 8, "--groups", 1], "one prompt group"),
        ([DATA / "chance.csv", "-R", 8, "--speculation", "2"], "must be a chance in 0..1"),
    ],
)
def test_errors_are_one_sentence(args, word):
    with pytest.raises(UserError) as error:
        run(*args, *QUICK)
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_one_response_a_group_is_refused(tmp_path):
    folder = write_dump(tmp_path / "rollouts", {1: [(f"p{g}", [10]) for g in range(4)]})
    with pytest.raises(UserError, match="1 response a prompt group"):
        run(folder, "-R", 4, *QUICK)


def test_help_teaches_with_examples():
    text = run("--help").stdout
    assert "tailsieve advise rollouts/" in text
    assert "rollout_data_dir" in text
