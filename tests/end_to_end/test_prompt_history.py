"""A real run over 16 prompts: groups known to be long run apart in the step they are drawn, and nothing is cut."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.integration.prompt_history import take_over
from tailsieve_verl.records.read import read_steps

from .harness import GROUP, MODEL, N, Run, write_data

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

PROMPTS, STEPS = 2 * N, 5  # two steps a pass; the first step of the second pass shows that its prompts are known
LONG = 90


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    data = write_data(folder / "data", prompts=PROMPTS)
    for split in ("train", "test"):  # one turn each, so that a response has its prompt's length
        table = pd.read_parquet(data / f"{split}.parquet")
        table["agent_name"] = "length"
        table.to_parquet(data / f"{split}.parquet")
    # So few tokens do not tell the decode curve, which a longer run learns from its first step.
    (folder / "curve.csv").write_text("batch_size,seconds_per_token\n1,0.01\n4,0.0102\n32,0.05\n")
    run = Run(
        folder / "out", data, "+tailsieve=history", f"trainer.v1.tailsieve.curve={folder / 'curve.csv'}",
        f"trainer.save_freq={STEPS}", f"trainer.rollout_data_dir={folder / 'dumps'}", steps=STEPS,
    )  # fmt: skip
    assert run.wait() == 0, run.log[-5000:]
    return run


@pytest.fixture(scope="module")
def steps(run):
    return read_steps(run.out)


def rows(run):
    return pd.read_parquet(run.out.parent / "data" / "train.parquet").to_dict("records")


def test_every_prompt_is_trained_once_a_pass(steps):
    trained = Counter(g["prompt"] for s in steps for g in s["groups"] if g["status"] == "trained")
    assert trained == Counter(range(N * STEPS))
    for step in steps:
        assert all(f["min_version"] == f["max_version"] == step["step"] - 1 for f in step["batch"].values())


def test_known_long_groups_are_on_the_top_replica_in_the_step_they_are_drawn(steps):
    placed = [s for s in steps if s["plan"]["by_history"]]
    assert [s["step"] for s in placed] == [4, 5], [s["decision"]["reason"] for s in steps]
    for step in placed:
        assert all(g["status"] == "trained" for g in step["groups"])
        assert step["decision"]["extra"]["history/known"] == 1.0
        by_length = sorted(step["groups"], key=lambda g: -max(g["tokens"]))
        assert max(by_length[0]["tokens"]) > LONG > max(by_length[-1]["tokens"])
        assert by_length[0]["replicas"] == [1] * GROUP
        assert by_length[-1]["replicas"] == [0] * GROUP
        ranks = [rank for group in by_length for rank in group["replicas"]]
        assert ranks == sorted(ranks, reverse=True)
        assert ranks.count(1) < ranks.count(0)


def test_the_history_is_saved_and_its_levels_are_the_lengths(run, steps):
    with np.load(run.out / f"global_step_{STEPS}" / "tailsieve" / "history.npz") as saved:
        assert json.loads(str(saved["head"]))["fingerprint"]["data set"].startswith(f"{PROMPTS}:")
        levels = np.sort(np.exp(saved["level"]))
    lengths = np.sort([row["extra_info"]["length"] for row in rows(run)])
    assert levels == pytest.approx(lengths, rel=0.01)
    assert {t for s in steps for g in s["groups"] for t in g["tokens"]} == set(lengths.tolist())


def test_verl_s_own_dumps_of_the_run_give_the_same_history(run):
    """Texts as verl dumps them are found in the data set by the same tokenizer and chat template."""
    from transformers import AutoTokenizer

    dataset = [{**row, "raw_prompt": list(row["prompt"])} for row in rows(run)]
    forecast = LengthForecast()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    take_over(str(run.out.parent / "dumps"), forecast, {}, dataset=dataset, tokenizer=tokenizer)
    assert len(forecast.history) == len({row["prompt"][0]["content"] for row in rows(run)})


def test_nothing_is_logged_as_an_error(run):
    assert "Traceback" not in run.log
    assert "goes on without the prompt history" not in run.log
