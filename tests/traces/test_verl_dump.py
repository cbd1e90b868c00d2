"""Folders that verl writes for trainer.rollout_data_dir."""

from __future__ import annotations

import json

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.files import read_trace, write_trace
from tailsieve_verl.traces.verl_dump import read_verl_dump, token_counter


def words(text):
    return len(text.split())


def dump(folder, step, pairs):
    """As verl 0.9.1 `_write_generations` writes it; `test_against_verl` holds it to that."""
    folder.mkdir(exist_ok=True)
    lines = [
        {"input": question, "output": answer, "gts": None, "score": 0.5, "step": step, "uid": f"u_{i}_0"}
        for i, (question, answer) in enumerate(pairs)
    ]
    (folder / f"{step}.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return folder


@pytest.fixture
def run(tmp_path):
    dump(tmp_path / "run", 2, [("one two", "a b c"), ("ü", "d")])
    dump(tmp_path / "run", 10, [("ü", "e f g h"), ("one two", ""), ("one two", "i j")])
    (tmp_path / "run" / "notes.jsonl").write_text("not a step\n")
    return tmp_path / "run"


def test_steps_prompts_and_order(run):
    trace = read_verl_dump(run, count_tokens=words)
    assert trace.tokens.tolist() == [3, 1, 4, 1, 2]
    assert trace.prompt.tolist() == [0, 1, 1, 0, 0]
    assert trace.prompt_tokens.tolist() == [2, 1, 1, 2, 2]
    assert trace.checkpoints == ("2", "10")
    assert trace.step.tolist() == [2, 2, 10, 10, 10]
    assert (trace.name, trace.cap, trace.truncated.any()) == ("run", None, False)
    assert len(set(trace.prompt_ids)) == 2
    assert not any("one two" in label for label in trace.prompt_ids)  # a hash: no text leaves the dump


def test_without_a_tokenizer_lengths_are_estimated_and_said_so(run):
    trace = read_trace(run)
    assert trace.tokens.tolist() == [2, 1, 2, 1, 1]
    assert trace.remarks == ("no tokenizer was given: lengths are estimated as characters / 4.",)


def test_the_cap(run):
    trace = read_verl_dump(run, count_tokens=words, cap=4)
    assert trace.truncated.tolist() == [False, False, True, False, False]
    with pytest.raises(UserError, match=r"10\.jsonl line 1: the output has 4 tokens, above the cap 2"):
        read_verl_dump(run, count_tokens=words, cap=2)
    assert read_verl_dump(run, cap=1).tokens.max() == 1  # estimates are no proof of a wrong cap


def test_a_few_tokens_above_the_cap_are_tokenization(tmp_path):
    folder = dump(tmp_path / "run", 1, [("q", "w " * 102)])
    trace = read_verl_dump(folder, count_tokens=words, cap=100)
    assert (trace.tokens.tolist(), trace.truncated.tolist()) == ([100], [True])


def test_through_read_trace(run, tmp_path):
    assert read_trace(run, count_tokens=words, checkpoint="10").step.tolist() == [10, 10, 10]
    with pytest.raises(UserError, match="has no checkpoint '3': choose of 2, 10"):
        read_trace(run, count_tokens=words, checkpoint="3")
    with pytest.raises(UserError, match="leave model and source out"):
        read_trace(run, model="x")
    write_trace(tmp_path / "t.csv", read_trace(run, count_tokens=words))
    assert read_trace(tmp_path / "t.csv").step.tolist() == [2, 2, 10, 10, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"input": "q", "output": "a"}\n{"input": "q", "out', r"1\.jsonl line 2 is no JSON: delete it if the run"),
        ('{"input": "q"}\n', r"1\.jsonl line 1 must be an object with the texts 'input' and 'output'"),
        ('["q", "a"]\n', "line 1 must be an object"),
        ('{"input": "q", "output": 3}\n', "line 1 must be an object"),
        ("\n", "holds no response"),
        (b"\xff\n", r"1\.jsonl cannot be read"),
    ],
)
def test_bad_lines(tmp_path, text, message):
    (tmp_path / "1.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message):
        read_verl_dump(tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(UserError, match="is no folder"):
        read_verl_dump(tmp_path / "none")
    with pytest.raises(UserError, match=r"holds no <step>\.jsonl"):
        read_verl_dump(tmp_path)
    with pytest.raises(UserError, match="the cap must be at least 1"):
        read_verl_dump(tmp_path, cap=0)


def test_a_hugging_face_tokenizer(tmp_path, run):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the cpu or gpu extra")
    transformers = pytest.importorskip("transformers", reason="needs the cpu or gpu extra")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]").save_pretrained(tmp_path / "tok")
    assert read_trace(run, tokenizer=str(tmp_path / "tok")).tokens.tolist() == [3, 1, 4, 1, 2]
    with pytest.raises(UserError, match=r"the tokenizer '.*none' cannot be loaded"):
        token_counter(str(tmp_path / "none"))


def test_against_verl(tmp_path):
    """The real writer, so that another key or file name in a later verl shows here."""
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason="needs the cpu or gpu extra").RayPPOTrainer
    extra = {"uid": ["u_0_0", "u_1_0"]}
    trainer._write_generations(["q", "q"], ["a b", "c"], [None, "3"], [0.0, 1.0], extra, str(tmp_path), 7)
    trace = read_verl_dump(tmp_path, count_tokens=words)
    assert (trace.tokens.tolist(), trace.prompt.tolist(), trace.step.tolist()) == ([2, 1], [0, 0], [7, 7])
