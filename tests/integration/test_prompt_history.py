"""The history on disk: saved, restored, refused, broken, and taken over from records and dumps."""

import json
import logging

import numpy as np
import pytest

from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.core.plan import Decision, GroupRecord, LaunchCounts, StepObservation, StepPlan
from tailsieve_verl.errors import UserError
from tailsieve_verl.integration.prompt_history import (
    HISTORY,
    HistoryMismatchError,
    fingerprint,
    restore,
    save,
    take_over,
)
from tailsieve_verl.integration.record import RunRecord

KNOWN = {"data set": "64:abc", "tokenizer": "def"}
PROMPTS, SESSIONS = 16, 4


class Tokenizer:
    """A word is a token."""

    def __init__(self, words=("a", "b")):
        self.words = words

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}

    def apply_chat_template(self, messages, add_generation_prompt, tokenize, return_dict, **kwargs):
        return ["<user>", *messages[0]["content"].split()]

    def decode(self, ids, skip_special_tokens):
        return " ".join(word for word in ids if not word.startswith("<"))

    def encode(self, text, add_special_tokens):
        return text.split()


def dataset(count=PROMPTS, what="question"):
    return [
        {
            "raw_prompt": [{"role": "user", "content": f"{what} {i}"}],
            "data_source": "set",
            "extra_info": {"index": i, "split": "train"},
        }
        for i in range(count)
    ]


def key(i):
    return f"set/train/{i}"


def length(i):
    return 10 * (i + 1)


def taught():
    forecast = LengthForecast()
    tokens = np.array([[float(length(i))] * SESSIONS for i in range(PROMPTS)])
    forecast.take_in(
        3, [key(i) for i in range(PROMPTS)], tokens, np.ones_like(tokens, bool), np.ones(PROMPTS, dtype=bool)
    )
    return forecast


def levels(forecast):
    return forecast.history.look_up([key(i) for i in range(PROMPTS)]).level


def saved(folder, known=KNOWN):
    save(folder, taught(), known)
    return folder / "tailsieve" / HISTORY


def test_a_history_comes_back_as_it_was(tmp_path):
    forecast = LengthForecast()
    assert restore(saved(tmp_path), forecast, KNOWN)
    assert np.array_equal(levels(forecast), levels(taught()))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("what", ["data set", "tokenizer"])
def test_another_data_set_or_tokenizer_is_refused_in_a_sentence(tmp_path, what):
    path = saved(tmp_path, {**KNOWN, what: "other"})
    with pytest.raises(HistoryMismatchError, match=f"another {what} than this run's; remove it"):
        restore(path, LengthForecast(), KNOWN)


