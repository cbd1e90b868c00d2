"""From each real format to verl's rows; the same options give the same rows."""

import json

import pyarrow.parquet as pq
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.workloads.prepare import checksum, prepare, write
from tailsieve_verl.workloads.reading import read_file, read_hub
from tailsieve_verl.workloads.sources import SOURCES

from . import samples
from .samples import save


def truths(name, records, **options):
    prepared = prepare(SOURCES[name], records, "train", where="sample", **options)
    return [row["reward_model"]["ground_truth"] for row in prepared.train], prepared.skipped


@pytest.mark.parametrize(
    ("name", "records", "wanted", "skipped"),
    [
        ("deepscaler", samples.DEEPSCALER, ["2", "(-2, 2)", "\\frac{1}{2}", "\\frac{3}{4}"], {"no answer": 1}),
        ("gsm8k", samples.GSM8K, ["12", "12500"], {"no #### in the answer": 1}),
        ("math500", samples.MATH500, ["\\left( 3, \\frac{\\pi}{2} \\right)"], {}),
        ("aime24", samples.AIME24, ["204", "33"], {}),
        ("aime24", samples.AIME24_CAPITALS, ["33"], {}),
        ("aime24", samples.AIME24_BOXED_ONLY, ["33"], {}),
        ("aime25", samples.AIME25, ["70", "588"], {}),
    ],
)
def test_answers_of_each_format(name, records, wanted, skipped):
    assert truths(name, records) == (wanted, skipped)


def test_aime_answers_are_small_integers():
    rows = [{"problem": "p", "answer": answer} for answer in ("000", "7.0", "1000", "x", "-3", "$25$")]
    rows += [{"problem": "p", "answer": answer} for answer in (r"336^\circ", r"$90^{\circ}$", "45°", r"5^\circ C")]
    assert truths("aime24", rows) == (["0", "7", "25", "336", "90", "45"], {"no integer from 0 to 999 as answer": 4})


def test_kodcode_rows():
    prepared = prepare(SOURCES["kodcode"], samples.KODCODE, "train", where="sample")
    first, second = prepared.train
    assert first["reward_model"]["ground_truth"] == samples.KODCODE[0]["test"].strip()
    assert first["prompt"][1]["content"].endswith("def add(a, b):\nSpecification:\nAdd two numbers.")
    assert first["extra_info"] == {
        "split": "train",
        "index": 0,
        "task": "code",
        "question_id": "Prefill_1_I",
        "subset": "Prefill",
        "style": "instruct",
        "gpt_difficulty": "easy",
    }
    # Tests that import nothing are given everything; several functions are all asked for.
    assert second["reward_model"]["ground_truth"].startswith("from solution import *\n\ndef test_both")
    assert second["prompt"][1]["content"].endswith("Required function:\ndef one():\ndef two():")


def test_kodcode_test_info_of_every_shape():
    (info,) = samples.KODCODE[0]["test_info"]
    for shape in (json.dumps([info]), repr([info]), {key: [value] for key, value in info.items()}):
        wanted = prepare(SOURCES["kodcode"], samples.KODCODE[:1], "train", where="sample").train
        assert (
            prepare(SOURCES["kodcode"], [{**samples.KODCODE[0], "test_info": shape}], "train", where="s").train
            == wanted
        )


def test_kodcode_rows_without_what_the_prompt_or_the_reward_needs_are_left_out():
    rows = [
        samples.KODCODE[0],
        {**samples.KODCODE[0], "test": ""},
        {**samples.KODCODE[0], "test_info": []},
        {**samples.KODCODE[0], "test_info": "not a list"},
        {**samples.KODCODE[0], "question": None},
    ]
    assert truths("kodcode", rows)[1] == {"no test": 1, "no function declaration": 2, "no problem text": 1}


@pytest.mark.parametrize("name", ["deepscaler", "kodcode", "gsm8k", "aime24"])
@pytest.mark.parametrize("kind", [".parquet", ".jsonl", ".json", ".csv"])
def test_every_file_kind_gives_the_same_rows(tmp_path, name, kind):
    records = {"aime24": samples.AIME24}.get(name) or getattr(samples, name.upper())
    read = read_file(save(tmp_path / f"data{kind}", records))
    rows = prepare(SOURCES[name], read, "train", where="file").train
    assert rows == prepare(SOURCES[name], records, "train", where="sample").train


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".json"])
def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path, kind):
    path = save(tmp_path / f"data{kind}", samples.GSM8K)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert truths("gsm8k", read_file(path))[0] == ["12", "12500"]


