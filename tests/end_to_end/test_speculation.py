"""A real run with drafts: verl, Ray, two vLLM replicas, n-gram drafts at a depth per pool, q and m changing.

Judged by what the engines counted, not by the configuration.
"""

import math

import pytest

from tailsieve_verl.records.read import read_steps

from .harness import Run, write_data

pytestmark = pytest.mark.end_to_end

STEPS = 6
SCHEDULE = "{3:[3,1],4:[0,0],5:[2,1]}"
TAIL, BULK = {1: 4, 5: 2}, 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speculation")
    data = write_data(folder / "data", tool_every=1000)
    spec = "trainer.v1.tailsieve.speculation"
    run = Run(
        folder / "out", data, "+tailsieve=fixed", "trainer.v1.tailsieve.q=2", "trainer.v1.tailsieve.m=1",
        f"trainer.v1.tailsieve.schedule={SCHEDULE}", f"{spec}.method=ngram",
        f"{spec}.depth={{bulk:1,tail:{{1:4,5:2}}}}",
        f"+{spec}.extra.prompt_lookup_max=3", f"+{spec}.extra.prompt_lookup_min=1",
        "actor_rollout_ref.rollout.temperature=1.0", "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs", steps=STEPS,
    )  # fmt: skip
    code = run.wait()
    assert code == 0, run.log[-5000:]
    return run


@pytest.fixture(scope="module")
def steps(run):
    return read_steps(run.out)


def table(depths, batch):
    return max((start, depth) for start, depth in depths.items() if start <= batch)[1]


def test_the_split_changed_and_every_batch_was_whole(steps):
    assert [s["plan"]["m"] for s in steps] == [0, 1, 1, 0, 0, 1]
    assert all(sum(g["status"] == "trained" for g in s["groups"]) == 8 for s in steps)


def test_every_replica_drafted_by_its_pool_s_table_in_every_step(steps):
    for step in steps:
        tail = set(range(2 - step["plan"]["m"], 2))
        for rank, report in step["drafting"].items():
            depths = TAIL if int(rank) in tail else {1: BULK}
            assert report["steps"], (step["step"], rank)
            for batch, depth, _ in report["steps"]:
                assert depth == table(depths, batch), (step["step"], rank, batch)
            for proposed, accepted, _ in report["drafts"]:
                assert accepted <= proposed <= max(depths.values())


def test_the_tail_pool_really_drafted_deeper(steps):
    def longest(step, rank):
        return max((d[0] for d in step["drafting"][str(rank)]["drafts"]), default=0)

    split = [s for s in steps if s["plan"]["m"]]
    assert max(longest(s, 1) for s in split) == 4
    assert max(longest(s, 0) for s in split) == 1


def test_metrics_by_pool_are_logged(steps):
    for step in steps:
        metrics = step["metrics"]
        assert metrics["spec_depth/bulk"] == BULK
        assert ("spec_depth/tail" in metrics) == bool(step["plan"]["m"])
        assert metrics["spec_accept_length/bulk"] >= 1


def test_rollout_log_probabilities_agree_with_recomputed_ones(run):
    """verl compares both over every trained token; the first step's weights are the same on both sides."""
    import re

    found = re.findall(r"training/rollout_probs_diff_mean:(?:np\.float\d+\()?([0-9.e+-]+)", run.log)
    assert len(found) >= STEPS - 1, run.log[-3000:]
    assert all(math.isfinite(float(x)) and float(x) < 0.02 for x in found), found
