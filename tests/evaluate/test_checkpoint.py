import sys

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.evaluate import checkpoint
from tailsieve_verl.evaluate.checkpoint import Checkpoint, find_checkpoint, ready_model


def make_model(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


def make_shards(folder):
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface" / "config.json").write_text("{}")
    for rank in range(2):
        (folder / f"model_world_size_2_rank_{rank}.pt").touch()
    return folder


def test_a_hugging_face_folder_is_taken_as_it_is(tmp_path):
    model = make_model(tmp_path / "model")
    assert find_checkpoint(model) == Checkpoint(model)
    assert ready_model(Checkpoint(model), tmp_path / "merged") == model


def test_a_verl_checkpoint_is_found_from_run_step_or_actor(tmp_path):
    actor = make_shards(tmp_path / "global_step_30" / "actor")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("30")
    for path in (tmp_path, tmp_path / "global_step_30", actor):
        assert find_checkpoint(path) == Checkpoint(actor, shards=actor)


def test_whole_weights_beside_the_shards_are_used(tmp_path):
    actor = make_shards(tmp_path / "actor")
    (actor / "huggingface" / "model.safetensors").touch()
    assert find_checkpoint(tmp_path) == Checkpoint(actor / "huggingface")


@pytest.mark.parametrize("make", [lambda path: path, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_what_is_no_checkpoint_is_said(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(UserError, match=r"x (does not exist|is no checkpoint: it has neither config.json)"):
        find_checkpoint(tmp_path / "x")


def fake_merger(tmp_path, monkeypatch, code):
    script = tmp_path / "merger.py"
    script.write_text(f"import os, sys\ntarget = sys.argv[sys.argv.index('--target_dir') + 1]\n{code}\n")
    monkeypatch.setattr(checkpoint, "MERGER", (sys.executable, str(script)))


def test_shards_are_merged_once_and_whole(tmp_path, monkeypatch):
    found = find_checkpoint(make_shards(tmp_path / "actor"))
    fake_merger(
        tmp_path, monkeypatch, "os.makedirs(target); open(os.path.join(target, 'config.json'), 'w').write('{}')"
    )
    merged = tmp_path / "out" / "model"
    assert ready_model(found, merged) == merged
    fake_merger(tmp_path, monkeypatch, "sys.exit(1)")
    assert ready_model(found, merged) == merged


def test_a_failing_merger_is_quoted_and_leaves_nothing(tmp_path, monkeypatch):
    found = find_checkpoint(make_shards(tmp_path / "actor"))
    fake_merger(tmp_path, monkeypatch, "os.makedirs(target); print('no such shard', file=sys.stderr); sys.exit(3)")
    with pytest.raises(UserError, match=r"could not merge .*status 3.*\n?.*no such shard"):
        ready_model(found, tmp_path / "out" / "model")
    assert not (tmp_path / "out" / "model").exists()
