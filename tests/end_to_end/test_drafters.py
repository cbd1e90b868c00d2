"""Real verl runs with drafters that have weights: what weight syncs do to them, and to the log-probabilities.

Rollout and training compute in float32 here, so that a log-probability that is wrong cannot hide in rounding.
"""

import math
import re

import pytest

from tailsieve_verl.records.read import read_steps
from tailsieve_verl.workloads import drafters
from tailsieve_verl.workloads.models import ensure_tiny

from .harness import MODEL, Run, write_data

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

SPEC = "trainer.v1.tailsieve.speculation"
#: Prompts have 20 to 40 tokens and long responses ask for 96 and more: many end where the model's length does.
LONGEST = 112
#: Scale of the target's logits: at temperature 1 it then says what a drafter says about every second time.
SHARP = 0.6
#: Largest difference of a token's probability, rollout against training, over all tokens of a step.
CLOSE = 1e-3


def started(folder, target, *extra, steps):
    """A run that is on its way; started again in the same folder, it goes on from its last checkpoint."""
    data = write_data(folder / "data", tool_every=1000)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return Run(
        folder / "out", data, "+tailsieve=fixed", "trainer.v1.tailsieve.q=2", "trainer.v1.tailsieve.m=1",
        f"actor_rollout_ref.model.path={target}", f"{rollout}.temperature=1.0", f"{rollout}.calculate_log_probs=True",
        f"{rollout}.logprobs_mode=raw_logprobs", f"{rollout}.dtype=float32",
        f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32", *extra, steps=steps,
    )  # fmt: skip


def ended(run):
    assert run.wait() == 0, run.log[-5000:]
    return run


def differences(run):
    """Of each step, the largest difference of a trained token's probability between rollout and training."""
    found = re.findall(r"training/rollout_probs_diff_max:(?:np\.float\d+\()?([0-9.e+-]+)", run.log)
    return [float(x) for x in found]


def hit_the_cap(steps):
    """Responses that ended because the model's longest sequence did."""
    facts = [facts for step in steps for facts in step["batch"].values()]
    return sum(
        prompt + response == LONGEST
        for f in facts
        for prompt, response in zip(f["prompt_tokens"], f["response_tokens"], strict=True)
    )


@pytest.fixture(scope="module", params=["none", "mtp"])
def method(request):
    return request.param


@pytest.fixture(scope="module")
def run(method, tmp_path_factory):
    folder = tmp_path_factory.mktemp(method)
    ensure_tiny(MODEL)
    target = drafters.make_target(MODEL, folder / "target", mtp=True, sharpness=SHARP)
    speculation = [f"{SPEC}.method=mtp", f"{SPEC}.depth={{bulk:2,tail:{{1:5,4:3}}}}"] if method == "mtp" else []
    return ended(started(
        folder, target, "actor_rollout_ref.actor.optim.lr=1e-9",
        f"actor_rollout_ref.rollout.max_model_len={LONGEST}", *speculation, steps=4,
    ))  # fmt: skip


def test_recomputed_log_probabilities_agree_with_rollout_ones_up_to_the_cap(run, method):
    steps = read_steps(run.out)
    assert hit_the_cap(steps) > 4
    found = differences(run)
    assert len(found) == len(steps)
    assert all(math.isfinite(x) and x < CLOSE for x in found), (method, found)


def test_a_head_of_the_checkpoint_keeps_its_weights_and_its_acceptance_over_weight_syncs(run, method):
    if method != "mtp":
        pytest.skip("no drafter")
    steps = read_steps(run.out)
    heads = [report["drafter"] for step in steps for report in step["drafting"].values()]
    assert heads[0][0][2] > 10_000
    assert all(head == heads[0] for head in heads)
    rates = [step["metrics"]["spec_accept_rate/bulk"] for step in steps]
    assert min(rates) > 0.7 * rates[0] > 0.1
    assert "tailsieve: speculation" not in run.log


@pytest.fixture(scope="module")
def ruined(tmp_path_factory):
    """A draft model that the fourth weight sync, which is before step 4, ruins; the policy learns."""
    folder = tmp_path_factory.mktemp("ruined")
    ensure_tiny(MODEL)
    target = drafters.make_target(MODEL, folder / "target", sharpness=SHARP)
    drafter = drafters.make_draft_model(target, folder / "drafter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", "tests.end_to_end.drafter_corruption")
        patch.setenv("TAILSIEVE_TEST_CORRUPT_SYNC", "4")
        return ended(started(
            folder, target, f"{SPEC}.method=draft_model", f"{SPEC}.model={drafter}", f"{SPEC}.depth=3",
            f"{SPEC}.on_alarm=off", "actor_rollout_ref.actor.optim.lr=1e-4", steps=6,
        ))  # fmt: skip


def test_a_draft_model_keeps_its_weights_over_weight_syncs(ruined):
    steps = read_steps(ruined.out)
    found = [report["drafter"] for step in steps[:3] for report in step["drafting"].values()]
    assert found[0][0][2] > 10_000
    assert all(fingerprint == found[0] for fingerprint in found)
    rates = [step["metrics"]["spec_accept_rate/bulk"] for step in steps[:3]]
    assert min(rates) > 0.7 * rates[0] > 0.1


def test_a_draft_model_that_a_sync_ruins_is_told_and_switched_off_on_the_routes_that_drafted(ruined):
    steps = read_steps(ruined.out)
    assert "the drafter's weights on replica" in ruined.log
    assert "drafting is switched off there" in ruined.log
    for number, step in enumerate(steps, 1):
        for report in step["drafting"].values():
            depths = {depth for _, depth, _ in report["steps"]}
            assert depths == ({3} if number <= 4 else {0}), number
        assert sum(g["status"] == "trained" for g in step["groups"]) == 8


def test_the_run_with_a_ruined_drafter_has_right_log_probabilities(ruined):
    """In every step, so the policy's own weights arrived as well: they change from step to step."""
    found = differences(ruined)
    assert len(found) == 6
    assert max(found) < CLOSE, found
    norms = [float(x) for x in re.findall(r"actor/grad_norm:(?:np\.float\d+\()?([0-9.e+-]+)", ruined.log)]
    assert min(norms) > 0


def test_a_draft_model_is_there_again_after_a_resume(tmp_path):
    ensure_tiny(MODEL)
    target = drafters.make_target(MODEL, tmp_path / "target", sharpness=SHARP)
    drafter = drafters.make_draft_model(target, tmp_path / "drafter")
    options = [f"{SPEC}.method=draft_model", f"{SPEC}.model={drafter}", f"{SPEC}.depth=3", "trainer.save_freq=1"]
    options.append("actor_rollout_ref.actor.optim.lr=1e-9")
    killed = started(tmp_path, target, *options, steps=5)
    try:
        killed.wait_for(lambda: killed.checkpoint() >= 2, "checkpoint 2")
    finally:
        killed.kill()
    again = killed.checkpoint() + 1
    steps = read_steps(ended(started(tmp_path, target, *options, steps=5)).out)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    heads = [report["drafter"] for step in steps for report in step["drafting"].values()]
    assert heads[0][0][2] > 10_000
    assert all(head == heads[0] for head in heads)
    rates = [step["metrics"]["spec_accept_rate/bulk"] for step in steps]
    assert min(rates[again - 1 :]) > 0.7 * rates[0] > 0.1
