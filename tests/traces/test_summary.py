"""Statistics of a trace: by hand, and against the published table of the shared traces."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from tailsieve_verl.core.tails import tail_auc
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.plot import plot_traces
from tailsieve_verl.traces.summary import intraclass_correlation, split_half_auc, summarise
from tailsieve_verl.traces.trace import make_trace
from tests.traces.shared import FOLDER, needs_shared_traces


def test_icc_by_hand():
    # Groups 1, 3 and 5, 7: MSB = 2 * (2^2 + 2^2) / 1 = 16, MSW = 4 / 2 = 2, k = 2: 14 / 18.
    assert intraclass_correlation([1, 3, 5, 7], ["a", "a", "b", "b"]) == pytest.approx(14 / 18)
    # Sizes 3 and 1: k = (4 - 10 / 4) / 1 = 1.5; groups 0, 2, 4 and 10: MSB = 3 * 4 + 36 = 48, MSW = 8 / 2 = 4.
    assert intraclass_correlation([0, 2, 4, 10], [0, 0, 0, 1]) == pytest.approx(44 / 50)
    assert intraclass_correlation([5, 5, 9, 9], [0, 0, 1, 1]) == 1


@pytest.mark.parametrize(("tokens", "group"), [([1, 2], [0, 0]), ([1, 2], [0, 1]), ([3, 3, 3, 3], [0, 0, 1, 1])])
def test_icc_that_cannot_be_told(tokens, group):
    assert intraclass_correlation(tokens, group) is None


def test_icc_is_free_of_the_bias_of_few_samples():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(2000), 3)
    tokens = rng.normal(100, 10, 6000)
    assert intraclass_correlation(tokens, group) == pytest.approx(0, abs=0.03)


def test_half_auc():
    group = np.repeat(np.arange(20), 4)
    assert split_half_auc(group + 1.0, group) == 1  # a prompt's length is its number
    rng = np.random.default_rng(0)
    chance = split_half_auc(rng.permutation(4000), np.repeat(np.arange(500), 8))
    assert chance == pytest.approx(0.5, abs=0.06)
    assert split_half_auc(np.arange(18), np.repeat(np.arange(9), 2)) is None  # under ten prompts
    assert split_half_auc(np.arange(20), np.arange(20)) is None  # one sample each
    with_single = split_half_auc(np.append(group + 1.0, 5), np.append(group, 99))
    assert with_single == 1  # a prompt of one sample is left out


def test_a_summary_by_hand():
    tokens = [1, 3, 5, 7, 2, 4, 6, 20]
    trace = make_trace(tokens, ["a", "a", "b", "b"] * 2, ["s1"] * 4 + ["s2"] * 4, cap=20, name="x")
    result = summarise(trace)
    assert (result.name, result.responses, result.prompts, result.checkpoints) == ("x", 8, 2, 2)
    assert (result.samples, result.mean, result.p50, result.max) == (2, 6, 4.5, 20)
    assert result.tail_ratio == pytest.approx(np.percentile(tokens, 90) / 4.5)
    assert result.truncated == 1 / 8
    second = intraclass_correlation([2, 4, 6, 20], [0, 0, 1, 1])
    assert result.icc == pytest.approx((14 / 18 + second) / 2)
    assert (result.shares_prompts, result.shares_repeats) == (2, 2)
    total = result.shares.prompt + result.shares.checkpoint + result.shares.interaction + result.shares.sampling
    assert total == pytest.approx(1)
    spread = [np.std(pair, ddof=1) / np.mean(pair) for pair in ([1, 3], [5, 7], [2, 4], [6, 20])]
    assert result.dispersion_mean == pytest.approx(np.mean(spread))
    assert result.dispersion_max == pytest.approx(max(spread))
    assert (result.half_auc, result.checkpoint_auc, result.remarks) == (None, (), ())
    assert result.to_dict()["shares"]["prompt"] == result.shares.prompt


def test_auc_between_consecutive_checkpoints():
    rng = np.random.default_rng(0)
    first, second = rng.integers(1, 1000, (2, 30))
    labels = [f"p{i}" for i in range(30)]
    trace = make_trace(np.concatenate([first, second, [7]]), [*labels, *labels, "new"], ["s1"] * 30 + ["s2"] * 31)
    (entry,) = summarise(trace).checkpoint_auc
    assert (entry.source, entry.target, entry.prompts) == ("s1", "s2", 30)
    assert entry.auc == tail_auc(first, second)


def test_one_sample_per_prompt():
    result = summarise(make_trace(np.arange(1, 21)))
    assert (result.icc, result.half_auc, result.shares, result.dispersion_max) == (None, None, None, None)
    assert "cannot be told" in result.remarks[0]


def test_checkpoints_as_samples():
    result = summarise(make_trace([1, 3, 5, 7], ["a", "a", "b", "b"], ["s1", "s2", "s1", "s2"]))
    assert result.icc == pytest.approx(14 / 18)
    assert "checkpoints count as a prompt's samples" in result.remarks[0]


def test_a_run_that_sees_a_prompt_once():
    """As in a verl dump: every step its own prompts."""
    step = np.repeat(np.arange(6), 80)
    prompt = step * 20 + np.tile(np.repeat(np.arange(20), 4), 6)
    result = summarise(make_trace(prompt + 1, [str(p) for p in prompt], [str(s) for s in step]))
    assert (result.icc, result.half_auc, result.shares, result.checkpoint_auc) == (1, 1, None, ())


def test_plots(tmp_path):
    rng = np.random.default_rng(0)
    one = make_trace(rng.integers(1, 500, 40), [str(i // 4) for i in range(40)], name="one")
    for traces in ([one], [one] * 3, [one] * 9, [make_trace([5, 5])]):
        path = tmp_path / f"{len(traces)}.png"
        plot_traces(traces, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def published(name):
    with (FOLDER / "summary.csv").open() as file:
        return next(row for row in csv.DictReader(file) if row["trace"] == name)


MISGUIDED = ["QwQ-32b", "deepseek-r1-0528", "mistral-medium-3", "phi-4-reasoning-plus", "glm-z1-32b"]
CASES = [("misguided_attention", "ma", None, model, None) for model in MISGUIDED] + [
    ("rg_llama3b_math", f"rg_llama3b_{name}", source, None, step)
    for name, source in (("aime24", "rg_llama3b_aime24"), ("amc23", "rg_llama3b_amc23"), ("aime+amc", "all"))
    for step in ("step_400", "step_800")
]


@needs_shared_traces
@pytest.mark.parametrize(("file", "prefix", "source", "model", "checkpoint"), CASES)
def test_against_the_published_table(file, prefix, source, model, checkpoint):
    trace = read_trace(FOLDER / f"lengths_{file}.csv", source=source, model=model, checkpoint=checkpoint)
    result, row = summarise(trace), published(f"{prefix}/{model or checkpoint}")
    assert (result.responses, result.prompts) == (float(row["n"]), float(row["prompts"]))
    for field, column, unit in (("mean", "mean", 1), ("p50", "P50", 1), ("p90", "P90", 1), ("p99", "P99", 1)):
        assert getattr(result, field) == pytest.approx(float(row[column]), abs=0.51 * unit), field
    assert result.max == float(row["max"])
    assert result.tail_ratio == pytest.approx(float(row["r9050"]), abs=0.0051)
    assert result.truncated == pytest.approx(float(row["trunc"]), abs=0.00051)
    assert result.icc == pytest.approx(float(row["icc"]), abs=0.00051)
    assert result.shares.prompt == pytest.approx(float(row["eta2"]), abs=0.00051)
    assert result.half_auc == pytest.approx(float(row["halfAUC"]), abs=0.07)  # 20 random splits on either side


@needs_shared_traces
@pytest.mark.parametrize(("source", "auc"), [("rg_llama3b_aime24", 0.778), ("rg_llama3b_amc23", 0.833), ("all", 0.803)])
def test_against_the_published_ranking(source, auc):
    """That table labels by the later checkpoint and scores by the earlier one: our direction with the order turned."""
    trace = read_trace(FOLDER / "lengths_rg_llama3b_math.csv", source=source, checkpoint="step_800,step_400")
    (entry,) = summarise(trace).checkpoint_auc
    assert entry.auc == pytest.approx(auc, abs=0.00051)
