"""Streams of lengths: the same for every policy, re-rolled for a cut prompt, epochs that repeat the prompts."""

import numpy as np
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.workload import SyntheticWorkload, TraceWorkload
from tailsieve_verl.traces.synthetic import LengthModel, synthetic_trace
from tailsieve_verl.traces.trace import Trace

MODEL = LengthModel(p50=400, p90=1500, cap=4000)


def trace(samples, prompts=5, checkpoints=1, **kwargs):
    """Prompt i's s-th sample at checkpoint c is 1000 c + 100 i + s tokens long."""
    c, i, s = np.meshgrid(np.arange(checkpoints), np.arange(prompts), np.arange(samples), indexing="ij")
    return Trace(
        tokens=(1000 * c + 100 * i + s + 1).ravel(),
        prompt=i.ravel(),
        checkpoint=c.ravel(),
        truncated=np.zeros(c.size, bool),
        prompt_ids=tuple(f"p{k}" for k in range(prompts)),
        checkpoints=tuple(f"c{k}" for k in range(checkpoints)),
        **kwargs,
    )


def test_lengths_depend_on_the_stream_and_not_on_who_asks():
    one, other = SyntheticWorkload(MODEL, 8, seed=3), SyntheticWorkload(MODEL, 8, seed=3)
    together = one.lengths(range(2000), [0] * 2000, 1)
    for prompt in (0, 5, 1023, 1024, 1999):
        assert np.array_equal(other.lengths([prompt], [0], 9)[0], together[prompt])
    assert not np.array_equal(one.lengths([5], [1], 1)[0], together[5])
    assert not np.array_equal(SyntheticWorkload(MODEL, 8, seed=4).lengths([5], [0], 1)[0], together[5])


def test_a_prompt_s_level_stays_over_attempts_and_epochs():
    workload = SyntheticWorkload(LengthModel(p50=400, p90=1500, cap=40_000, prompt_share=0.8), 8, data_set=300)
    first = workload.lengths(range(300), [0] * 300, 1).mean(axis=1)
    again = workload.lengths(range(300), [1] * 300, 1).mean(axis=1)
    assert np.corrcoef(np.log(first), np.log(again))[0, 1] > 0.8
    rows, later = workload.identity(range(300)), workload.identity(range(300, 600))
    assert sorted(rows) == sorted(later) == list(range(300))
    assert not np.array_equal(rows, later)
    second_pass = workload.lengths(range(300, 600), [0] * 300, 1).mean(axis=1)
    by_row = np.empty(300), np.empty(300)
    by_row[0][rows], by_row[1][later] = first, second_pass
    assert np.corrcoef(np.log(by_row[0]), np.log(by_row[1]))[0, 1] > 0.8
    assert not np.array_equal(by_row[0], by_row[1])


def test_drift_moves_all_lengths_up_to_the_limit():
    still, moving = SyntheticWorkload(MODEL, 8), SyntheticWorkload(MODEL, 8, drift=0.1)
    prompts, tries = range(200), [0] * 200
    assert np.array_equal(still.lengths(prompts, tries, 1), moving.lengths(prompts, tries, 1))
    expected = np.minimum(np.rint(still.lengths(prompts, tries, 1) * 1.1**4), 4000)
    assert np.array_equal(moving.lengths(prompts, tries, 5), expected)


def test_a_trace_gives_its_prompts_own_samples_without_repeats():
    workload = TraceWorkload(trace(samples=10), n=8)
    rows = workload.identity(range(5))
    lengths = workload.lengths(range(5), [0] * 5, 1)
    for row, group in zip(rows, lengths, strict=True):
        assert len(set(group)) == 8
        assert set((group - 1) // 100) == {row}
    few = TraceWorkload(trace(samples=3), n=8).lengths(range(5), [0] * 5, 1)
    assert all(1 <= len(set(group)) <= 3 for group in few)


def test_more_than_64_samples_are_all_reached():
    workload = TraceWorkload(trace(samples=90, prompts=1), n=8)
    groups = workload.lengths(range(600), [0] * 600, 1)
    assert all(len(set(group)) == 8 for group in groups)
    assert set(groups.ravel()) == set(range(1, 91))


def test_checkpoints_follow_each_other():
    workload = TraceWorkload(trace(samples=8, checkpoints=2), n=8, steps_per_checkpoint=10)
    before, after = (workload.lengths([0], [0], step) for step in (10, 11))
    assert np.array_equal(after, before + 1000)
    assert np.array_equal(workload.lengths([0], [0], 99), after)


def test_a_trace_is_scaled_and_keeps_its_prompt_lengths():
    found = trace(samples=8, cap=600, prompt_tokens=np.repeat([7], 40))
    workload = TraceWorkload(found, n=8, scale=0.5)
    assert workload.cap == 300
    assert workload.lengths(range(5), [0] * 5, 1).max() <= 205
    assert workload.prompt_tokens([0, 3]).tolist() == [7, 7]


def test_bad_input_is_named():
    holes = trace(samples=4, checkpoints=2)
    keep = ~((holes.prompt == 2) & (holes.checkpoint == 1))
    broken = Trace(
        holes.tokens[keep], holes.prompt[keep], holes.checkpoint[keep], holes.truncated[keep], holes.prompt_ids,
        holes.checkpoints,
    )  # fmt: skip
    with pytest.raises(UserError, match="prompt p2 has no response at one of the checkpoints"):
        TraceWorkload(broken, steps_per_checkpoint=5)
    with pytest.raises(UserError, match="drift=2"):
        SyntheticWorkload(MODEL, drift=2)
    with pytest.raises(UserError, match="at least one prompt"):
        SyntheticWorkload(MODEL, data_set=0)


def test_a_synthetic_trace_serves_as_well():
    made = synthetic_trace(MODEL, prompts=40, samples=8, seed=1)
    lengths = TraceWorkload(made, n=4).lengths(range(40), [0] * 40, 1)
    assert lengths.shape == (40, 4)
    assert lengths.min() >= 1
    assert lengths.max() <= 4000
