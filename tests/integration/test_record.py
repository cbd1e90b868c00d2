from tailsieve_verl.core.plan import Decision, LaunchCounts, StepObservation, StepPlan
from tailsieve_verl.integration.record import RunRecord
from tailsieve_verl.records.read import read_steps


def write_step(record, step, reward):
    plan = StepPlan(step, 2, 2, 0, 0, LaunchCounts(0, 0, 2, 2))
    observation = StepObservation(plan, None, 1.0, 1.0, 0.0, ())
    record.step(observation, Decision(step, 0, 0, True, False, "test"), batch={}, metrics={})
    record.trained(step, {"reward": reward})


def test_a_resume_voids_the_steps_it_runs_again(tmp_path):
    record = RunRecord(tmp_path)
    record.start({}, first_step=1)
    for step in (1, 2, 3):
        write_step(record, step, 0.1 * step)
    RunRecord(tmp_path).start({}, first_step=3)
    write_step(record, 3, 0.9)
    steps = read_steps(tmp_path)
    assert [s["step"] for s in steps] == [1, 2, 3]
    assert steps[2]["trained"] == {"reward": 0.9}


def test_a_torn_last_line_is_ignored(tmp_path):
    record = RunRecord(tmp_path)
    record.start({}, first_step=1)
    write_step(record, 1, 0.5)
    with record.path.open("a") as file:
        file.write('{"kind": "step", "step": 2, "gro')
    assert [s["step"] for s in read_steps(tmp_path)] == [1]


def test_a_resume_after_a_torn_line_is_seen(tmp_path):
    record = RunRecord(tmp_path)
    record.start({}, first_step=1)
    for step in (1, 2):
        write_step(record, step, 0.5)
    with record.path.open("a") as file:
        file.write('{"kind": "step", "step": 3, "gro')
    RunRecord(tmp_path).start({}, first_step=2)
    assert [s["step"] for s in read_steps(tmp_path)] == [1]


def test_a_disk_that_fails_ends_the_record_and_not_the_run(tmp_path, caplog):
    (tmp_path / "tailsieve").write_text("a file where the folder should be")
    record = RunRecord(tmp_path)
    record.start({}, first_step=1)
    write_step(record, 1, 0.5)
    assert caplog.text.count("cannot be written any more") == 1


def test_a_decision_that_cannot_be_written_ends_the_record_and_not_the_run(tmp_path, caplog):
    record = RunRecord(tmp_path)
    plan = StepPlan(1, 2, 2, 0, 0, LaunchCounts(0, 0, 2, 2))
    odd = Decision(1, 0, 0, True, False, "test", candidates=("no dataclass",))
    record.step(StepObservation(plan, None, 1.0, 1.0, 0.0, ()), odd, batch={}, metrics={})
    assert caplog.text.count("cannot be written any more") == 1


def test_it_can_be_switched_off(tmp_path):
    RunRecord(tmp_path, enabled=False).start({}, first_step=1)
    assert not list(tmp_path.iterdir())
