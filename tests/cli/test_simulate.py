"""`tailsieve simulate`: table, JSON, CSV and picture from one run; one sentence for what is wrong."""

import json

import pandas
import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli.simulate import command
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.curves import save_curve
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.files import write_trace
from tailsieve_verl.traces.synthetic import LengthModel, synthetic_trace

SMALL = ["-N", "8", "-n", "2", "-R", "2", "--steps", "4", "--seeds", "2", "--data-set", "100"]
app = typer.Typer()
app.command()(command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in (*SMALL, *arguments)], env={"COLUMNS": "100"})


def sentence(*arguments):
    result = run(*arguments)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_the_table_names_every_policy_and_both_baselines():
    result = run()
    assert result.exit_code == 0, result.output
    for text in (
        "uniform_group",
        "verl_default",
        "fixed",
        "tailsieve",
        "vs group",
        "vs verl",
        "truncated",
        "idle",
    ):
        assert text in result.stdout


def test_json_csv_and_png_agree(tmp_path):
    result = run("--json", "--csv", tmp_path / "t.csv", "--png", tmp_path / "t.png", "--policy", "verl_default")
    data = json.loads(result.stdout)
    table = pandas.read_csv(tmp_path / "t.csv")
    assert table.policy.tolist() == ["verl_default"]
    assert table.step_s[0] == pytest.approx(data["comparison"][0]["step_s"]["mean"])
    assert len(data["runs"]) == 2
    assert len(data["runs"][0]["seconds"]) == 4
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_output():
    assert run("--json").stdout == run("--json").stdout != run("--json", "--seed", 5).stdout


def test_a_trace_and_a_calibrated_curve_are_used(tmp_path):
    write_trace(tmp_path / "t.csv", synthetic_trace(LengthModel(p50=20, p90=60, cap=100), prompts=20, samples=4))
    save_curve(tmp_path / "c.json", DecodeCurve([1, 4], [0.01, 0.02]))
    calibrated = json.loads((tmp_path / "c.json").read_text()) | {"context_seconds_per_token": 1e-4}
    (tmp_path / "k.json").write_text(json.dumps(calibrated))
    options = ("--trace", tmp_path / "t.csv", "--policy", "verl_default", "--json")
    plain = json.loads(run(*options, "--curve", tmp_path / "c.json").stdout)
    context = json.loads(run(*options, "--curve", tmp_path / "k.json").stdout)
    assert plain["runs"][0]["seconds"][0] < context["runs"][0]["seconds"][0]
    result = run(*options, "--curve", tmp_path / "c.json")
    assert "curve ends at 4 requests" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "uniform"], "policy 'uniform' is unknown"),
        (["--curve", "nowhere.json"], "curve 'nowhere.json' is neither a file nor a shipped shape"),
        (["--skip", "4"], "--skip 4 leaves none of 4 steps"),
        (["--p90", "1"], "p50 must be at least 1 token and below p90"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--kv-tokens", "100"], "kv_tokens=100 cannot hold a request"),
        (["--policy", "fixed:q=3,m=5"], "m=5 must be between 1 and 1"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, message):
    text = sentence(*arguments)
    assert message in text
    assert "\n" not in text
