"""``tailsieve evaluate`` against a worker without an engine."""

import json
import tempfile

import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli import evaluate
from tailsieve_verl.errors import UserError
from tailsieve_verl.evaluate import answers, checkpoint
from tests.evaluate import questions
from tests.evaluate.test_checkpoint import make_model
from tests.evaluate.test_run import FAKE

app = typer.Typer()
app.command("evaluate")(evaluate.command)


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(answers, "WORKER", FAKE)
    monkeypatch.setattr(evaluate, "_encoder", lambda model, thinking: lambda problem: [1, 2, 3])
    for name in ("gsm8k", "aime24"):
        questions.write(tmp_path / "data" / name / "test.parquet", 3)


def invoke(tmp_path, *arguments):
    common = ("--out", tmp_path / "eval", "--data", tmp_path / "data", "--device", "cpu")
    graded = ("--reward", "tests.evaluate.questions:equal")
    result = CliRunner().invoke(app, [str(a) for a in (*graded, *common, *arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_table_3_of_two_checkpoints(tmp_path):
    base, trained = make_model(tmp_path / "base"), make_model(tmp_path / "trained")
    arguments = (base, f"tailsieve={trained}", "--bench", "gsm8k", "--bench", "aime24@2", "--samples", 4)
    result = invoke(tmp_path, *arguments)
    assert result.exit_code == 0, result.output
    assert "GSM8K pass@1" in result.output
    assert "AIME24 pass@2" in result.output
    table = (tmp_path / "eval" / "table3.md").read_text().splitlines()
    assert table[0] == "| checkpoint | GSM8K pass@1 | AIME24 pass@2 |"
    assert table[3].startswith("| tailsieve |")
    for name in ("base", "tailsieve"):
        assert len((tmp_path / "eval" / name / "aime24.jsonl").read_text().splitlines()) == 12
    # The same answers are there: nothing is drawn again, and --json has the figures.
    again = json.loads(invoke(tmp_path, *arguments, "--json").stdout)
    assert len(again["table"]) == 4
    assert len((tmp_path / "eval" / "base" / "aime24.jsonl").read_text().splitlines()) == 12
    assert again["table"][0]["samples"] == 12


def test_a_folder_may_have_an_equals_sign_in_its_path(tmp_path):
    make_model(tmp_path / "lr=1e-6" / "model")
    result = invoke(tmp_path, tmp_path / "lr=1e-6" / "model", "--bench", "gsm8k")
    assert result.exit_code == 0, result.output
    assert "| model |" in (tmp_path / "eval" / "table3.md").read_text()


def test_one_failing_checkpoint_does_not_lose_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MERGER", ("/bin/false",))
    base = make_model(tmp_path / "base")
    shards = tmp_path / "broken"
    shards.mkdir()
    (shards / "model_world_size_1_rank_0.pt").write_text("no weights")
    result = invoke(tmp_path, base, shards, "--bench", "gsm8k")
    assert result.exit_code == 1
    assert "broken: verl could not merge" in result.output
    assert "| base |" in (tmp_path / "eval" / "table3.md").read_text()


def test_bad_input_is_one_sentence(tmp_path):
    base = make_model(tmp_path / "base")
    for arguments, sentence in (
        ((tmp_path / "none",), "none does not exist; give a Hugging Face folder"),
        ((tmp_path,), "is no checkpoint"),
        ((base, base), "name each checkpoint differently"),
        ((f"../out={base}",), "../out names a folder in --out; give a name without slashes"),
        ((base, "--bench", "math500"), "write it with: tailsieve data math500"),
        ((base, "--bench", "gsm8k@3", "--samples", 2), "pass@3 needs at least 3 samples"),
        ((base, "--bench", "gsm8k", "--bench", "gsm8k@2"), "--bench gsm8k is given twice"),
        ((base, "--bench", "gsm8k", "--reward", "nothing:there"), "cannot be loaded"),
    ):
        with pytest.raises(UserError, match=sentence):
            invoke(tmp_path, *arguments)
