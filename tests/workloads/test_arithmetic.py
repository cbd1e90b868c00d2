import re

import pytest

from tailsieve_verl.workloads.arithmetic import compute_score, make_rows, write


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("22", 1),
        ("7 + 15 = 22.", 1),
        ("The answer is 22", 1),
        ("22 - 1 = 21", 0),
        ("", 0),
        ("twenty-two", 0),
        ("221", 0),
    ],
)
def test_the_last_number_counts(answer, reward):
    assert compute_score("", answer, "22") == reward


def test_rows_are_right_and_repeatable(tmp_path):
    rows = make_rows(50, 3, "train")
    for row in rows:
        a, b = (int(part) for part in re.findall(r"\d+", row["prompt"][0]["content"]))
        assert int(row["reward_model"]["ground_truth"]) == a + b
    assert rows == make_rows(50, 3, "train")
    assert rows != make_rows(50, 4, "train")
    assert rows[:8] != make_rows(8, 3, "test")
    assert {path.name for path in write(tmp_path, 4, 2, 0).values()} == {"train.parquet", "test.parquet"}
    with pytest.raises(ValueError, match="at least 1"):
        make_rows(0, 0, "train")
