"""The code reward as verl calls it, on KodCode's format."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.rewards import code as reward
from tailsieve_verl.rewards.sandbox import Outcome
from tailsieve_verl.workloads.prepare import prepare
from tailsieve_verl.workloads.sources import SOURCES

from ..workloads import samples

ROWS = prepare(SOURCES["kodcode"], samples.KODCODE, "train", where="sample").train


def score(response, row=ROWS[0], **limits):
    return reward.compute_score(
        row["data_source"], response, row["reward_model"]["ground_truth"], row["extra_info"], **limits
    )


@pytest.mark.parametrize("row", [0, 1])
def test_the_data_set_s_own_solutions_pass(row):
    solution = samples.KODCODE[row]["solution"]
    for response in (f"Reasoning.\n```python\n{solution}\n```\n<END>", f"Reasoning.\n\n{solution}\n<END>"):
        assert score(response, ROWS[row]) == {"score": 1.0, "acc": 1.0, "verdict": "passed", "error": ""}


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ("```python\ndef add(a, b):\n    return a - b\n```<END>", "failed"),
        ("```python\ndef sub(a, b):\n    return a - b\n```<END>", "failed"),
        ("Addition is left to the reader.<END>", "no code"),
        ("", "no code"),
        ("```python\ndef add(a, b):\n    return a +", "no code"),
        ("```python\nimport os\nos._exit(0)\n```", "died"),
    ],
)
def test_other_responses_do_not(response, verdict):
    result = score(response)
    assert (result["score"], result["acc"], result["verdict"]) == (0.0, 0.0, verdict)
    json.dumps(result)


def test_limits_can_be_set():
    assert score("```python\nimport time\ntime.sleep(100)\n```\ndef", wall_s=0.5)["verdict"] in ("time", "no code")
    sleeps = "```python\nimport time\ntime.sleep(100)\ndef add(a, b):\n    return a + b\n```"
    assert score(sleeps, wall_s=0.8)["verdict"] == "time"


def test_many_at_once_from_threads():
    responses = [f"```python\ndef add(a, b):\n    return a + b + {i % 2}\n```" for i in range(12)]
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(score, responses))
    assert [result["score"] for result in results] == [1.0, 0.0] * 6


def test_without_pytest_it_says_so(monkeypatch):
    monkeypatch.setattr(reward, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pytest"):
        score("def add(a, b): return a + b")


def test_what_the_kernel_does_not_grant_is_said_once(monkeypatch, caplog):
    missing = ("sockets and processes can be made (Function not implemented)",)
    monkeypatch.setattr(reward, "run_tests", lambda *args: Outcome(True, "passed", missing=missing))
    with caplog.at_level(logging.WARNING):
        score("def add(a, b): return a + b")
        score("def add(a, b): return a + b")
    (record,) = caplog.records
    assert "not fully confined on this machine: sockets and processes can be made" in record.getMessage()
