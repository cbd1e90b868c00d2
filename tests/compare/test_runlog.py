import json

import pytest

from tailsieve_verl.compare.runlog import read_runlog
from tailsieve_verl.errors import UserError

from .runs import write_dump, write_metrics, write_record


def test_a_record_tells_everything(tmp_path):
    run = read_runlog(write_record(tmp_path / "r", [4.0, 5.0], split=(2,), speculation="mtp", bias=0.02))
    assert run.label == "r"
    assert run.generation_s == pytest.approx({1: 4.0, 2: 5.0})  # verl's timer, dispatch and decision
    assert run.step_s == {1: 14.0, 2: 15.0}
    assert (run.reward[1], run.length[2]) == (0.5, 100.0)
    assert run.lengths[1].tolist() == [100.0] * 8
    assert run.bias == {"mean": 0.02, "p99": 0.0, "truncated": 0.0, "ks": 0.01}
    assert run.stream[5] == "data/5"
    assert run.shape == {"n_groups": 4, "replicas": 2, "n": 2}
    assert (run.speculation, run.split, run.uniform) == ("mtp", (2,), False)


def test_uniform_is_by_group_and_without_a_tail_pool(tmp_path):
    assert read_runlog(write_record(tmp_path / "a", [1.0], by_group=True)).uniform
    assert not read_runlog(write_record(tmp_path / "b", [1.0])).uniform


def test_a_plain_verl_run_is_read_from_its_metrics_over_resumes(tmp_path):
    write_metrics(tmp_path / "r" / "metrics-1.jsonl", [4.0, 5.0])
    write_metrics(tmp_path / "r" / "metrics-2.jsonl", [6.0, 7.0], first=2)
    (tmp_path / "r" / "rollouts").mkdir()
    run = read_runlog(tmp_path / "r", "plain")
    assert (run.label, run.generation_s) == ("plain", {1: 4.0, 2: 6.0, 3: 7.0})
    assert (run.reward[1], run.length[1], run.step_s[3]) == (0.4, 90.0, 17.0)
    assert not run.lengths
    assert read_runlog(tmp_path / "r" / "metrics-1.jsonl").steps == [1, 2]


def test_a_launch_without_a_finished_step_hides_no_other(tmp_path, monkeypatch):
    folder = write_metrics(tmp_path / "r" / "metrics-1.jsonl", [4.0, 5.0])
    (folder / "metrics-2.jsonl").touch()
    (folder / "metrics-3.jsonl").write_text('{"step": 3, "data": {"timing_s/g')  # being written
    monkeypatch.chdir(folder)
    run = read_runlog(".")
    assert (run.label, run.steps) == ("r", [1, 2])


def test_console_output_will_do(tmp_path):
    (tmp_path / "run.log").write_text("(pid=1) step:1 - timing_s/gen:14.5 - timing_s/step:20.0\n")
    assert read_runlog(tmp_path).generation_s == {1: 14.5}


def test_dumps_are_found_where_there_are_any(tmp_path):
    write_metrics(tmp_path / "metrics.jsonl", [1.0, 1.0])
    assert read_runlog(tmp_path).dump is None
    assert read_runlog(write_dump(tmp_path, {1: ["a", "b"], 2: ["c"]})).dump == tmp_path / "rollouts"


@pytest.mark.parametrize("spoilt", [{"plan": None}, {"groups": "x"}, {"cut_s": ...}])
def test_a_damaged_step_is_one_sentence(tmp_path, spoilt):
    write_record(tmp_path, [5.0, 5.0])
    path = tmp_path / "tailsieve" / "steps.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    step = next(line for line in lines if line["kind"] == "step")
    for key, value in spoilt.items():
        step.pop(key)
        if value is not ...:
            step[key] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"steps\.jsonl has a step that cannot be understood .*; it is damaged"):
        read_runlog(tmp_path)


def test_steps_without_a_time_are_left_out(tmp_path):
    write_record(tmp_path, [5.0, float("nan")])
    assert list(read_runlog(tmp_path).generation_s) == [1]
    write_record(tmp_path, [float("nan")])
    with pytest.raises(UserError, match="has no step with a time of generation"):
        read_runlog(tmp_path)


def test_what_is_no_run_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    write_record(tmp_path / "unborn", [])
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    for path, sentence in (
        ("none", "none does not exist; give a run's trainer.default_local_dir"),
        ("empty", "empty holds no log of a run"),
        ("unborn", "has no finished training step"),
        ("other.jsonl", "has no timing_s/gen of any step"),
    ):
        with pytest.raises(UserError, match=sentence):
            read_runlog(tmp_path / path)
