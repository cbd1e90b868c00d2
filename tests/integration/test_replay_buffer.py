import pytest

from tailsieve_verl.integration.replay_buffer import OffPolicyError, check_batch


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
