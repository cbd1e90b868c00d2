import json

import pytest

from tailsieve_verl.integration import checkpoint

STATE = {"n_groups": 4, "ledger": {"carried": [3, 1]}}


def test_round_trip_and_no_temporary_files(tmp_path):
    rows = {3: {"raw_prompt": ["c"]}, 1: {"raw_prompt": ["a"]}}
    checkpoint.save(tmp_path, STATE, rows)
    state, again = checkpoint.load(tmp_path, n_groups=4)
    assert again == rows
    assert state["ledger"] == STATE["ledger"]
    assert sorted(p.name for p in (tmp_path / "tailsieve").iterdir()) == ["prompts.pt", "state.json"]


def test_a_crash_between_the_files_is_noticed(tmp_path):
    checkpoint.save(tmp_path, STATE, {3: 0, 1: 0})
    (tmp_path / "tailsieve/state.json").write_text(json.dumps({"format": 1, "prompts": [5], **STATE}))
    with pytest.raises(checkpoint.CheckpointError, match="does not hold the prompts"):
        checkpoint.load(tmp_path, n_groups=4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "without TailSieve.*resume_mode=disable"),
        ({"n_groups": 8}, "data.train_batch_size=8, this run has 4"),
        ({"format": 99}, "format 99"),
    ],
)
def test_what_cannot_be_continued_is_said(tmp_path, change, said):
    if change is not None:
        checkpoint.save(tmp_path, STATE, {})
        path = tmp_path / "tailsieve/state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(checkpoint.CheckpointError, match=said):
        checkpoint.check(tmp_path, n_groups=4)


@pytest.mark.parametrize("content", [b'{"format": 1, "n_gro', b"[]", b"", b"\xff\xfe"])
def test_a_damaged_state_is_said(tmp_path, content):
    checkpoint.save(tmp_path, STATE, {})
    (tmp_path / "tailsieve/state.json").write_bytes(content)
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot be read.*resume_path"):
        checkpoint.check(tmp_path, n_groups=4)
