import json

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.integration.record import RunRecord
from tailsieve_verl.records.lines import SCHEMA
from tailsieve_verl.records.read import decision_of, observation_of, read_run

from .steps import decision, observation


def write(folder, *steps, first_step=1):
    record = RunRecord(folder)
    record.start({"n_groups": 4, "replicas": 4, "n": 2}, first_step=first_step)
    for step in steps:
        record.step(observation(step), decision(step), batch={}, metrics={"bias/mean": -0.01})
        record.trained(step, {"reward": step / 7})
    return record


def test_what_was_written_is_read_and_built_again_exactly(tmp_path):
    write(tmp_path, 1, 2)
    run = read_run(tmp_path)
    assert run.run == {"n_groups": 4, "replicas": 4, "n": 2}
    assert [observation_of(s) for s in run.steps] == [observation(1), observation(2)]
    assert [decision_of(s) for s in run.steps] == [decision(1), decision(2)]
    assert [s["trained"]["reward"] for s in run.steps] == [1 / 7, 2 / 7]
    assert run.steps[0]["metrics"] == {"bias/mean": -0.01}
    assert (run.skipped, run.resumes) == (0, 0)


def test_the_file_itself_may_be_named(tmp_path):
    record = write(tmp_path, 1)
    assert read_run(record.path) == read_run(tmp_path)


@pytest.mark.parametrize("length", [1, 30, 400])
def test_a_line_cut_off_anywhere_is_skipped(tmp_path, length):
    record = write(tmp_path, 1, 2, 3)
    lines = record.path.read_text().splitlines(keepends=True)
    record.path.write_text("".join(lines[:-2]) + lines[-2][:length])
    run = read_run(tmp_path)
    assert [s["step"] for s in run.steps] == [1, 2]
    assert run.skipped == 1


def test_every_prefix_of_a_record_can_be_read(tmp_path):
    """A reader that looks while a line is being written sees the steps before it."""
    record = write(tmp_path, 1, 2)
    whole = record.path.read_bytes()
    for end in range(0, len(whole), 37):
        record.path.write_bytes(whole[:end])
        assert [s["step"] for s in read_run(tmp_path).steps] in ([], [1], [1, 2])


def test_a_resume_after_a_torn_line_counts_each_step_once(tmp_path):
    record = write(tmp_path, 1, 2, 3)
    with record.path.open("a") as file:
        file.write('{"kind": "step", "step": 4, "gro')
    write(tmp_path, 3, 4, first_step=3)
    run = read_run(tmp_path)
    assert [s["step"] for s in run.steps] == [1, 2, 3, 4]
    assert (run.skipped, run.resumes) == (1, 1)


def test_a_newer_schema_is_one_sentence(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps({"kind": "start", "schema": SCHEMA + 1, "first_step": 1}) + "\n")
    with pytest.raises(UserError, match=rf"has schema {SCHEMA + 1}, .* up to {SCHEMA}; upgrade tailsieve_verl\.$"):
        read_run(path)


def test_the_first_schema_is_read(tmp_path):
    record = write(tmp_path, 1)
    record.path.write_text(record.path.read_text().replace(f'"schema": {SCHEMA}', '"schema": 1'))
    assert len(read_run(tmp_path).steps) == 1


def test_kinds_and_fields_of_a_later_version_are_passed_over(tmp_path):
    record = write(tmp_path, 1)
    lines = [json.loads(text) for text in record.path.read_text().splitlines()]
    lines[1]["groups"][0]["colour"] = lines[1]["decision"]["mood"] = "blue"
    lines.append({"kind": "weather", "step": 1, "wind": 3})
    record.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    step = read_run(tmp_path).steps[0]
    assert (observation_of(step), decision_of(step)) == (observation(1), decision(1))


def test_a_step_trained_without_metrics_has_none(tmp_path):
    path = write(tmp_path, 1).path
    with path.open("a") as file:
        file.write('{"kind": "trained", "step": 1}\n')
    run = read_run(tmp_path)
    assert (run.steps[0]["trained"], run.skipped) == ({}, 1)


@pytest.mark.parametrize("text", ["", "\n", "7\n[1]\nnull\n", '{"kind": "step"}\n', "\x00\xff\n"])
def test_an_empty_or_spoilt_record_has_no_steps(tmp_path, text):
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    assert read_run(path).steps == ()


def test_a_run_that_only_began_has_no_steps(tmp_path):
    write(tmp_path)
    assert read_run(tmp_path).steps == ()
    assert read_run(tmp_path).run["n_groups"] == 4


def test_no_record_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"steps.jsonl cannot be read .* trainer.default_local_dir of a run"):
        read_run(tmp_path)
