"""`tailsieve data`: what it writes and prints."""

import gzip
import json

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from tailsieve_verl.cli import data
from tailsieve_verl.errors import UserError
from tailsieve_verl.workloads.sources import SOURCES

from ..workloads import samples
from ..workloads.samples import save

app = typer.Typer()
app.command()(data.command)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize("name", data.NAMES)
def test_every_data_set_from_a_local_file(tmp_path, name):
    sample = save(tmp_path / "sample.parquet", getattr(samples, name.upper()))
    output, _ = run(name, "--from", sample, "--out", tmp_path / "data", "--json")
    report = json.loads(output)
    (file,) = report["files"]
    rows = pq.read_table(tmp_path / "data" / f"{SOURCES[name].use}.parquet").to_pylist()
    assert file["rows"] == len(rows) > 0
    assert len(rows) + sum(report["skipped"].values()) == len(getattr(samples, name.upper()))
    for row in rows:
        assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
        assert row["data_source"] == report["data_source"] == SOURCES[name].repo
        assert row["reward_model"]["style"] == "rule"
        assert row["extra_info"]["task"] == row["ability"] == ("code" if name == "kodcode" else "math")
        assert "<END>" in row["prompt"][-1]["content"]


def test_the_table_says_what_was_read(tmp_path):
    sample = save(tmp_path / "sample.jsonl", samples.GSM8K)
    output, _ = run("gsm8k", "--from", sample, "--out", tmp_path)
    assert f"{sample} (test)" in output


def test_the_same_options_give_the_same_checksum(tmp_path):
    sample = save(tmp_path / "sample.jsonl", samples.DEEPSCALER)
    reports = [
        json.loads(run("deepscaler", "--from", sample, "--seed", seed, "--out", tmp_path / out, "--json")[0])
        for seed, out in ((1, "a.parquet"), (1, "b.parquet"), (2, "c.parquet"))
    ]
    one, two, other = (report["files"][0]["sha256"] for report in reports)
    assert one == two != other


def test_the_warm_up_batch_is_a_file_of_its_own(tmp_path):
    sample = save(tmp_path / "sample.jsonl", samples.DEEPSCALER)
    output, remarks = run("deepscaler", "--from", sample, "--out", tmp_path / "d.parquet", "--warm-up", 1)
    assert "1 with no answer" in remarks
    assert "sha256" in output
    kept, reserved = (pq.read_table(tmp_path / f).to_pylist() for f in ("d.parquet", "d-warmup.parquet"))
    assert [row["extra_info"]["index"] for row in kept + reserved] == [0, 1, 2, 3]
    assert len(reserved) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gsm9k"], "gsm9k is not a data set that is known; choose one of deepscaler, kodcode, gsm8k"),
        (["gsm8k", "--from", "none.jsonl"], "none.jsonl does not exist"),
        (["gsm8k", "--from", "x.jsonl", "--revision", "abc"], "give one of them"),
    ],
)
def test_errors_are_one_sentence(arguments, said):
    with pytest.raises(UserError) as error:
        run(*arguments)
    assert said in str(error.value)


def test_spoilt_files_and_names_are_one_sentence(tmp_path):
    cut, deep = tmp_path / "cut.csv.gz", tmp_path / "deep.json"
    cut.write_bytes(gzip.compress(b"question,answer\n" + b"a,b\n" * 1000)[:40])
    deep.write_text("[" * 100_000)
    for path in (cut, deep):
        with pytest.raises(UserError, match=f"{path.name} cannot be read as "):
            run("gsm8k", "--from", str(path))
    with pytest.raises(UserError, match="it must not be empty or have a slash"):
        run("gsm8k", "--from", str(cut), "--split", "../other")


def test_the_names_are_the_sources():
    assert set(data.NAMES) == set(SOURCES)
