import time

import pytest

from tailsieve_verl.integration import replay_buffer
from tailsieve_verl.integration.replay_buffer import OffPolicyError, TailSieveReplayBuffer, check_batch


def tags(groups, sessions=2, version=4):
    tag = {"min_global_steps": version, "max_global_steps": version}
    return {f"{g}_{s}_0": dict(tag) for g in groups for s in range(sessions)}


def test_complete_and_on_policy():
    facts = check_batch(tags("ab"), {"a": 2, "b": 2}, 4)
    assert facts["b"] == ([0, 0], [0, 0], 4, 4)


def test_several_outputs_of_a_session_count_once():
    check_batch(tags("a") | {"a_0_1": {"min_global_steps": 4, "max_global_steps": 4}}, {"a": 2}, 4)


@pytest.mark.parametrize("field", ["min_global_steps", "max_global_steps"])
def test_another_version_is_refused(field):
    batch = tags("ab")
    batch["b_1_0"][field] = 3
    with pytest.raises(OffPolicyError, match=r"response 1 of group b .*current one is 4"):
        check_batch(batch, {"a": 2, "b": 2}, 4)


def test_an_incomplete_group_is_refused():
    with pytest.raises(OffPolicyError, match="group b has 2 of 3"):
        check_batch(tags("ab"), {"a": 2, "b": 3}, 4)
    with pytest.raises(OffPolicyError, match="group c has 0 of 2"):
        check_batch(tags("ab"), {"c": 2}, 4)


def validating(look_after):
    return TailSieveReplayBuffer(
        dict, look_after, trainer_mode="sync", trainer_config={}, max_off_policy_threshold=8,
        max_off_policy_strategy="drop", sampler_kwargs={},
    )  # fmt: skip


def test_a_validation_that_is_awaited_is_looked_after(monkeypatch):
    monkeypatch.setattr(replay_buffer, "VALIDATION_CHECK_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda s: None)
    seen = []

    def look_after(done, idle_s):
        seen.append((done, idle_s))
        if len(seen) == 3:
            raise TimeoutError("enough")

    buffer = validating(look_after)
    buffer._wait_for_next_poll("val", 0.0)
    buffer.finished_keys["val"] = {"a"}
    buffer._wait_for_next_poll("val", 0.0)
    with pytest.raises(TimeoutError):
        buffer._wait_for_next_poll("val", 0.0)
    assert [done for done, _ in seen] == [0, 1, 1]
    assert seen[1][1] == 0.0
    assert seen[2][1] > 0.0


def test_a_store_that_answers_slowly_is_asked_less_often(monkeypatch):
    """A poll of 3 ms has the shortest pause after it, one of 40 ms ten times that, and none more than verl's."""
    clock, pauses = [1000.0], []

    def sleep(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    buffer = validating(lambda done, idle_s: None)
    buffer._waited_at = clock[0]  # as sample() sets it
    for poll_s in (0.003, 0.04, 0.4):
        clock[0] += poll_s
        buffer._wait_for_next_poll("val", 0.0)
    assert pauses == [0.1, pytest.approx(0.4), 2.0]