def test_half_a_character_costs_its_row_alone():
    rows = [{"problem": "p \ud835", "answer": "1"}, {"problem": "p", "answer": "2"}]
    assert truths("deepscaler", rows) == (["2"], {"text that is no Unicode": 1})


def test_shuffle_limit_and_reserve():
    records = [{"problem": f"p{i}", "answer": str(i)} for i in range(20)]
    source = SOURCES["deepscaler"]
    plain = prepare(source, records, "train", where="sample")
    assert [row["extra_info"]["index"] for row in plain.train] == list(range(20))
    one, two = (prepare(source, records, "train", where="sample", seed=42, limit=12, reserve=4) for _ in range(2))
    assert one == two
    assert (len(one.train), len(one.reserved)) == (8, 4)
    order = [row["extra_info"]["index"] for row in one.train + one.reserved]
    assert order != sorted(order)
    assert len(set(order)) == 12
    # The reserved batch is the last one of the same rows without a reserve.
    assert prepare(source, records, "train", where="sample", seed=42, limit=12).train == one.train + one.reserved
    other = prepare(source, records, "train", where="sample", seed=43, limit=12)
    assert checksum(other.train) != checksum(one.train + one.reserved)


def test_the_checksum_is_of_every_cell(tmp_path):
    rows = prepare(SOURCES["aime24"], samples.AIME24, "train", where="sample").train
    first = checksum(rows)
    path = tmp_path / "a.parquet"
    write(path, rows)
    read = pq.read_table(path).to_pylist()
    assert read == rows
    assert checksum(read) == first
    read[1]["reward_model"]["ground_truth"] = "34"
    assert checksum(read) != first


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.parquet", None, "none.parquet does not exist"),
        ("", None, "is no file; give the data set's file"),
        ("a.txt", "x", "a.txt is of no kind that can be read; give a .parquet, .jsonl, .json, .csv file"),
        ("a.jsonl", '{"problem": 1}\nnot json\n', "a.jsonl cannot be read as jsonl: line 2: Expecting value"),
        ("a.jsonl", "[1]\n", "line 1 holds no object"),
        ("a.json", '{"problem": 1}', "it must hold one list of objects"),
        ("a.json", "[]", "a.json holds no rows"),
        ("a.parquet", "not parquet", "a.parquet cannot be read as parquet"),
        ("a.csv", "", "a.csv cannot be read as csv"),
    ],
)
def test_unreadable_files_are_one_sentence(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as error:
        read_file(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "records", "options", "said"),
    [
        (
            "deepscaler",
            [{"text": "a", "label": "b"}],
            {},
            "sample has the columns text, label; deepscaler also needs problem or question and answer or solution",
        ),
        ("kodcode", samples.GSM8K, {}, "kodcode also needs test or test_code and test_info"),
        ("gsm8k", samples.GSM8K[2:], {}, r"no row that can be used: no #### in the answer (1)"),
        ("gsm8k", samples.GSM8K, {"reserve": 2}, "A warm-up batch of 2 leaves nothing of 2 rows"),
    ],
)
def test_unusable_rows_are_one_sentence(name, records, options, said):
    with pytest.raises(UserError) as error:
        prepare(SOURCES[name], records, "train", where="sample", **options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_hub_is_read_part_by_part(monkeypatch):
    asked = []

    def load_dataset(repo, config, split, revision):
        asked.append((repo, config, split, revision))
        return [samples.AIME25[len(asked) - 1]]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    rows = read_hub(SOURCES["aime25"], "test", "abc")
    assert asked == [("opencompass/AIME2025", part, "test", "abc") for part in ("AIME2025-I", "AIME2025-II")]
    assert [row["answer"] for row in rows] == ["70", "588"]


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub (LocalEntryNotFoundError)\nsecond line")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(UserError) as error:
        read_hub(SOURCES["gsm8k"], "train", None)
    assert "openai/gsm8k (train) cannot be loaded from the hub: Couldn't reach" in str(error.value)
    assert "--from FILE" in str(error.value)
    assert "\n" not in str(error.value)
