"""A real run: stock verl, Ray, two vLLM replicas on the CPU, q and m changing; judged by its own records."""

import itertools
import json
from collections import Counter

import pandas as pd
import pytest

from tailsieve_verl.records.read import read_run, read_steps

from .harness import GROUP, N, Run, write_data
from .loops import TURNS

pytestmark = pytest.mark.end_to_end

STEPS = 8
SCHEDULE = "{5:[1,1],6:[0,0],7:[2,1]}"  # steps 3 and 4 run 3 tail groups because a callback pins them
CALLBACKS = (
    "[{_target_:tests.end_to_end.run_callbacks.PinsTwoSteps,q:3,m:1},"
    "{_target_:tests.end_to_end.run_callbacks.Raises,in_step:2},"
    "{_target_:tailsieve_verl.callbacks.JsonlRecorder,path:second.jsonl},"
    "{_target_:tailsieve_verl.callbacks.PrometheusExporter,port:0},"
    "{_target_:tailsieve_verl.callbacks.EarlyWarning}]"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    data = write_data(folder / "data", chat_every=16)
    rows = pd.read_parquet(data / "train.parquet")
    rows[:-N].to_parquet(data / "train.parquet")
    rows[-N:].to_parquet(data / "train-warmup.parquet")
    run = Run(
        folder / "out", data, "+tailsieve=fixed", "trainer.v1.tailsieve.q=2", "trainer.v1.tailsieve.m=1",
        f"trainer.v1.tailsieve.schedule={SCHEDULE}", f"trainer.v1.tailsieve.callbacks={CALLBACKS}",
        "trainer.v1.tailsieve.sampling.presence_penalty=1.5", "trainer.v1.tailsieve.sampling.stop=['<END>']",
        f"trainer.v1.tailsieve.warm_up={data}/train-warmup.parquet", "trainer.test_freq=3", steps=STEPS,
    )  # fmt: skip
    code = run.wait()
    assert code == 0, run.log[-5000:]
    return run


@pytest.fixture(scope="module")
def steps(run):
    return read_steps(run.out)


def by_status(step, status):
    return [g for g in step["groups"] if g["status"] == status]


def kind(group):
    """The agent loop of a group, by the row of its prompt (see ``write_data``)."""
    return {5: "tool", 9: "chat"}.get(int(group["key"].rsplit("/", 1)[1]) % 16, "length")


def test_all_steps_are_recorded_with_the_scheduled_splits(steps):
    assert [s["step"] for s in steps] == list(range(1, STEPS + 1))
    assert [s["plan"]["counts"]["tail"] for s in steps] == [0, 2, 2, 3, 1, 0, 0, 2]
    assert [s["plan"]["counts"]["residual"] for s in steps] == [0, 0, 0, 0, 2, 1, 0, 0]
    assert [s["plan"]["m"] for s in steps] == [0, 1, 1, 1, 1, 0, 0, 1]


def test_conservation(steps):
    for step in steps:
        counts = step["plan"]["counts"]
        carried = counts["tail"] + counts["residual"]
        assert carried + counts["fresh"] == N + step["plan"]["left_over"]
    assert steps[-1]["plan"]["left_over"] == 0


def test_every_consumed_group_is_complete_and_of_the_current_weights(steps):
    for step in steps:
        trained = by_status(step, "trained")
        assert len(trained) == N
        assert set(step["batch"]) == {str(g["prompt"]) for g in trained}
        for facts in step["batch"].values():
            assert len(facts["response_tokens"]) == GROUP
            assert facts["min_version"] == facts["max_version"] == step["step"] - 1
            assert min(facts["response_tokens"]) > 0


def test_pools_are_kept_apart(steps):
    for step in steps:
        m = step["plan"]["m"]
        for group in step["groups"]:
            used = {r for r in group["replicas"] if r >= 0}
            allowed = {1} if group["route"] == "tail" else {0, 1} if m == 0 else {0}
            assert used <= allowed


def test_stragglers_are_the_next_tail_and_residual_groups_in_order(steps):
    for before, after in itertools.pairwise(steps):
        cut = {g["prompt"] for g in by_status(before, "cut")}
        tail = [g["prompt"] for g in after["groups"] if g["route"] == "tail"]
        residual = [g["prompt"] for g in after["groups"] if g["route"] == "residual"]
        assert cut == {*tail, *residual}


def test_carried_groups_are_generated_from_their_prompt_alone(steps):
    """The second attempt's prompt has the length of the first one's: no token of the first attempt is in it."""
    prompts = {}
    for step in steps:
        for prompt, facts in step["batch"].items():
            prompts[int(prompt)] = facts
    carried = [g for step in steps for g in by_status(step, "cut")]
    assert carried
    lengths = {}
    for facts in prompts.values():
        assert len(set(facts["prompt_tokens"])) == 1
    for group in carried:
        assert group["prompt"] in prompts
        lengths[group["prompt"]] = prompts[group["prompt"]]["prompt_tokens"][0]
    uncarried = [f["prompt_tokens"][0] for p, f in prompts.items() if p not in lengths]
    assert max(lengths.values()) <= max(uncarried) + 4  # prompts differ by a few digits only


def test_prompts_are_trained_once_each(steps):
    trained = Counter(g["prompt"] for step in steps for g in by_status(step, "trained"))
    assert set(trained.values()) == {1}
    assert set(trained) == set(range(N * STEPS))


def test_recorded_tokens_are_the_trained_ones(steps):
    """The router's count and the store's agree wherever a session has one turn."""
    compared = 0
    for step in steps:
        for group in by_status(step, "trained"):
            stored = step["batch"][str(group["prompt"])]["response_tokens"]
            if group["tokens"] == stored:
                compared += 1
            else:  # several turns, of which the last is trained
                turns = {"tool": 2, "chat": TURNS}[kind(group)]
                assert group["tokens"] == [turns * tokens for tokens in stored]
    assert compared > N


def test_aborted_responses_are_not_taken_for_complete(steps):
    """An aborted response ends too, and brings the tokens it had reached. (A few may end by themselves meanwhile.)"""
    late = [g for s in steps for g in by_status(s, "cut") if max(t or 0.0 for t in g["finished_s"]) > s["cut_s"]]
    assert late
    assert sum(not all(g["complete"]) for g in late) > len(late) / 2


def test_a_session_inside_a_tool_is_cut_as_well(run, steps):
    """Prompts with a 4 s tool are cut long before the tool returns, and the step does not wait for it."""
    cut = [(s, g) for s in steps for g in by_status(s, "cut") if kind(g) == "tool"]
    assert cut
    for step, _ in cut:
        assert step["abort_s"] < 2.0
    assert "Error in _run_prompt" not in run.log


def test_a_session_between_turns_or_on_its_way_is_cut_as_well(steps):
    """Conversations without a pause: when the cut comes, turns are running, arriving and about to be asked for."""
    cut = [(s, g) for s in steps for g in by_status(s, "cut") if kind(g) == "chat"]
    assert any(not all(group["complete"]) for _, group in cut)
    assert all(step["abort_s"] < 2.0 for step, _ in cut)


def test_our_sampling_parameters_reach_the_agent_loops(run):
    given = [
        json.loads(line.split("[loop] sampling ")[1]) for line in run.log.splitlines() if "[loop] sampling" in line
    ]
    penalties = {entry.pop("presence_penalty", None) for entry in given}
    assert penalties == {1.5, None}  # training, validation
    assert all(entry["stop"] == ["<END>"] for entry in given)


def test_the_warm_up_batch_was_generated_and_not_trained(run, steps):
    assert len([line for line in run.log.splitlines() if f"[tailsieve] warm-up: {N} groups in" in line]) == 1
    trained = {int(g["key"].rsplit("/", 1)[1]) for step in steps for g in by_status(step, "trained")}
    assert not trained & set(range(96 - N, 96))


def test_nothing_is_logged_as_an_error(run):
    for line in run.log.splitlines():
        assert "ERROR" not in line or "tailsieve" not in line, line
    assert run.log.count("Traceback") == 1  # of the callback that raises


def test_callbacks_were_called_in_order_and_what_they_asked_for_is_in_the_reasons(run, steps):
    words = "q=3, m=1 pinned by PinsTwoSteps (for two steps)"
    assert [words in s["plan"]["reason"] for s in steps] == [False, False, True, True, False, False, False, False]
    assert [words in s["decision"]["reason"] for s in steps] == [False, True, True, False, False, False, False, False]
    calls = [json.loads(line) for line in (run.out / "calls.jsonl").read_text().splitlines()]
    assert (calls[0]["hook"], calls[-1]) == ("on_run_start", {"hook": "on_run_end", "step": None, "failure": None})
    hooks = [call["hook"] for call in calls if call["step"] == 4]
    assert sorted(hooks[2:5]) == ["on_cut", "on_pool_done", "on_pool_done"]
    assert hooks[:2] + hooks[5:] == ["on_plan", "on_dispatch", "on_step_observed", "on_decision", "on_step_end"]


def test_a_callback_that_raises_is_switched_off_and_the_others_go_on(run, steps):
    assert (
        run.log.count("callback Raises failed in on_plan in step 2: RuntimeError: on purpose; it is switched off") == 1
    )
    second = read_run(run.out / "second.jsonl")
    assert [s["decision"] for s in second.steps] == [s["decision"] for s in steps]
    assert [s["groups"] for s in second.steps] == [s["groups"] for s in steps]
    assert "Prometheus metrics at http://127.0.0.1:" in run.log


def test_validation_ran_and_changed_nothing(run, steps):
    assert run.log.count("Final validation metrics") == 1
    assert "val-core" in run.log or "val-aux" in run.log
    assert [s["metrics"]["carried_next"] for s in steps] == [s["plan"]["left_over"] for s in steps]


def test_the_readable_lines(run):
    lines = [line for line in run.log.splitlines() if "[tailsieve] step" in line]
    assert len(lines) == STEPS
    assert all(word in lines[3] for word in ("reward=", "length=", "q=3", "m=1", "T_tail=", "T_bulk=", "carried="))
    assert "[tailsieve] done: 8 steps" in run.log


def test_metrics_reach_verl_s_tracking(run):
    for name in ("tail_groups", "t_bulk_s", "overhead_share", "bias/ks", "idle_fraction/bulk"):
        assert f"tailsieve/{name}" in run.log
