import json

import numpy as np
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.replay import run
from tailsieve_verl.replay.calibrate import calibrate
from tailsieve_verl.replay.engine import run_together
from tailsieve_verl.replay.pick import pick
from tailsieve_verl.replay.policies import longest_groups, place
from tailsieve_verl.replay.predict import largest_batch, predict
from tailsieve_verl.replay.run import Verdict, group_prompts, ranking, read_log, replay, study, verdicts

LENGTHS = np.array([[30, 4], [9, 12], [3, 25], [7, 7]])
POLICIES = ["uniform_group", "verl_default", "fixed:q=1,m=1"]


@pytest.fixture(scope="module")
def assignments():
    return {name: place(name, LENGTHS, LENGTHS, 2) for name in POLICIES}


@pytest.mark.parametrize("prompt_tokens", [8, 40])
def test_the_prediction_equals_a_replay_on_an_engine_of_known_costs(two, assignments, prompt_tokens):
    calibration = calibrate(two, tokens=16, repeats=1)
    for name, where in assignments.items():
        prompts = group_prompts(4, prompt_tokens, 100)
        done = replay(LENGTHS, where, two, prompts, policy=name)
        predicted = predict(LENGTHS, where, 2, calibration, prompt_tokens=prompt_tokens)
        np.testing.assert_allclose(predicted, done.finish_s, rtol=2e-3)
        assert done.makespan_s == np.max(done.finish_s) == max(done.replica_s)
        assert np.all(np.array(done.first_s) <= np.array(done.finish_s))


def test_policies_take_turns_in_going_first(two, assignments):
    order = []
    study(LENGTHS, assignments, two, repeats=3, prompt_tokens=4, tick=lambda what, done, total: order.append(what))
    first = [order[3 * repeat] for repeat in range(3)]
    assert first == POLICIES
    assert order[-1] == "done"


def test_an_interrupted_study_goes_on_where_it_stopped(two, assignments, tmp_path):
    log = tmp_path / "runs.jsonl"

    def stop(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(LENGTHS, assignments, two, repeats=1, prompt_tokens=4, log=log, tick=stop)
    kept = log.read_text()
    assert len(kept.splitlines()) == 2
    log.write_text(kept + '{"policy": "cut sho')
    runs = study(LENGTHS, assignments, two, repeats=1, prompt_tokens=4, log=log)
    assert len(runs) == len(read_log(log)) == 3
    assert log.read_text().startswith(kept)
    again = study(LENGTHS, assignments, two, repeats=1, prompt_tokens=4, log=log)
    assert again == runs
    study(LENGTHS + 1, assignments, two, repeats=1, prompt_tokens=4, log=log)
    assert len(read_log(log)) == 6  # another load is another study


def test_the_warm_up_meets_every_batch_size_the_engine_has(two, monkeypatch):
    seen = []
    monkeypatch.setattr(run, "run_together", lambda replicas, loads: seen.extend(run_together(replicas, loads)))
    run.warm_up(two, 40)
    assert len(seen) == 2
    assert [step[1] for step in seen[0].steps] == list(range(16, 0, -1))


def test_shapes_that_differ_are_refused(two):
    with pytest.raises(ValueError, match="must agree"):
        replay(LENGTHS, np.zeros((4, 3), dtype=int), two, group_prompts(4, 4, 100))
    with pytest.raises(ValueError, match="replicas in"):
        replay(LENGTHS, np.full((4, 2), 2), two, group_prompts(4, 4, 100))


def test_only_pairs_that_differ_clearly_are_ranked():
    def verdict(measured, predicted):
        return Verdict("p", measured, measured, measured, predicted, 1)

    assert ranking([verdict(10.0, 10.0), verdict(10.2, 9.0), verdict(12.0, 11.0)]) == (2, 2)
    assert ranking([verdict(10.0, 11.0), verdict(12.0, 10.0)]) == (0, 1)


def test_verdicts_are_of_the_median(two, assignments):
    runs = study(LENGTHS, assignments, two, repeats=2, prompt_tokens=4)
    found = verdicts(runs, dict.fromkeys(POLICIES, 1.0))
    assert [v.policy for v in found] == POLICIES
    assert found[0].runs == 2
    assert found[0].error == pytest.approx(1 / found[0].measured_s - 1)
    assert json.dumps(found[0].spread)


def test_the_tail_is_chosen_by_another_draw():
    history = np.array([[1, 1], [9, 9], [5, 5]])
    assert longest_groups(history, 2) == (1, 2)
    where = place("fixed:q=1,m=1", np.array([[99, 1], [1, 1], [1, 1]]), history, 2)
    assert where[1].tolist() == [1, 1]
    assert where[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("nonsense", "policy 'nonsense' is unknown; choose among uniform_group"),
        ("tailsieve", "needs steps to learn from"),
        ("fixed:1", "write settings as key=value"),
        ("fixed:q=9", "isolates 9 groups, and there are 4"),
        ("fixed:q=x", "q must be a whole number"),
        ("fixed:bulk_placement=half", "bulk_placement must be group or request"),
        ("fixed:q=1,m=2", "does not fit 2 replicas"),
        ("streamrl_oracle:m=2", "does not fit 2 replicas"),
        ("uniform_group:m=1", "uniform_group has none"),
    ],
)
def test_a_policy_that_is_not_possible_is_one_sentence(policy, message):
    with pytest.raises(UserError, match=message):
        place(policy, LENGTHS, LENGTHS, 2)


