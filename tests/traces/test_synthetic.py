"""Made-up lengths have the P50, P90 and variance shares asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.tails import variance_shares
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.summary import intraclass_correlation, summarise
from tailsieve_verl.traces.synthetic import (
    PAPER_SHARES,
    LengthModel,
    Mixture,
    checkpoint_effects,
    synthetic_trace,
)

PAPER = LengthModel(checkpoint_share=PAPER_SHARES.checkpoint, interaction_share=PAPER_SHARES.interaction)


@pytest.mark.parametrize(
    ("model", "checkpoints"),
    [
        (PAPER, 10),
        (LengthModel(p50=400, p90=900, cap=2048, prompt_share=0.2, checkpoint_share=0.1, interaction_share=0.1), 10),
        (LengthModel(cap=4600, prompt_share=0.9), 1),  # the cap takes 8 % of the responses
        (LengthModel(cap=4115, prompt_share=0.5), 1),  # P90 is the cap
        (LengthModel(prompt_share=0.0), 1),
        (LengthModel(prompt_share=1.0), 1),
        (LengthModel(prompt_share=0.3, runaway=0.03), 1),
        (LengthModel(prompt_share=0.4, checkpoint_share=0.02, interaction_share=0.07, runaway=0.01), 10),
    ],
)
def test_percentiles_and_shares_are_those_asked_for(model, checkpoints):
    trace = synthetic_trace(model, prompts=3000, samples=60 // min(checkpoints, 2), checkpoints=checkpoints, seed=3)
    p50, p90 = np.percentile(trace.tokens, [50, 90])
    assert p50 == pytest.approx(model.p50, rel=0.02)
    assert p90 == pytest.approx(model.p90, rel=0.02)
    assert trace.tokens.mean() == pytest.approx(model.mean, rel=0.02)
    found = variance_shares(trace.cube(60 // min(checkpoints, 2)))
    for name in ("prompt", "checkpoint", "interaction"):
        assert getattr(found, name) == pytest.approx(getattr(model, f"{name}_share"), abs=0.035), name
    assert model.shares.prompt == pytest.approx(model.prompt_share, abs=1e-6)


def test_a_small_trace_of_the_paper_s_form_has_the_paper_s_statistics():
    """Appendix B: 64 prompts, 8 samples; tail AUC of adjacent checkpoints 0.957 to 0.985."""
    result = summarise(synthetic_trace(PAPER, prompts=64, samples=8, checkpoints=30))
    assert result.shares.prompt == pytest.approx(0.648, abs=0.05)
    assert 0.94 < np.mean([entry.auc for entry in result.checkpoint_auc]) < 0.99


def test_a_mixture_is_its_components():
    model = LengthModel(p50=400, p90=600, mixture=(0.3, 6000, 9000), prompt_share=0.6)
    trace = synthetic_trace(model, prompts=4000, samples=30)
    sigmas = np.log([600 / 400, 9000 / 6000]) / 1.2815516
    rng = np.random.default_rng(0)
    first, second = np.array([[400], [6000]]) * np.exp(sigmas[:, None] * rng.standard_normal((2, 200_000)))
    direct = np.where(rng.random(200_000) < 0.3, second, first)
    for q in (10, 50, 69, 71, 90, 99):
        assert np.percentile(trace.tokens, q) == pytest.approx(np.percentile(direct, q), rel=0.08), q
        assert float(model.quantile(q / 100)) == pytest.approx(np.percentile(direct, q), rel=0.08), q
    assert intraclass_correlation(trace.tokens, trace.prompt) == pytest.approx(0.6, abs=0.03)
    assert model == LengthModel(p50=400, p90=600, mixture=Mixture(0.3, 6000, 9000), prompt_share=0.6)


def test_runaways_reach_the_cap_whatever_their_prompt():
    model = LengthModel(p50=100, p90=200, cap=30_000, prompt_share=2e-4, runaway=0.02)
    trace = synthetic_trace(model, prompts=2000, samples=50)
    assert trace.truncated.mean() == pytest.approx(0.02, abs=0.002)
    assert (trace.tokens[trace.truncated] == 30_000).all()
    assert abs(intraclass_correlation(trace.truncated.astype(float), trace.prompt)) < 0.01
    assert float(model.quantile(0.99)) == 30_000


def test_the_least_interaction_comes_with_a_checkpoint_share():
    model = LengthModel(checkpoint_share=0.1)
    assert 0.01 < model.shares.interaction < 0.2
    least = model.shares.interaction
    with pytest.raises(UserError, match=rf"an interaction_share of at least {least:.3f} goes with prompt_share 0.648"):
        LengthModel(checkpoint_share=0.1, interaction_share=least / 2)
    assert LengthModel(checkpoint_share=0.1, interaction_share=least * 1.01).shares.checkpoint == pytest.approx(0.1)


def test_draw_has_a_row_per_prompt_and_lengths_in_range():
    rng = np.random.default_rng(0)
    model = LengthModel(p50=2, p90=5, cap=6, prompt_share=0.5)
    tokens = model.draw(rng, model.levels(rng, 100), 7)
    assert tokens.shape == (100, 7)
    assert tokens.dtype == np.int64
    assert (tokens.min(), tokens.max()) == (1, 6)


def test_later_checkpoints_are_longer():
    effects = checkpoint_effects(5)
    assert (np.diff(effects) > 0).all()
    assert (effects.mean(), effects.std()) == (pytest.approx(0), pytest.approx(1))
    trace = synthetic_trace(PAPER, prompts=500, samples=8, checkpoints=4)
    means = [trace.for_checkpoint(s).tokens.mean() for s in range(4)]
    assert means == sorted(means)


def test_stratified_levels_hold_the_percentiles_of_a_few_prompts():
    model = LengthModel()
    rng = np.random.default_rng(1)
    medians = [np.median(model.levels(rng, 64, stratified=True)) for _ in range(20)]
    scattered = [np.median(model.levels(rng, 64)) for _ in range(20)]
    assert np.std(medians) < np.std(scattered) / 4


def test_the_same_seed_gives_the_same_trace():
    first, second, other = (synthetic_trace(PAPER, prompts=9, samples=2, checkpoints=3, seed=s) for s in (1, 1, 2))
    assert first.tokens.tolist() == second.tokens.tolist() != other.tokens.tolist()
    assert first.checkpoints == ("step_0", "step_1", "step_2")
    assert (first.cap, len(first)) == (16384, 54)


@settings(max_examples=40, deadline=None)
@given(st.floats(1, 5000), st.floats(1.05, 12), st.floats(1, 20), st.floats(0, 1), st.floats(0, 0.09), st.booleans())
def test_any_model_that_is_accepted_keeps_its_word(p50, ratio, room, share, runaway, bimodal):
    p90 = p50 * ratio
    cap = int(np.ceil(p90 * room))
    mixture = (0.2, p50, p90) if bimodal else None
    try:
        model = LengthModel(p50=p50, p90=p90, cap=cap, prompt_share=share, runaway=runaway, mixture=mixture)
    except UserError:
        event("refused")
        assert runaway > 0
        return
    assert model.shares.prompt == pytest.approx(share, abs=1e-6)
    if not bimodal:
        assert model.quantile([0.5, 0.9]) == pytest.approx([p50, p90], rel=1e-6)
    rng = np.random.default_rng(0)
    tokens = model.draw(rng, model.levels(rng, 50), 4)
    assert 1 <= tokens.min() <= tokens.max() <= cap


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p50": 0}, "p50 must be at least 1 token and below p90"),
        ({"p50": 5000}, "p50 must be at least 1 token and below p90, got p50 5000 and p90 4115"),
        ({"p90": float("nan")}, "below p90"),
        ({"cap": 4000}, "p90 4115.0 cannot be reached under the cap 4000: give a larger cap"),
        ({"cap": 0}, "cap must be a whole number of at least 1"),
        ({"cap": 1.5}, "cap must be a whole number"),
        ({"runaway": 0.1}, "runaway must be at least 0 and under 0.1, got 0.1"),
        ({"runaway": 0.05}, "at runaway 0.05, not 0.648"),
        ({"prompt_share": 1.2}, "prompt_share must be in 0..1, got 1.2"),
        ({"prompt_share": float("nan")}, "prompt_share must be in 0..1"),
        ({"checkpoint_share": 0.3, "interaction_share": 0.2}, "must not exceed 1 together"),
        ({"mixture": (0, 10, 20)}, "the mixture's share must be above 0"),
        ({"mixture": (0.5, 30, 20)}, "the mixture's p50 must be"),
        ({"mixture": (0.5, 30, 20000)}, "the mixture's p90 20000 cannot be reached under the cap 16384"),
    ],
)
def test_bad_models(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        LengthModel(**arguments)
    assert "\n" not in str(caught.value)


def test_bad_traces():
    with pytest.raises(UserError, match="8000000000 responses are more than 100000000: give fewer"):
        synthetic_trace(LengthModel(), prompts=10**9, samples=8)
    with pytest.raises(UserError, match="prompts must be at least 1, got 0"):
        synthetic_trace(LengthModel(), prompts=0, samples=1)
    with pytest.raises(UserError, match=r"checkpoint_share 0\.022 needs at least 2 checkpoints"):
        synthetic_trace(PAPER, prompts=4, samples=1)
