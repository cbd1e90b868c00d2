"""Presence penalty and stop strings in a real vLLM engine: what they do to tokens and log-probabilities."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tailsieve_verl.workloads.cpu_run import environment
from tailsieve_verl.workloads.models import ensure_tiny

from .harness import MODEL
from .sampling_engine import BONUS

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def result():
    ensure_tiny(MODEL)
    script = Path(__file__).with_name("sampling_engine.py")
    run = subprocess.run(
        [sys.executable, str(script), str(MODEL)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, (run.stdout + run.stderr)[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def column(case, name):
    return [output[name] for output in case["outputs"]]


def repeats(case):
    return sum(len(tokens) - len(set(tokens)) for tokens in column(case, "tokens"))


def test_a_presence_penalty_keeps_responses_from_repeating_themselves(result):
    assert repeats(result["penalty"]) < repeats(result["plain"]) / 2


def test_a_penalty_holds_for_drafted_tokens_too(result):
    plain, drafted = result["bonus 0"], result["bonus 5"]
    assert plain["accepted"] == 0 < drafted["accepted"]
    assert column(drafted, "tokens") == column(plain, "tokens")
    assert np.abs(np.array(column(drafted, "logprobs")) - column(plain, "logprobs")).max() < 1e-4


def test_reported_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(result):
    """A response that repeats one token: p becomes p e^b / (1 - p + p e^b) from the second token on."""
    plain, bonus = (result[name]["outputs"][0] for name in ("plain", "bonus 5"))
    assert len({*plain["tokens"][:8], *bonus["tokens"][:8]}) == 1
    p = np.exp(plain["logprobs"][:8])
    wanted = np.log(p * np.exp(BONUS) / (1 - p + p * np.exp(BONUS)))
    assert bonus["logprobs"][0] == pytest.approx(plain["logprobs"][0], abs=1e-4)
    assert bonus["logprobs"][1:8] == pytest.approx(wanted[1:], abs=1e-4)


def test_a_stop_string_ends_a_response_at_the_token_that_completes_it(result):
    """The string stays in tokens and text. With drafts, what was accepted in the same step behind it stays as well."""
    (reference,) = column(result["plain"], "tokens")[:1]
    (plain,), (drafted,) = result["stop 0"]["outputs"], result["stop 5"]["outputs"]
    for output in (plain, drafted):
        assert output["why"] == ["stop", result["stop"]]
        assert output["text"].endswith(result["stop"])
        assert output["text"].count(result["stop"]) == 1
        assert output["tokens"] == reference[: len(output["tokens"])]
        assert len(output["logprobs"]) == len(output["tokens"]) < len(reference)
    assert 0 <= len(drafted["tokens"]) - len(plain["tokens"]) <= 5
