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
    small = [a for a in SMALL if "--trace" not in arguments or a not in ("--data-set", "100")]
    return CliRunner().invoke(app, [str(a) for a in (*small, *arguments)], env={"COLUMNS": "100"})


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
        "makespan s",
        "vs group",
        "vs verl",
        "truncated",
        "idle",
    ):
        assert text in result.stdout


@pytest.mark.parametrize(("seeds", "said"), [("1", "4 steps, 1 seed "), ("2", "4 steps, 2 seeds")])
def test_the_title_counts(seeds, said):
    assert said in run("--policy", "verl_default", "--seeds", seeds).stdout.replace("\n", " ")


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


def test_an_acceptance_adds_drafts_under_both_dispatches(tmp_path):
    result = run("--acceptance", "0.8,0.6", "--csv", tmp_path / "t.csv", "--png", tmp_path / "t.png")
    assert result.exit_code == 0, result.output
    assert "vs drafts" in result.stdout
    table = pandas.read_csv(tmp_path / "t.csv").set_index("policy")
    assert table.loc["verl_default:depth=auto", "over_verl_default"] > 1
    assert table.loc["verl_default:depth=auto", "over_verl_default:depth=3"] > 1
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_depths_are_told_and_samples_are_near_the_mean():
    options = ("--acceptance", "0.7", "--depth", "auto", "--json", "--policy", "verl_default", "--policy",
               "fixed:q=2,m=1,depth.bulk=1,depth.tail=1:4/3:2")  # fmt: skip
    mean, sampled = (json.loads(run(*options, *more).stdout) for more in ((), ("--sample-drafts",)))
    assert mean["depths"]["fixed:q=2,m=1,depth.bulk=1,depth.tail=1:4/3:2"] == {"bulk": "1", "tail": "1:4,3:2"}
    assert mean["depths"]["verl_default"]["bulk"].startswith("1:5")
    for one, other in zip(mean["comparison"], sampled["comparison"], strict=True):
        assert one["step_s"]["mean"] != other["step_s"]["mean"]
        assert one["step_s"]["mean"] == pytest.approx(other["step_s"]["mean"], rel=0.05)


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
        (["--depth", "3"], "a draft depth needs --acceptance"),
        (["--trace-model", "m"], "--trace-model chooses a model of --trace; name a trace"),
        (["--trace", "nowhere.csv", "--p50", "9"], "--p50 shapes the synthetic load, which --trace replaces"),
        (["--draft-share", "0.1"], "--draft-share is about drafts and needs --acceptance"),
        (["--sample-drafts"], "--sample-drafts is about drafts and needs --acceptance"),
        (["--acceptance", "0.7", "--policy", "tailsieve"], "no policy drafts; add --depth auto"),
        (["--png", "t.pdf"], "--png t.pdf must end in .png"),
        (["--csv", "t.png"], "--csv t.png must not end in .png"),
        (["--policy", "verl_default:q=1,m=1"], "q is what verl_default stands for"),
        (["--policy", "history:history_from=x"], "history_from is of real runs, a simulation ignores it"),
        (["--policy", "verl_default:depth=3"], "a draft depth needs --acceptance"),
        (["--acceptance", "1.5"], "acceptance '1.5' must be a chance in 0..1"),
        (["--acceptance", "0.7", "--depth", "deep"], "depth 'deep' must be a number"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, message):
    text = sentence(*arguments)
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize("option", [("--noise", "nan"), ("--noise", "-1"), ("--seed", "-1"), ("-R", "1000000000")])
def test_figures_out_of_range_are_refused(option):
    result = run(*option)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "Error" in result.output
