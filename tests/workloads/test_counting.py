import numpy as np
import pandas as pd
import pytest

from tailsieve_verl.workloads import counting


def score(text, truth="3-6"):
    return counting.compute_score("", text, truth)


def test_reward_is_the_share_of_the_right_sequence():
    assert score("3, 4, 5, 6") == 1.0
    assert score("3, 4") == 0.5
    assert score("3, 4, 9, 6") == 0.5
    assert score("I cannot count") == 0.0
    assert score("3, 4, 5, 6, 7, 8, 9, 10") == 0.5  # running on is not rewarded
    assert score("9" * 400) == 0.0


def test_spans_have_a_long_tail_and_the_reward_knows_them():
    rows = counting.make_rows(2000, seed=1, split="train")
    spans = np.array([row["extra_info"]["span"] for row in rows])
    assert 2.5 < np.quantile(spans, 0.9) / np.median(spans) < 4
    assert spans.max() == counting.MAX_SPAN
    start, end = map(int, rows[7]["reward_model"]["ground_truth"].split("-"))
    assert end - start + 1 == spans[7]
    assert f"from {start} to {end}" in rows[7]["prompt"][0]["content"]
    assert counting.compute_score("", ", ".join(map(str, range(start, end + 1))), f"{start}-{end}") == 1.0


def test_the_same_seed_gives_the_same_files(tmp_path):
    first = counting.write(tmp_path / "a", train=8, val=3, seed=4)
    second = counting.write(tmp_path / "b", train=8, val=3, seed=4)
    for split in ("train", "test"):
        assert first[split].read_bytes() == second[split].read_bytes()
    other = counting.write(tmp_path / "c", train=8, val=3, seed=5)
    assert not pd.read_parquet(first["train"]).equals(pd.read_parquet(other["train"]))
    frame = pd.read_parquet(first["train"])
    assert set(frame.columns) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert frame["extra_info"][5]["index"] == 5


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        counting.make_rows(0, 0, "train")
