"""The mathematical reward as verl calls it: from threads, with hostile answers among the others."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailsieve_verl.rewards import math as reward
from tailsieve_verl.rewards.math_pool import MathPool, WorkerGone


def score(response, gold, **extra_info):
    return reward.compute_score("set", response, gold, extra_info)


@pytest.mark.parametrize(
    ("response", "gold", "wanted", "verdict"),
    [
        (r"We add. \boxed{\frac{2}{4}}<END>", "0.5", 1.0, "right"),
        (r"We add. \boxed{3}<END>", "0.5", 0.0, "wrong"),
        (r"\boxed{1}<END> \boxed{2}", "2", 0.0, "wrong"),
        ("The answer is 5.", "5", 0.0, "no answer"),
        ("", "5", 0.0, "no answer"),
        (r"so it is \boxed{\frac{1}{", "1", 0.0, "no answer"),
        (r"\boxed{}", "5", 0.0, "no answer"),
    ],
)
def test_responses(response, gold, wanted, verdict):
    result = score(response, gold)
    assert result["score"] == result["acc"] == wanted
    assert result["verdict"] == verdict


def test_it_works_in_threads_and_for_many_at_once():
    cases = [(rf"\boxed{{{i}+{i}}}", str(2 * i if i % 3 else 2 * i + 1), i % 3 > 0) for i in range(1, 40)]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda case: score(case[0], case[1]), cases))
    assert [result["score"] for result in results] == [float(right) for _, _, right in cases]


HOSTILE = (r"9^{9^{9^9}}", r"\sum_{n=1}^{10^9} n^n", "(" * 900 + "1" + ")" * 900)


def test_hostile_answers_neither_hang_nor_harm_the_others():
    answers = [*HOSTILE, "2", "3"]
    start = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda answer: score(rf"\boxed{{{answer}}}", "2")["verdict"], answers))
    assert verdicts[-2:] == ["right", "wrong"]
    assert set(verdicts[:-2]) <= {"wrong", "timeout"}
    assert time.monotonic() - start < 120


def test_a_worker_lives_under_limits_of_the_machine():
    command = f"ulimit -t 3600 -v 8000000; exec {sys.executable} -m tailsieve_verl.rewards.math_worker"
    done = subprocess.run(["bash", "-c", command], input='["2", "1+1"]\n', capture_output=True, text=True, check=False)
    assert [json.loads(line) for line in done.stdout.splitlines()] == ["ready", "right"], done.stderr


def test_a_worker_that_misses_its_deadline_is_replaced():
    pool = MathPool(1, answer_s=60)
    try:
        assert pool.judge("2", "2") == "right"
        pool._answer_s = 0.3
        assert pool.judge("2", HOSTILE[0]) == "timeout"
        pool._answer_s = 60
        assert pool.judge("2", "1+1") == "right"
    finally:
        pool.close()


def test_a_worker_that_died_is_replaced():
    pool = MathPool(1)
    try:
        assert pool.judge("2", "2") == "right"
        worker = pool._idle.get()
        os.kill(worker._process.pid, signal.SIGKILL)
        pool._idle.put(worker)
        assert pool.judge("2", "2") == "timeout"
        assert pool.judge("2", "2") == "right"
    finally:
        pool.close()


def test_a_worker_that_cannot_start_is_said(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(WorkerGone):
        MathPool(1).judge("2", "2")


def test_a_right_answer_that_cannot_be_read_is_said_once_and_the_run_goes_on(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert score(r"\boxed{5}", "@@", index=7)["score"] == 0.0
        assert score(r"\boxed{@@}", "@@", index=7)["score"] == 1.0
        assert score(r"\boxed{5}", "%%&", index=8)["verdict"] == "unreadable gold"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "the right answer '@@' of set row 7 cannot be read as mathematics" in lines[0]