def shorten(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(bytes(data))


def no_array(path):
    np.savez(path, head=np.array(json.dumps({"format": 1, "fingerprint": KNOWN, "digest": "0"})))


@pytest.mark.parametrize(
    "spoil", [shorten, flip, no_array, lambda path: path.write_text("x"), lambda path: path.unlink()]
)
def test_a_broken_or_missing_file_is_said_and_the_run_goes_on(tmp_path, caplog, spoil):
    path = saved(tmp_path)
    spoil(path)
    forecast = LengthForecast()
    with caplog.at_level(logging.WARNING):
        assert not restore(path, forecast, KNOWN)
    assert len(forecast.history) == 0
    assert "goes on without the prompt history" in caplog.text


def test_a_full_disk_costs_the_file_only(tmp_path, caplog):
    (tmp_path / "tailsieve").write_text("in the way")
    save(tmp_path, taught(), KNOWN)
    assert "cannot be written" in caplog.text


def test_fingerprints_tell_data_sets_and_tokenizers_apart():
    ours = fingerprint(dataset(), Tokenizer())
    assert fingerprint(dataset(), Tokenizer()) == ours
    assert fingerprint(dataset(what="puzzle"), Tokenizer())["data set"] != ours["data set"]
    assert fingerprint(dataset(PROMPTS + 1), Tokenizer())["data set"] != ours["data set"]
    assert fingerprint(dataset(), Tokenizer(("a", "c")))["tokenizer"] != ours["tokenizer"]


def test_a_data_set_that_cannot_be_looked_into_is_told_by_its_class(caplog):
    assert fingerprint(iter([1]), Tokenizer())["data set"] == "list_iterator"
    assert "told by its class" in caplog.text


class BytesTokenizer(Tokenizer):
    def get_vocab(self):
        return {b"a": 0, "<end>": 1}


class Wordless(Tokenizer):
    def get_vocab(self):
        raise NotImplementedError


def test_tokenizers_of_another_kind_do_not_end_a_run(caplog):
    assert fingerprint(dataset(), BytesTokenizer())["tokenizer"] != fingerprint(dataset(), Tokenizer())["tokenizer"]
    assert fingerprint(dataset(), Wordless())["tokenizer"] == "Wordless"
    assert "told by its class" in caplog.text


# ---- taking over --------------------------------------------------------------------------------------------------


def test_an_earlier_run_s_newest_checkpoint_is_taken(tmp_path):
    saved(tmp_path / "global_step_2")
    saved(tmp_path / "global_step_10")
    forecast = LengthForecast()
    said = take_over(str(tmp_path), forecast, KNOWN)
    assert f"{PROMPTS} prompts" in said
    assert "global_step_10" in said
    assert (forecast.history.arrays()["step"] == 0).all()  # before this run's first step


def record(folder, run):
    def group(i, status="trained"):
        cut = status == "cut"
        return GroupRecord(
            i, key(i), "fresh", status, (0,) * SESSIONS, (0.0,) * SESSIONS, (1.0,) * SESSIONS,
            (length(i) // 2 if cut else length(i),) * SESSIONS, (not cut,) * SESSIONS, None if cut else 1.0,
        )  # fmt: skip

    plan = StepPlan(1, PROMPTS, 2, 1, 0, LaunchCounts(0, 0, PROMPTS + 1, PROMPTS))
    groups = (*(group(i) for i in range(PROMPTS)), group(PROMPTS, "cut"))
    out = RunRecord(folder)
    out.start(run, first_step=1)
    out.step(
        StepObservation(plan, None, 1.0, 1.0, 0.0, groups), Decision(1, 1, 1, True, False, ""), batch={}, metrics={}
    )


def test_a_run_s_record_is_taken(tmp_path):
    record(tmp_path, {"n_groups": PROMPTS, "fingerprint": KNOWN})
    forecast = LengthForecast()
    take_over(str(tmp_path), forecast, KNOWN)
    assert levels(forecast) == pytest.approx(np.log([length(i) for i in range(PROMPTS)]), rel=1e-6)
    assert key(PROMPTS) in forecast.history  # the one that was cut


def test_a_record_of_other_data_is_refused_and_one_that_does_not_say_is_noted(tmp_path, caplog):
    record(tmp_path / "other", {"fingerprint": {**KNOWN, "data set": "x"}})
    with pytest.raises(HistoryMismatchError, match="another data set"):
        take_over(str(tmp_path / "other"), LengthForecast(), KNOWN)
    record(tmp_path / "silent", {})
    take_over(str(tmp_path / "silent"), LengthForecast(), KNOWN)
    assert "does not say" in caplog.text


def dump(folder, what="question"):
    folder.mkdir()
    for step in (1, 2):
        lines = [
            {"input": f"{what} {i}", "output": "w " * length(i), "gts": None, "score": 0.0, "step": step}
            for i in range((step - 1) * PROMPTS // 2, step * PROMPTS // 2)
            for _ in range(SESSIONS)
        ]
        (folder / f"{step}.jsonl").write_text("\n".join(json.dumps(line) for line in lines))


def test_verl_s_dumps_are_taken_by_the_prompts_texts(tmp_path):
    dump(tmp_path / "dump")
    forecast = LengthForecast()
    take_over(str(tmp_path / "dump"), forecast, KNOWN, dataset=dataset(), tokenizer=Tokenizer())
    assert levels(forecast) == pytest.approx(np.log([length(i) for i in range(PROMPTS)]), rel=1e-6)
    assert forecast.history.look_up([key(0)]).weight[0] == SESSIONS


def test_dumps_of_other_prompts_are_refused(tmp_path):
    dump(tmp_path / "dump", what="puzzle")
    with pytest.raises(HistoryMismatchError, match="only 0% of the prompts"):
        take_over(str(tmp_path / "dump"), LengthForecast(), KNOWN, dataset=dataset(), tokenizer=Tokenizer())


def test_what_is_no_history_is_said(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        take_over(str(tmp_path / "none"), LengthForecast(), KNOWN)
    with pytest.raises(UserError, match="holds no history"):
        take_over(str(tmp_path), LengthForecast(), KNOWN)
