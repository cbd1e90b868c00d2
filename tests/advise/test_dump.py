"""Tokens of a dump, its cap, and what verl logged of its steps."""

import json

import numpy as np
import pytest

from tailsieve_verl.advise.dump import read_dump, told_cap
from tailsieve_verl.advise.fit import fit_workload
from tailsieve_verl.advise.steplog import GENERATION, MEAN_TOKENS, MOST_TOKENS, StepLog, read_steplog
from tailsieve_verl.errors import UserError

from .dumps import write_dump

CONSOLE = (
    "2026 INFO starting\n"
    "\x1b[36m(TaskRunnerV1 pid=12)\x1b[0m step:0 - val-core/x/acc:0.1\n"
    "\x1b[36m(TaskRunnerV1 pid=12)\x1b[0m step:1 - timing_s/gen:np.float64(22.5) - response_length/mean:102.2"
    " - perf/x:nan\n"
    "(TaskRunnerV1 pid=12) step:2 - timing_s/gen:1.5e+01 - timing_s/step:58.2\n"
)


def test_the_console_is_read_through_colours_and_prefixes(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(CONSOLE)
    log = read_steplog(path)
    assert log.get(GENERATION, [0, 1, 2, 3]) == {1: 22.5, 2: 15.0}
    assert log.get("perf/x", [1]) == {}  # not finite
    assert log.steps[2]["timing_s/step"] == 58.2


def test_the_file_logger_is_read(tmp_path):
    path = tmp_path / "m.jsonl"
    rows = [{"step": s, "data": {GENERATION: 10.0 + s, "name": "x"}} for s in (1, 2, 2)]
    rows[2]["data"][GENERATION] = 99.0  # a resumed run's second step 2
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + "{broken\n")
    assert read_steplog(path).get(GENERATION, [1, 2]) == {1: 11.0, 2: 99.0}


@pytest.mark.parametrize("text", ["", "hello\n", "step:1 - loss:0.5\n", '{"step": 1, "data": {}}\n'])
def test_a_log_without_generation_times_is_refused(tmp_path, text):
    path = tmp_path / "run.log"
    path.write_text(text)
    with pytest.raises(UserError, match="timing_s/gen"):
        read_steplog(path)


def test_a_log_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_steplog(tmp_path / "no.log")


def test_the_cap_is_told_by_a_pile_up():
    rng = np.random.default_rng(0)
    lengths = np.rint(rng.lognormal(6, 1, 4000)).astype(int)
    assert told_cap(lengths) is None
    assert told_cap(np.minimum(lengths, 1000)) == 1000
    cut = np.minimum(lengths, 1000)
    counted_again = np.where(cut == 1000, 1000 + rng.integers(-1, 2, cut.size) * (rng.random(cut.size) < 0.2), cut)
    assert told_cap(counted_again) == 1000
    assert told_cap(np.full(9, 16)) == 16


def dump(tmp_path, groups=None):
    groups = groups or [("a", [10, 12]), ("b", [20, 22])]
    return write_dump(tmp_path / "rollouts", dict.fromkeys((1, 2, 3), groups))


def test_without_a_tokenizer_characters_are_divided_by_four(tmp_path):
    trace = read_dump(dump(tmp_path))
    assert trace.tokens.max() == round((22 * 5 - 1) / 4)
    assert any("characters / 4" in remark for remark in trace.remarks)
    assert any("cap is not known" in remark for remark in trace.remarks)


def test_a_log_sets_the_scale_of_estimated_lengths_and_the_cap(tmp_path):
    log = StepLog("x", {s: {MEAN_TOKENS: 16.0, MOST_TOKENS: 22.0} for s in (1, 2, 3)})
    trace = read_dump(dump(tmp_path), log=log)
    assert trace.tokens.mean() == pytest.approx(16, abs=0.5)
    assert trace.cap == 22
    assert fit_workload(trace).lengths.tolist()[0] == [10, 12]


def test_a_given_cap_holds_estimated_lengths(tmp_path):
    trace = read_dump(dump(tmp_path), cap=20)
    assert (trace.cap, trace.tokens.max(), trace.truncated.sum()) == (20, 20, 6)


def test_only_the_last_steps(tmp_path):
    assert np.unique(read_dump(dump(tmp_path), last=2).step).tolist() == [2, 3]
    assert np.unique(read_dump(dump(tmp_path), last=9).step).tolist() == [1, 2, 3]


def test_a_tokenizer_counts_exactly_and_a_log_of_another_run_shows(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({"word": 0, "?": 1}, unk_token="?"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="?").save_pretrained(tmp_path / "tokenizer")
    folder, tokenizer = dump(tmp_path), str(tmp_path / "tokenizer")
    ours = StepLog("x", {s: {MEAN_TOKENS: 17.0, MOST_TOKENS: 23.0 + s} for s in (1, 2, 3)})
    trace = read_dump(folder, tokenizer=tokenizer, log=ours)
    assert trace.tokens[:4].tolist() == [10, 12, 20, 22]
    assert not any("in the log" in remark for remark in trace.remarks)
    other = StepLog("x", {s: {MEAN_TOKENS: 40.0} for s in (1, 2, 3)})
    assert any("40 in the log" in remark for remark in read_dump(folder, tokenizer=tokenizer, log=other).remarks)


def test_a_trace_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("prompt_id,step,tokens,cap\np,1,16,16\np,1,9,16\nq,1,3,16\nq,1,16,16\n")
    trace = read_dump(path)
    assert (trace.cap, trace.tokens.tolist(), trace.truncated.sum()) == (16, [16, 9, 3, 16], 2)


def test_what_is_no_dump_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_dump(tmp_path / "no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="rollout_data_dir"):
        read_dump(tmp_path / "empty")
    (tmp_path / "empty" / "1.jsonl").write_text("")
    with pytest.raises(UserError, match="no response"):
        read_dump(tmp_path / "empty")
    (tmp_path / "empty" / "1.jsonl").write_text('{"question": "x"}\n')
    with pytest.raises(UserError, match="line 1"):
        read_dump(tmp_path / "empty")