def test_the_defaults_of_a_split_are_those_of_a_run():
    history = np.arange(64).reshape(16, 4)
    np.testing.assert_array_equal(place("fixed", history, history, 4), place("fixed:q=2,m=2", history, history, 4))
    np.testing.assert_array_equal(place("fixed:q=0", history, history, 4), place("verl_default", history, history, 4))


def test_picking_is_the_same_for_a_seed_and_keeps_prompts_apart():
    rng = np.random.default_rng(0)
    prompt = np.repeat(np.arange(10), 8)
    tokens = 100 * (prompt + 1) + rng.integers(0, 50, 80)
    one, two = (pick(tokens, prompt, groups=6, rollouts=4, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.lengths, two.lengths)
    assert len(set(one.prompts.tolist())) == 6
    assert np.all(one.lengths // 100 == (one.prompts + 1)[:, None])
    assert np.all(one.history // 100 == (one.prompts + 1)[:, None])
    for g, p in enumerate(one.prompts):
        both = sorted([*one.lengths[g], *one.history[g]])
        assert both == sorted(tokens[prompt == p].tolist())  # two draws of 4 use the 8 responses up


def test_picking_shrinks_to_the_machine():
    tokens, prompt = np.array([100, 1000, 10, 20]), np.array([0, 0, 1, 1])
    scaled = pick(tokens, prompt, groups=2, rollouts=2, max_tokens=100)
    assert scaled.scale == 0.1
    assert sorted(scaled.lengths.ravel()) == [1, 2, 10, 100]
    assert scaled.clipped == 0
    cut = pick(tokens, prompt, groups=2, rollouts=2, scale=0.5, max_tokens=100)
    assert sorted(cut.lengths.ravel()) == [5, 10, 50, 100]
    assert cut.clipped == 0.25


def test_picking_says_what_a_trace_lacks():
    few = pick([5], [7], groups=3, rollouts=2)
    assert few.lengths.tolist() == [[5, 5]] * 3
    assert few.repeated == 2
    with pytest.raises(UserError, match="trace is empty"):
        pick([], [], groups=1, rollouts=1)
    with pytest.raises(UserError, match="groups must be positive"):
        pick([1], [0], groups=0, rollouts=1)


def test_the_largest_batch_is_what_a_replica_may_hold():
    assert largest_batch([[0, 0], [0, 1]]) == 3
    assert largest_batch([[0, 0], [0, 1]], 2) == 2
