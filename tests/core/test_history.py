import json
from dataclasses import replace

import numpy as np
import pytest

from tailsieve_verl.core.history import LEAST_LEVELS, MAX_VALUES, WorkHistory
from tailsieve_verl.core.plan import GroupRecord, StepObservation
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext, make_plan
from tailsieve_verl.core.predict import Predictor

from .closed_loop import DENSE, LOADS, N, Rollout, context, fixed

CONTEXT = PolicyContext(4, 2)


def group(prompt, tokens, *, route="fresh", complete=None, status=None):
    n = len(tokens)
    complete = complete or (True,) * n
    return GroupRecord(
        prompt=prompt,
        key=f"p{prompt}",
        route=route,
        status=status or ("trained" if all(complete) else "cut"),
        replicas=(0,) * n,
        started_s=(0.0,) * n,
        finished_s=(1.0,) * n,
        tokens=tuple(tokens),
        complete=tuple(complete),
        generated_s=1.0,
    )


def observe(history, step, groups):
    plan = make_plan(CONTEXT, 1, 1, step=step, carried=0, last=False, stream_left=None, reason="")
    history.observe(StepObservation(plan, 1.0, 1.0, 1.0, 0.0, tuple(groups)))


def test_a_cut_group_is_completed_by_its_second_run():
    history = WorkHistory(4)
    fresh = [group(i, (100 + i, 110, 90)) for i in range(3)] + [group(3, (80, 500, 400), complete=(True, False, False))]
    observe(history, 1, fresh)
    observe(history, 2, [group(3, (900, 800, 1000), route="tail"), *(group(i, (100, 110, 90)) for i in range(4, 8))])
    found = history.scenarios(1, 2)
    first, again = found.first[0].tolist(), found.again[0].tolist()
    assert first[::-1][:3] == [[100, 110, 90], [101, 110, 90], [102, 110, 90]]  # newest first
    assert again[0] == [900, 800, 1000]  # measured, not drawn
    assert first[0][0] == 80  # was complete
    assert first[0][1] >= 500
    assert first[0][2] >= 400


def test_before_the_second_run_all_is_imputed_beyond_what_was_reached():
    history = WorkHistory(4)
    observe(history, 1, [*(group(i, (100, 110)) for i in range(3)), group(3, (300, 310), complete=(False, False))])
    first = history.scenarios(4, 2).first
    assert first.shape == (1, 4, 2)
    assert (first[0, 0] >= [300, 310]).all()


def test_a_group_that_was_not_carried_is_drawn_from_its_level_not_its_maximum():
    """Short prompts of which one response ran away once: their next run is short again."""
    rng, history = np.random.default_rng(0), WorkHistory(64)
    lengths = np.rint(np.exp(rng.normal(5, 0.3, (64, 8)))).astype(int)
    lengths[:3, 0] = 16_000
    observe(history, 1, [group(i, row.tolist()) for i, row in enumerate(lengths)])
    again = history.scenarios(1, 2).again[0][::-1]
    assert np.median(again[:3]) < 400
    assert (again > 10_000).mean() <= 3 * 3 / lengths.size


def test_long_prompts_stay_long_and_nothing_is_longer_than_what_was_seen():
    rng, history = np.random.default_rng(0), WorkHistory(64)
    level = np.repeat([5.0, 8.0], 32)
    lengths = np.rint(np.exp(level[:, None] + rng.normal(0, 0.3, (64, 8)))).astype(int)
    observe(history, 1, [group(i, row.tolist()) for i, row in enumerate(lengths)])
    again = history.scenarios(1, 2).again[0][::-1]
    assert again[32:].mean() == pytest.approx(lengths[32:].mean(), rel=0.1)
    assert again[:32].mean() == pytest.approx(lengths[:32].mean(), rel=0.2)
    assert again.max() <= lengths.max()


@pytest.mark.parametrize("split", [(0, 0), (4, 2), (10, 4)])
@pytest.mark.parametrize("load", ["real", "weak"])
def test_whatever_split_was_run_the_others_are_predicted(split, load):
    """From history under one split, makespans of splits that were not run: within 6 %, of the same one within 3 %."""
    predicted, truth = {(0, 0): [], (4, 2): [], (10, 4): []}, {(0, 0): [], (4, 2): [], (10, 4): []}
    for seed in range(2):  # the mean of 50 steps alone scatters by 3 %
        work = replace(LOADS[load], seed=seed)
        history, rollout, policy = WorkHistory(N), Rollout(work, DENSE), FixedPolicy(context(8), *split)
        for step in range(1, 61):
            history.observe(rollout.step(policy.plan(step=step, carried=len(rollout.carried))))
            if step >= 20 and step % 10 == 0:
                predictor = Predictor(history.scenarios(16, step + 1), DENSE, N, 8)
                for other, seconds in predicted.items():
                    seconds.append(predictor.split(*other).mean_s)
        for other, seconds in truth.items():
            seconds += fixed(*other, work, 8, steps=60).seconds[10:]
    for other, seconds in predicted.items():
        assert np.mean(seconds) / np.mean(truth[other]) == pytest.approx(1.0, abs=0.03 if other == split else 0.06), (
            other
        )


def test_the_trend_is_followed_if_it_is_there():
    rng = np.random.default_rng(0)
    growing, steady = WorkHistory(64), WorkHistory(64)
    for step in range(1, 31):
        lengths = np.exp(rng.normal(6, 0.5, (64, 8)))
        observe(steady, step, [group(i, np.rint(row).astype(int).tolist()) for i, row in enumerate(lengths)])
        lengths *= 1.02**step
        observe(growing, step, [group(i, np.rint(row).astype(int).tolist()) for i, row in enumerate(lengths)])
        if step < LEAST_LEVELS:
            assert growing.trend() == 0.0
    assert growing.trend() == pytest.approx(np.log(1.02), abs=0.004)
    assert abs(steady.trend()) < 0.004


def test_failed_and_empty_groups_and_odd_sizes_do_no_harm():
    history = WorkHistory(4)
    observe(history, 1, [group(0, (0, 0)), group(1, (5, 5), status="failed")])
    assert history.scenarios(1, 2) is None
    observe(history, 2, [group(i, (10, 20)) for i in range(3)] + [group(9, (7,))])
    observe(history, 3, [group(i, (10, 20, 30)) for i in range(4)])
    observe(history, 4, [group(i, (10, 20, 30)) for i in range(4)])
    assert history.scenarios(1, 5).first.shape == (1, 4, 3)
    assert history.sessions == 3


def test_memory_is_bounded_and_the_state_restores():
    history, rng = WorkHistory(5000), np.random.default_rng(0)
    for step in range(1, 6):
        lengths = rng.integers(1, 30_000, (5000, 8)).tolist()
        observe(history, step, [group(i, row) for i, row in enumerate(lengths)])
    text = json.dumps(history.state_dict())
    assert history.groups * 8 <= MAX_VALUES
    assert len(text) < 1_000_000
    copy = WorkHistory(5000)
    copy.load_state_dict(json.loads(text))
    assert json.dumps(copy.state_dict()) == text
    assert all(np.array_equal(a, b) for a, b in zip(copy.scenarios(2, 6), history.scenarios(2, 6), strict=True))
    assert json.loads(json.dumps(WorkHistory(4).state_dict()))["pending"] is None
    empty = WorkHistory(4)
    empty.load_state_dict(WorkHistory(4).state_dict())
    assert empty.scenarios(1, 1) is None
