"""Groups out of a trace, prompt shares inside steps, halves."""

import numpy as np
import pytest

from tailsieve_verl.advise.fit import describe, fit_workload, halved, prompt_share
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.summary import intraclass_correlation
from tailsieve_verl.traces.synthetic import LengthModel
from tailsieve_verl.traces.trace import make_trace

from .dumps import drawn_fit


def trace(rows, **kwargs):
    """rows: (prompt, step, tokens)"""
    prompts, steps, tokens = zip(*rows, strict=True)
    return make_trace(np.array(tokens), prompts, [str(s) for s in steps], step=np.array(steps), **kwargs)


def test_groups_are_taken_step_by_step_in_the_order_of_the_lines():
    rows = [("b", 1, 5), ("a", 1, 3), ("b", 1, 6), ("a", 1, 4), ("a", 2, 7), ("c", 2, 9), ("a", 2, 8), ("c", 2, 1)]
    fit = fit_workload(trace(rows))
    assert (fit.n_groups, fit.n, fit.steps) == (2, 2, 2)
    assert fit.step.tolist() == [1, 1, 2, 2]
    assert sorted(map(tuple, fit.lengths.tolist())) == [(3, 4), (5, 6), (7, 8), (9, 1)]
    assert fit.prompt.tolist() == [0, 1, 1, 2]


def test_a_prompt_drawn_twice_in_a_step_is_two_groups():
    rows = [("a", 1, t) for t in (1, 2, 3, 4)] + [("b", 1, t) for t in (5, 6)] + [("c", 1, t) for t in (7, 8)]
    fit = fit_workload(trace(rows))
    assert (fit.n_groups, fit.n) == (4, 2)
    assert [1, 2] in fit.lengths.tolist()
    assert [3, 4] in fit.lengths.tolist()
    assert fit.left_out == 0


def test_incomplete_groups_are_left_out_and_said():
    rows = [(p, 1, 9) for p in "aabbcc"] + [("d", 1, 5)]
    fit = fit_workload(trace(rows))
    assert (fit.lengths.shape, fit.left_out) == ((3, 2), 1)
    assert any("1 of 7 responses" in remark for remark in fit.remarks)


def test_steps_of_another_size_are_said():
    rows = [(f"{s}{p}", s, 9) for s in (1, 2, 3) for p in "aabbccdd"] + [("x", 4, 1), ("x", 4, 2)]
    fit = fit_workload(trace(rows))
    assert fit.n_groups == 4
    assert any("1 of 4 steps" in remark for remark in fit.remarks)


@pytest.mark.parametrize(("n", "word"), [(None, "from 2"), (3, "--rollouts")])
def test_groups_that_tell_nothing_are_refused(n, word):
    rows = [("a", 1, 3), ("b", 1, 4)] if n is None else [("a", 1, 3), ("a", 1, 4)]
    with pytest.raises(UserError, match=word):
        fit_workload(trace(rows), n=n)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.65, 0.9])
def test_the_prompt_share_is_found_again(share):
    found = [
        prompt_share(f.lengths, f.step) for f in (drawn_fit(LengthModel(prompt_share=share), seed=s) for s in range(6))
    ]
    assert np.mean(found) == pytest.approx(share, abs=0.05)


def test_in_one_step_it_is_the_intraclass_correlation():
    fit = drawn_fit(LengthModel(prompt_share=0.4), steps=1, n_groups=30)
    assert prompt_share(fit.lengths, fit.step) == pytest.approx(
        intraclass_correlation(fit.lengths.ravel(), np.repeat(np.arange(30), 8))
    )


def test_drift_over_the_steps_is_not_the_prompts():
    fit = drawn_fit(LengthModel(p50=1000, p90=1200, prompt_share=0.0), steps=4)
    drifted = fit.lengths * fit.step[:, None]
    assert prompt_share(drifted, fit.step) < 0.05
    assert prompt_share(drifted, np.ones_like(fit.step)) > 0.8


def test_nothing_varies():
    fit = drawn_fit(LengthModel(), n_groups=4)
    assert prompt_share(np.full(fit.lengths.shape, 7), fit.step) is None


def test_described():
    lengths = describe(drawn_fit(LengthModel(), steps=4))
    assert lengths.p50 == pytest.approx(1160, rel=0.15)
    assert lengths.p90 == pytest.approx(4115, rel=0.15)
    assert lengths.half_auc > 0.85
    assert lengths.epoch_auc is None  # every prompt once
    assert lengths.stretch > 5
    assert lengths.truncated == pytest.approx(0.004, abs=0.006)


def test_epochs_are_compared_where_prompts_come_again():
    fit = drawn_fit(LengthModel(prompt_share=0.9), steps=1, n_groups=40)
    rows = [(f"p{g}", s, t) for s in (1, 2) for g, row in enumerate(fit.lengths.tolist()) for t in row]
    lengths = describe(fit_workload(trace(rows)))
    assert lengths.epoch_auc == 1.0  # the same lengths again
    assert lengths.repeated == 40


def test_a_half_has_whole_prompts():
    rows = [(f"p{g}", s, 10 * g + s) for g in range(20) for s in (1, 2) for _ in range(2)]
    fit = fit_workload(trace(rows))
    half = halved(fit, 3)
    assert half.lengths.shape == (20, 2)
    assert sorted(set(half.prompt)) == list(range(10))
    for prompt in range(10):
        mine = half.lengths[half.prompt == prompt]
        assert mine.shape == (2, 2)
        assert len({int(v) // 10 for v in mine.ravel()}) == 1
    assert not np.array_equal(halved(fit, 4).lengths, half.lengths)
    assert halved(fit_workload(trace(rows[:4])), 0).lengths.shape == (2, 2)  # one prompt has no half


def test_means_of_halves_scatter_as_means_of_dumps():
    model = LengthModel(prompt_share=0.65)
    dumps = [drawn_fit(model, steps=1, n_groups=100, n=4, seed=s).lengths.mean() for s in range(200)]
    fit = drawn_fit(model, steps=1, n_groups=100, n=4, seed=999)
    halves = [halved(fit, s).lengths.mean() for s in range(200)]
    assert np.std(halves) == pytest.approx(np.std(dumps), rel=0.3)
