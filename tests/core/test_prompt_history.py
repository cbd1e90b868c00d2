"""The store of prompts: identity, passes, bounds, state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.prompt_history import DECAY, PromptHistory


def added(history, key, level, step=1, weight=8.0, runs=0.0, new_pass=True):
    history.add(step, [key], np.array([level]), np.array([weight]), np.array([runs]), np.array([new_pass]))


def test_what_was_seen_is_found_again_and_nothing_else():
    history = PromptHistory()
    added(history, "a", 3.0, step=7)
    entries = history.look_up(["b", "a"])
    assert entries.known.tolist() == [False, True]
    assert entries.level[1] == pytest.approx(3.0)
    assert entries.step[1] == 7
    assert "a" in history
    assert "b" not in history


def test_a_new_pass_counts_more_than_the_old_one():
    history = PromptHistory()
    added(history, "a", 2.0)
    added(history, "a", 4.0, step=9)
    assert history.look_up(["a"]).level[0] == pytest.approx((DECAY * 2.0 + 4.0) / (DECAY + 1.0))


def test_runaways_fade_with_the_passes():
    history = PromptHistory()
    added(history, "a", 2.0, runs=4.0)
    added(history, "a", 2.0, runs=1.0)
    assert history.look_up(["a"]).runs[0] == pytest.approx(DECAY * 4.0 + 1.0)


def test_a_run_generated_again_belongs_to_the_same_pass():
    history = PromptHistory()
    added(history, "a", 2.0)
    added(history, "a", 4.0, new_pass=False)
    entries = history.look_up(["a"])
    assert entries.level[0] == pytest.approx(3.0)
    assert entries.weight[0] == 16.0


def test_a_prompt_twice_in_a_step_has_one_entry():
    history = PromptHistory()
    history.add(1, ["a", "a"], np.array([2.0, 4.0]), np.array([8.0, 8.0]), np.zeros(2), np.array([True, True]))
    assert len(history) == 1
    assert 2.0 < history.look_up(["a"]).level[0] < 4.0


def test_a_run_that_says_nothing_leaves_no_entry():
    history = PromptHistory()
    added(history, "a", 0.0, weight=0.0)
    assert len(history) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=200), st.integers(1, 40))
def test_memory_is_bounded_and_the_newest_stay(prompts, most):
    history = PromptHistory(most)
    for step, prompt in enumerate(prompts):
        added(history, str(prompt), float(prompt), step=step)
        assert len(history) <= most
        assert str(prompt) in history
    restored = PromptHistory(most)
    restored.load_arrays(history.arrays())
    ours, theirs = (h.look_up([str(p) for p in range(61)]) for h in (history, restored))
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_million_prompts_take_24_bytes_of_arrays_each():
    per_prompt = sum(column.itemsize for column in PromptHistory(1)._columns.values())
    assert per_prompt == 24  # the dictionary takes the rest of 160 bytes: docs/prompt-history.md


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: a.pop("weight"), "weight"),
        (lambda a: a.update(level=a["level"][:1]), "level must have 2"),
        (lambda a: a.update(weight=-a["weight"]), "positive"),
        (lambda a: a.update(key=np.zeros_like(a["key"])), "one entry"),
    ],
)
def test_a_spoilt_state_is_refused_and_changes_nothing(spoil, said):
    history = PromptHistory()
    added(history, "a", 1.0)
    added(history, "b", 2.0)
    arrays = history.arrays()
    spoil(arrays)
    with pytest.raises(ValueError, match=said):
        history.load_arrays(arrays)
    assert len(history) == 2
