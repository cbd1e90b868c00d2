import pandas
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.evaluate.benchmarks import read_benchmark

from .questions import write


def test_the_paper_s_four_with_their_k(tmp_path):
    for name in ("gsm8k", "math500", "aime24", "aime25"):
        write(tmp_path / name / "test.parquet")
    found = [read_benchmark(name, tmp_path) for name in ("gsm8k", "math500", "aime24", "aime25")]
    assert [(b.title, b.k, b.samples) for b in found] == [
        ("GSM8K", 1, 1), ("MATH-500", 1, 4), ("AIME24", 10, 32), ("AIME25", 10, 32),
    ]  # fmt: skip
    assert found[0].problems[2].messages == ({"role": "user", "content": "question 2"},)
    assert found[0].problems[2].extra_info["index"] == 2


def test_a_spec_sets_k_and_file(tmp_path):
    path = write(tmp_path / "mine.parquet", 3)
    found = read_benchmark(f"mine@5={path}", tmp_path, samples=7, limit=2)
    assert (found.name, found.k, found.samples, len(found.problems)) == ("mine", 5, 7, 2)


def test_the_test_split_is_preferred_and_the_train_split_will_do(tmp_path):
    write(tmp_path / "gsm8k" / "train.parquet", 2)
    assert len(read_benchmark("gsm8k", tmp_path).problems) == 2
    write(tmp_path / "gsm8k" / "test.parquet", 3)
    assert len(read_benchmark("gsm8k", tmp_path).problems) == 3


def test_the_checksum_is_of_questions_and_answers(tmp_path):
    first = read_benchmark(f"a={write(tmp_path / 'a.parquet')}", tmp_path).checksum
    assert read_benchmark(f"b={write(tmp_path / 'b.parquet')}", tmp_path).checksum == first
    other = write(tmp_path / "c.parquet", reward_model={"ground_truth": "2"})
    assert read_benchmark(f"c={other}", tmp_path).checksum != first


def test_bad_input_is_one_sentence(tmp_path):
    write(tmp_path / "gsm8k" / "test.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    pandas.DataFrame({"question": ["?"]}).to_parquet(tmp_path / "columns.parquet")
    pandas.DataFrame({"prompt": [], "reward_model": []}).to_parquet(tmp_path / "empty.parquet")
    for spec, options, sentence in (
        ("mmlu", {}, "--bench mmlu is unknown; choose of gsm8k, math500"),
        ("gsm8k@@2", {}, r"must be name\[@k\]"),
        ("gsm8k@4", {"samples": 2}, "pass@4 needs at least 4 samples a problem, got 2"),
        ("math500", {}, "has no test.parquet or train.parquet; write it with: tailsieve data math500"),
        (f"x={tmp_path}/no.parquet", {}, "does not exist; write it with tailsieve data"),
        (f"x={tmp_path}/text.parquet", {}, "is no parquet file that can be read"),
        (f"x={tmp_path}/columns.parquet", {}, "lacks the column prompt and reward_model"),
        (f"x={tmp_path}/empty.parquet", {}, "has no rows"),
        (f"x={write(tmp_path / 'p.parquet', prompt='text')}", {}, "row 0: prompt must be chat messages"),
        (f"x={write(tmp_path / 'r.parquet', reward_model={'style': 'rule'})}", {}, "must hold ground_truth"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_benchmark(spec, tmp_path, **options)
