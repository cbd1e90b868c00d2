"""The in-memory trace: its invariants, groups, cells and cube, and the tail made longer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.trace import Trace, make_trace, training_order

# Two prompts at two checkpoints; "b" has one sample more at the second.
TRACE = make_trace(
    [10, 20, 30, 40, 50, 60, 70, 80, 90],
    ["a", "b", "a", "b", "a", "b", "a", "b", "b"],
    ["step_1"] * 4 + ["step_2"] * 5,
    cap=90,
    prompt_tokens=[1, 2, 1, 2, 1, 2, 1, 2, 2],
    step=[1] * 4 + [2] * 5,
)


def test_labels_become_indices():
    assert TRACE.prompt.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 1]
    assert TRACE.checkpoint.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert (TRACE.prompt_ids, TRACE.checkpoints) == (("a", "b"), ("step_1", "step_2"))
    assert TRACE.truncated.tolist() == [False] * 8 + [True]
    assert (len(TRACE), TRACE.prompts) == (9, 2)


def test_without_labels_every_response_is_a_prompt():
    trace = make_trace([3, 0, 5])
    assert trace.tokens.tolist() == [3, 1, 5]  # an empty response is its end token
    assert (trace.prompt_ids, trace.checkpoints) == (("0", "1", "2"), ("",))
    assert not trace.truncated.any()


def test_grouped():
    assert [group.tolist() for group in TRACE.grouped()] == [[10, 30, 50, 70], [20, 40, 60, 80, 90]]
    assert [group.tolist() for group in TRACE.grouped(3, checkpoint=1)] == [[60, 80, 90]]
    assert [group.tolist() for group in TRACE.grouped(checkpoint=-2)] == [[10, 30], [20, 40]]


def test_for_checkpoint_numbers_anew():
    trace = make_trace([1, 2, 3], ["a", "b", "c"], ["s1", "s2", "s2"], step=[1, 2, 2]).for_checkpoint(-1)
    assert (trace.tokens.tolist(), trace.prompt.tolist(), trace.prompt_ids) == ([2, 3], [0, 1], ("b", "c"))
    assert (trace.checkpoint.tolist(), trace.checkpoints, trace.step.tolist()) == ([0, 0], ("s2",), [2, 2])
    with pytest.raises(IndexError):
        TRACE.for_checkpoint(2)


def test_select_refuses_a_mask_that_keeps_nothing():
    with pytest.raises(ValueError, match="keep at least one"):
        TRACE.select(np.zeros(9, dtype=bool))


def test_cells_by_hand():
    cells = TRACE.cells()
    assert cells.prompt.tolist() == [0, 0, 1, 1]
    assert cells.checkpoint.tolist() == [0, 1, 0, 1]
    assert cells.samples.tolist() == [2, 2, 2, 3]
    assert cells.mean.tolist() == [20, 60, 30, pytest.approx(230 / 3)]


def test_cube_takes_the_first_samples_of_the_prompts_that_have_them():
    assert TRACE.cube(2).tolist() == [[[10, 30], [50, 70]], [[20, 40], [60, 80]]]
    assert TRACE.for_checkpoint(1).cube(3).tolist() == [[[60, 80, 90]]]
    with pytest.raises(UserError, match="no prompt of trace '' has 3 samples at each of its 2 checkpoints"):
        TRACE.cube(3)


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=60))
def test_cells_agree_with_a_loop(rows):
    tokens, prompts, states = zip(*rows, strict=True)
    trace = make_trace(tokens, [f"p{p}" for p in prompts], [f"s{s}" for s in states])
    cells = trace.cells()
    found = {}
    for p, s, n, mean in zip(*cells, strict=True):
        found[trace.prompt_ids[p], trace.checkpoints[s]] = (n, mean)
    expected = {}
    for length, p, s in rows:
        expected.setdefault((f"p{p}", f"s{s}"), []).append(length)
    assert found == {key: (len(values), pytest.approx(np.mean(values))) for key, values in expected.items()}


def test_training_order():
    labels = ["final", "games_step_500", "checkpoint-105", "step_0", "checkpoint-21", "best"]
    assert training_order(labels) == ("step_0", "checkpoint-21", "checkpoint-105", "games_step_500", "final", "best")


def test_the_order_given_wins():
    trace = make_trace([1, 2], ["a", "a"], ["s1", "s2"], order=["s2", "s1"])
    assert (trace.checkpoint.tolist(), trace.checkpoints) == ([1, 0], ("s2", "s1"))


def test_with_tail_by_hand():
    # Median 50, P90 90; ratio 3 stretches what is above 50 by 2.5.
    trace = make_trace(np.arange(10, 101, 10), cap=120, name="x").with_tail(3)
    scaled = trace.tokens
    assert scaled[:5].tolist() == [10, 20, 30, 40, 50]
    assert np.percentile(scaled, 90) / 55 == pytest.approx(3, abs=0.02)
    assert trace.cap == round(55 + (3 * 55 - 55) / (91 - 55) * (120 - 55))


def test_with_tail_bad_input():
    with pytest.raises(UserError, match="the tail of trace 'flat' cannot be scaled"):
        make_trace([5, 5], name="flat").with_tail(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [], "prompt": [], "checkpoint": [], "truncated": []}, "at least one response"),
        ({"tokens": [0, 2]}, "tokens must be at least 1, got 0"),
        ({"tokens": [1.5, 2]}, "tokens must be whole numbers"),
        ({"tokens": [[1, 2]]}, "tokens must be whole numbers with one axis"),
        ({"cap": 1}, "must not exceed the cap 1, got 2"),
        ({"prompt": [0]}, "prompt must have one entry per response"),
        ({"prompt": [0, 2]}, "prompt must use every index from 0 to 1"),
        ({"prompt": [-1, 0]}, "prompt must use every index from 0 to 1"),
        ({"checkpoint": [1, 1]}, "checkpoint must use every index from 0 to 0"),
        ({"prompt_tokens": [3, -1]}, "prompt_tokens must not be negative"),
    ],
)
def test_invariants(change, message):
    fields = {
        "tokens": np.array([1, 2]),
        "prompt": np.array([0, 1]),
        "checkpoint": np.array([0, 0]),
        "truncated": np.array([False, False]),
        "prompt_ids": ("a", "b"),
        "checkpoints": ("",),
    }
    change = {key: np.array(value, dtype=None if value else int) for key, value in change.items() if key != "cap"} | {
        key: value for key, value in change.items() if key == "cap"
    }
    with pytest.raises(ValueError, match=message):
        Trace(**(fields | change))
