"""Live draft depths in a real vLLM engine, with each kind of drafter that vLLM's CPU build runs.

Depths are taken at once, by batch size; output and log-probabilities are as without drafts; a drafter that is lost is
noticed. One engine start for each kind.
"""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from tailsieve_verl.workloads.cpu_run import environment
from tailsieve_verl.workloads.models import ensure_tiny

from .draft_engine import SEATS, TABLES
from .harness import MODEL, ROOT

pytestmark = pytest.mark.end_to_end

KINDS = ("ngram", "draft_model", "mtp", "dflash", "eagle3")
PLAIN = TABLES.index([0])


def started(kind, folder):
    ensure_tiny(MODEL)
    run = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.draft_engine", kind, str(MODEL), str(folder)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, (run.stdout + run.stderr)[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def longest(step):
    return max((proposed for proposed, _, _ in step["drafts"]), default=0)


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def result(kind, tmp_path_factory):
    return started(kind, tmp_path_factory.mktemp(kind))


def test_the_table_in_force_is_the_one_asked_for_from_the_next_step_on(result):
    assert set(result["launch"]["table"]) == {5}
    for entry, asked in zip(result["greedy"], TABLES, strict=True):
        assert entry["table"] == (asked + [asked[-1]] * SEATS)[: SEATS + 1]
        assert entry["steps"]
        for batch, depth, _ in entry["steps"]:
            assert depth == entry["table"][batch]


def test_drafts_proposed_never_exceed_the_table_and_reach_it(result):
    for entry in result["greedy"]:
        often = max(depth for _, depth, count in entry["steps"] if count > 2)
        scheduled = max(depth for _, depth, _ in entry["steps"])
        assert often <= longest(entry) <= scheduled


def test_drafts_are_accepted_and_rejected_at_every_position(kind, result):
    """Otherwise the other tests would say little."""
    sides = [result["greedy"][0], result["sampled"]["5"]]
    accepted = {taken for side in sides for proposed, taken, _ in side["drafts"] if proposed == 5}
    assert accepted == set(range(6)) or kind == "ngram"


def test_greedy_output_is_token_identical_at_every_depth(result):
    plain = result["greedy"][PLAIN]["tokens"]
    assert all(entry["tokens"] == plain for entry in result["greedy"])
    reference = result["greedy"][PLAIN]["logprobs"]
    for entry in result["greedy"]:
        assert np.abs(np.array(entry["logprobs"]) - reference).max() < 1e-4


def test_step_times_are_counted_for_the_depths_used(result):
    for entry in result["greedy"]:
        assert {(b, d) for b, d, _, _ in entry["times"]} <= {(b, d) for b, d, _ in entry["steps"]}
        assert all(0 < seconds < 60 for _, _, _, seconds in entry["times"])


def test_wrong_tables_are_refused_by_the_engine(result):
    assert len(result["refused"]) == 3
    assert "depths must be in 0..5" in result["refused"][0]


def test_the_drafter_s_own_weights_are_fingerprinted(kind, result):
    fingerprints = [entry["drafter"] for entry in result["greedy"]]
    assert all(found == fingerprints[0] for found in fingerprints)
    if kind == "ngram":
        assert fingerprints[0] == []
    else:
        assert all(count > 0 and size > 0 for _, size, count in fingerprints[0])


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
    assert len(spread) > 10
    assert max(spread) < 1e-3


def test_a_drafter_corrupted_between_two_steps_is_told_and_switched_off(kind, result):
    if kind != "draft_model":
        pytest.skip("the watch is the same for every drafter")
    before, steady, corrupted, after = result["watched"]
    assert before["said"] == steady["said"] == []
    assert min(s["metrics"]["spec_accept_rate/bulk"] for s in (before, steady)) > 0.5
    assert corrupted["metrics"]["spec_accept_rate/bulk"] < 0.03
    said = " ".join(corrupted["said"])
    assert "the drafter's weights on replica 0 changed" in said
    assert "speculation on the bulk route" in said
    assert "drafting is switched off there" in said
    assert [longest(step) for step in (before, steady, corrupted, after)] == [3, 3, 3, 0]
    assert after["said"] == []
    for step in result["watched"]:
        assert step["tokens"] == result["greedy"][PLAIN]["tokens"]


@pytest.mark.slow
def test_a_drafter_with_random_weights_is_told_in_the_first_step_and_switched_off(tmp_path):
    first, *later = started("random", tmp_path)["watched"]
    assert "the drafter's weights are lost or wrong; drafting is switched off there" in " ".join(first["said"])
    assert longest(first) == 3
    assert all(longest(step) == 0 and step["said"] == [] for step in later)
    assert all(step["tokens"] == first["tokens"] for step in later)
