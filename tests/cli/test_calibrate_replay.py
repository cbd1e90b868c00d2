"""``tailsieve calibrate`` and ``tailsieve replay`` against a worker of known costs."""

import csv
import json
import tempfile

import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli import calibrate, replay
from tailsieve_verl.curves import load_curve
from tailsieve_verl.errors import UserError
from tailsieve_verl.replay import engine
from tests.replay import fake_worker
from tests.replay.conftest import FAKE

app = typer.Typer()
app.command("calibrate")(calibrate.command)
app.command("replay")(replay.command)


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(engine, "WORKER", FAKE)
    monkeypatch.setattr(engine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{p},{s},{40 * p + 11 * s + 5}" for p in range(6) for s in range(4)]
    path.write_text("\n".join(["prompt_id,sample_id,tokens", *rows]) + "\n")
    return path


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def curve(model, tmp_path):
    out = tmp_path / "curve.json"
    invoke("calibrate", "--model", model, "--out", out, "--tokens", 8, "--repeats", 1, "--device", "cpu")
    return out


def test_calibrate_writes_a_curve_and_a_table(model, tmp_path):
    out, table, picture = (tmp_path / name for name in ("c.json", "c.csv", "c.png"))
    result = invoke(
        *("calibrate", "--model", model, "--out", out, "--batch-sizes", "1,4", "--tokens", 8, "--repeats", 2),
        *("--device", "cpu", "--replicas", 2, "--csv", table, "--png", picture),
    )
    assert "Decode curve of" in result.output
    assert "us more per token of context" in result.output
    assert load_curve(out).seconds_per_token == pytest.approx([fake_worker.tau(1), fake_worker.tau(4)], rel=1e-3)
    assert load_curve(table) == load_curve(out)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_calibrate_prints_json(model, tmp_path):
    result = invoke(
        *("calibrate", "--model", model, "--out", tmp_path / "c.json", "--batch-sizes", "1,2", "--tokens", 8),
        *("--repeats", 1, "--device", "cpu", "--json"),
    )
    data = json.loads(result.stdout)
    assert data["batch_sizes"] == [1, 2]
    assert data["versions"] == {"vllm": "fake"}


def test_calibrate_makes_a_curve_for_each_depth(model, tmp_path):
    result = invoke(
        *("calibrate", "--model", model, "--out", tmp_path / "c.json", "--batch-sizes", "1,2", "--tokens", 8),
        *("--repeats", 1, "--device", "cpu", "--depths", "0,2"),
        *("--speculative", '{"method": "mtp"}'),
    )
    assert "depth 2" in result.output
    assert json.loads((tmp_path / "c.depth2.json").read_text())["speculation_depth"] == 2
    assert load_curve(tmp_path / "c.depth0.json").batch_sizes == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-sizes", "1,x"], "--batch-sizes 1,x must be whole numbers"),
        (["--batch-sizes", "99"], r"batch size 99 is not in 1\.\.64"),
        (["--engine-args", "[1]"], "must be a JSON object"),
        (["--engine-args", '{"fault": "dies"}'], "worker ended"),
        (["--replicas", "9"], "9 replicas need a core each, and there are 4"),
        (["--depths", "0,2"], "--depths needs the drafter"),
        (["--speculative", "{}"], "--speculative is used with --depths alone"),
        (["--batch-sizes", ""], "--batch-sizes  must be whole numbers of at least 1"),
        (["--out", "curve.txt"], r"must end in \.json"),
        (["--model", "/nowhere"], "no folder of a model"),
    ],
)
def test_calibrate_says_what_is_wrong(model, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        invoke("calibrate", "--model", model, "--out", tmp_path / "c.json", "--device", "cpu", *options)


def test_replay_compares_and_ranks(model, trace, curve, tmp_path):
    table, picture, runs = (tmp_path / name for name in ("r.csv", "r.png", "runs.jsonl"))
    arguments = (
        *("replay", trace, "--model", model, "--curve", curve, "--groups", 6, "--rollouts", 4, "--repeats", 2),
        *("--policy", "uniform_group", "--policy", "fixed:q=5,m=1", "--max-tokens", 100, "--device", "cpu"),
        *("--csv", table, "--png", picture, "--runs", runs),
    )
    result = invoke(*arguments)
    assert "Order of the policies: right, 1 of 1 pairs" in result.output
    assert "longest 100" in result.output
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["policy"] for row in rows] == ["uniform_group", "fixed:q=5,m=1"]
    assert all(abs(float(row["error"])) < 0.01 for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(runs.read_text().splitlines()) == 4
    invoke(*arguments)
    assert len(runs.read_text().splitlines()) == 4  # nothing was run again


def test_replay_without_a_curve_calibrates_first_and_prints_json(model, trace):
    result = invoke(
        *("replay", trace, "--model", model, "--groups", 4, "--rollouts", 2, "--repeats", 1, "--device", "cpu"),
        "--json",
    )
    data = json.loads(result.stdout)
    assert [row["policy"] for row in data["policies"]] == replay.DEFAULT_POLICIES
    assert all(abs(row["error"]) < 0.01 for row in data["policies"])
    assert len(data["lengths"]) == 4


def test_replay_says_that_it_extrapolates(model, trace, tmp_path):
    short = tmp_path / "short.json"
    invoke("calibrate", "--model", model, "--out", short, "--batch-sizes", "1,2", "--repeats", 1, "--device", "cpu")
    result = invoke(
        *("replay", trace, "--model", model, "--curve", short, "--groups", 6, "--repeats", 1, "--device", "cpu"),
        *("--policy", "verl_default", "--json"),
    )
    notes = json.loads(result.stdout)["notes"]
    assert any("measured up to batch size 2 and is used up to 12" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "magic"], "policy 'magic' is unknown"),
        (["--curve", "none.json"], "there is no curve none.json; tailsieve calibrate"),
        (["--max-model-len", "64"], "raise it, or shrink the lengths with --max-tokens"),
        (["--engine-args", '{"fault": "dies"}'], "worker ended"),
    ],
)
def test_replay_says_what_is_wrong(model, trace, options, message):
    with pytest.raises(UserError, match=message):
        invoke("replay", trace, "--model", model, "--device", "cpu", *options)


def test_replay_of_an_empty_trace_is_one_sentence(model, tmp_path):
    (tmp_path / "empty.csv").write_text("tokens\n")
    with pytest.raises(UserError):
        invoke("replay", tmp_path / "empty.csv", "--model", model, "--device", "cpu")


@pytest.mark.parametrize("name", ["calibrate", "replay"])
def test_the_help_shows_a_command_to_copy(name):
    assert f"tailsieve {name}" in invoke(name, "--help").output


def test_a_disturbed_measurement_is_said(capsys):
    assert "took 20% of the replicas' cores" in calibrate.disturbance(0.8)[0]
    assert calibrate.disturbance(0.99) == calibrate.disturbance(None) == calibrate.disturbance(0.5, "cpu") == []
