"""Asking, grading, recording and counting, against a worker without an engine."""

import json
import math
import sys
import tempfile
from pathlib import Path

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.evaluate.benchmarks import Problem, read_benchmark
from tailsieve_verl.evaluate.records import Answer, Records
from tailsieve_verl.evaluate.run import REWARD, Sampling, ask, count, grade, load_reward, missing, settings_of
from tailsieve_verl.evaluate.table import figures, table3
from tailsieve_verl.markdown import markdown_table
from tailsieve_verl.replay.engine import EngineSpec, Place

from . import questions

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


@pytest.fixture(autouse=True)
def logs_with_the_test(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def bench(tmp_path):
    return read_benchmark(f"made@2={questions.write(tmp_path / 'q.parquet', 5)}", tmp_path, samples=3)


def run(bench, records, *, fault=None, replicas=2, reward=questions.equal, stall_s=20.0):
    def spec(longest):
        assert longest == 4
        return EngineSpec(Path("model"), extra={"fault": fault})

    wanted = missing([bench], records)
    places = [Place()] * replicas
    sampling = Sampling()
    return list(
        ask(wanted, records, sampling, reward, lambda p: [1, 2, 3, 4], spec, places, stall_s=stall_s, worker=FAKE)
    )


def test_every_answer_is_drawn_graded_and_kept(bench, tmp_path):
    records = Records(tmp_path / "out")
    records.folder.mkdir()
    answers = run(bench, records)
    assert len(answers) == 15
    kept = records.read("made")
    assert sorted(kept) == [(p, s) for p in range(5) for s in range(3)]
    for (problem, sample), answer in kept.items():
        assert answer.seed == Sampling().seed_of(f"made/{problem}/{sample}")
        assert answer.right == bool(answer.seed % 3) == (answer.text == "right")
        assert answer.tokens == 4
    found = count("a", [bench], records)
    verdicts = [[kept[p, s].right for s in range(3)] for p in range(5)]
    by_hand = [1 - math.comb(3 - sum(v), 2) / math.comb(3, 2) for v in verdicts]
    assert found.scores["made"].value == pytest.approx(sum(by_hand) / 5)
    assert found.tokens["made"] == 4
    assert found.cut["made"] == pytest.approx(sum(not a.right for a in answers) / 15)
    assert found.faults == {}


def test_an_evaluation_that_was_stopped_goes_on_with_the_same_answers(bench, tmp_path):
    whole, broken = Records(tmp_path / "whole"), Records(tmp_path / "broken")
    for records in (whole, broken):
        records.folder.mkdir()
    run(bench, whole)
    with pytest.raises(UserError, match=r"worker ended \(status 4\).*\n?.*out of memory"):
        run(bench, broken, fault="dies later", replicas=1)
    before = broken.read("made")
    assert len(before) == 2
    assert count("a", [bench], broken).faults["made"] == "5 of 5 problems have fewer than 2 answers"
    with (broken.folder / "made.jsonl").open("a") as file:
        file.write('{"problem": 4, "sam')  # torn by a crash
    assert len(run(bench, broken)) == 13
    assert broken.read("made") == whole.read("made")
    assert run(bench, broken) == []


def test_answers_with_separators_of_unicode_and_answers_drawn_twice_are_read(tmp_path):
    records = Records(tmp_path)
    for text in ("a\u2028b", "c\x85d\u2029", "e\r\nf\x0c", ""):
        records.append("made", Answer(0, 0, True, 1.0, text, 1, "stop", 0))
        assert records.read("made")[0, 0].text == text
    assert len(records.read("made")) == 1


def test_nothing_waits_for_ever(bench, tmp_path):
    records = Records(tmp_path)
    with pytest.raises(UserError, match="no answer has come for 1 s, with 13 under way; the answers so far are kept"):
        run(bench, records, fault="stalls", replicas=1, stall_s=1.0)
    assert len(records.read("made")) == 2


def test_an_engine_that_does_not_start_is_quoted(bench, tmp_path):
    with pytest.raises(UserError, match="no such model"):
        run(bench, Records(tmp_path), fault="dies")


def test_grading(bench):
    problem = bench.problems[0]
    assert grade(questions.equal, problem, "right") == (1.0, True, "")
    assert grade(questions.as_dict, problem, "right") == (0.5, True, "")
    assert grade(questions.as_dict, problem, "") == (-0.5, False, "")
    value, right, why = grade(questions.failing, problem, "right")
    assert math.isnan(value)
    assert (right, why) == (False, "RuntimeError: no verdict")


def test_a_failing_reward_function_is_counted_and_said(bench, tmp_path):
    records = Records(tmp_path)
    run(bench, records, reward=questions.failing)
    found = count("a", [bench], records)
    assert found.scores["made"].value == 0
    assert found.faults["made"] == (
        "the reward function failed on 15 of 15 answers, counted as wrong (RuntimeError: no verdict)"
    )


def test_a_gold_answer_that_cannot_be_read_is_said(bench, tmp_path):
    records = Records(tmp_path)
    run(bench, records, reward=questions.unreadable)
    assert (
        "the right answer of 5 of 5 problems cannot be read (first: problem 0 of"
        in count("a", [bench], records).faults["made"]
    )


def test_a_reward_function_that_is_not_there():
    assert load_reward("tests.evaluate.questions:equal") is questions.equal
    for spec in ("no.such:f", "tests.evaluate.questions:nothing", "text"):
        with pytest.raises(UserError, match="cannot be loaded"):
            load_reward(spec)


def test_answers_of_other_settings_are_not_continued(bench, tmp_path):
    records = Records(tmp_path / "out")
    first = settings_of("model", [bench], Sampling(), "r")
    records.check_settings(first)
    records.check_settings(first)
    more = {**first, "questions": {"other": "abc"}}
    records.check_settings(more)
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["questions"] == {
        "made": bench.checksum,
        "other": "abc",
    }
    for changed, sentence in (
        (settings_of("model", [bench], Sampling(temperature=1.0), "r"), "temperature=0.7, and it is 1.0 now"),
        (settings_of("other", [bench], Sampling(), "r"), "model=model, and it is other now"),
        ({**first, "questions": {"made": "changed"}}, "holds answers to other questions of made: the file or --limit"),
    ):
        with pytest.raises(UserError, match=sentence):
            records.check_settings(changed)


def test_settings_are_told_from_questions_of_the_same_name_and_damaged_ones_are_said(tmp_path):
    records = Records(tmp_path)
    first = {"seed": 1, "questions": {"seed": "abc"}}
    records.check_settings(first)
    with pytest.raises(UserError, match="holds answers with seed=1, and it is 2 now"):
        records.check_settings({**first, "seed": 2})
    for text in ("", "[]", "{}", '{"questions": 1}'):
        (tmp_path / "settings.json").write_text(text)
        with pytest.raises(UserError, match=r"settings\.json is damaged"):
            records.check_settings(first)


def test_table_3(tmp_path):
    made = read_benchmark(f"made={questions.write(tmp_path / 'q.parquet', 4)}", tmp_path)
    evaluations = []
    for label, right in (("base", 1), ("tailsieve", 3)):
        records = Records(tmp_path / label)
        records.folder.mkdir()
        for problem in range(4):
            records.append("made", Answer(problem, 0, problem < right, 1.0, "", 10, "stop", 0))
        evaluations.append(count(label, [made], records))
    rows = table3(evaluations, [made])
    assert rows[0] == {"checkpoint": "base", "made pass@1": "25.00 ±25.00"}
    assert rows[1] == {"checkpoint": "tailsieve", "made pass@1": "75.00 ±25.00 (+50.00)"}
    assert markdown_table(rows).splitlines()[2] == "| base | 25.00 ±25.00 |"
    numbers = figures(evaluations, [made])
    assert [(n["pass_at_k"], n["change"], n["samples"]) for n in numbers] == [(0.25, 0.0, 4), (0.75, 0.5, 4)]


def test_the_default_grades_mathematics():
    problem = Problem(({"role": "user", "content": "?"},), "0.5", "made/up")
    reward = load_reward(REWARD)
    assert grade(reward, problem, r"so \boxed{\frac{1}{2}}<END>") == (1.0, True, "right")
    assert grade(reward, problem, "one half")[:2] == (0.0, False)
