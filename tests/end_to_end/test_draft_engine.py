"""Live draft depths in a real vLLM engine: taken at once, by batch size; output and log-probabilities as without."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from tailsieve_verl.workloads.cpu_run import environment
from tailsieve_verl.workloads.models import ensure_tiny

from .harness import MODEL

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    ensure_tiny(MODEL)
    script = Path(__file__).with_name("draft_engine.py")
    run = subprocess.run(
        [sys.executable, str(script), str(MODEL), str(tmp_path_factory.mktemp("draft"))],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, (run.stdout + run.stderr)[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def test_the_table_in_force_is_the_one_asked_for_from_the_next_step_on(result):
    assert set(result["launch"]["table"]) == {5}
    for entry, asked in zip(result["greedy"], ([5], [2], [0], [5, 5, 5, 1], [3]), strict=True):
        assert entry["table"] == (asked + [asked[-1]] * 9)[:9]
        assert entry["steps"]
        for batch, depth, _ in entry["steps"]:
            assert depth == entry["table"][batch]


def test_drafts_proposed_never_exceed_the_table_and_reach_it(result):
    for entry in result["greedy"]:
        longest = max((proposed for proposed, _, _ in entry["drafts"]), default=0)
        assert longest == entry["table"][4]  # four requests ran almost all the time


def test_greedy_output_is_token_identical_at_every_depth(result):
    plain = result["greedy"][2]["tokens"]
    assert all(entry["tokens"] == plain for entry in result["greedy"])
    reference = result["greedy"][2]["logprobs"]
    for entry in result["greedy"]:
        assert np.abs(np.array(entry["logprobs"]) - reference).max() < 1e-4


def test_step_times_are_counted_for_the_depths_used(result):
    for entry in result["greedy"]:
        assert {(b, d) for b, d, _, _ in entry["times"]} <= {(b, d) for b, d, _ in entry["steps"]}
        assert all(0 < seconds < 60 for _, _, _, seconds in entry["times"])


def test_wrong_tables_are_refused_by_the_engine(result):
    assert len(result["refused"]) == 3
    assert "depths must be in 0..5" in result["refused"][0]


def test_sampled_output_has_the_same_distribution_with_drafts(result):
    """Chi-square on tokens by position, and on the first two together; a wrong temperature at verification fails it."""
    plain, drafted = result["sampled"]["0"], result["sampled"]["5"]
    assert sum(count for proposed, accepted, count in drafted["drafts"] if accepted) > 100
    for position in [*range(4), slice(0, 2)]:
        tables = [Counter(str(tokens[position]) for tokens in side["tokens"]) for side in (plain, drafted)]
        common = [token for token, n in (tables[0] + tables[1]).items() if n >= 20]
        counts = np.array([[table[token] for token in common] for table in tables])
        rest = np.array([[len(plain["tokens"])], [len(drafted["tokens"])]]) - counts.sum(axis=1, keepdims=True)
        counts = np.hstack([counts, rest]) if rest.min() > 5 else counts
        if counts.shape[1] > 1:
            assert chi2_contingency(counts).pvalue > 1e-4, (position, counts)


def test_sampled_log_probabilities_depend_on_the_prefix_alone(result):
    """The same tokens have the same log-probability whether they were drafted or not."""
    seen = {}
    for side in result["sampled"].values():
        for tokens, logprobs in zip(side["tokens"], side["logprobs"], strict=True):
            for i, value in enumerate(logprobs):
                assert np.isfinite(value)
                seen.setdefault(tuple(tokens[: i + 1]), []).append(value)
    spread = [max(values) - min(values) for values in seen.values() if len(values) > 1]
    assert len(spread) > 20
    assert max(spread) < 1e-3
