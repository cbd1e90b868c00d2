import pytest

from tailsieve_verl.config.schema import TailSieveConfig, TailSieveConfigError, build_policy, parse, resolve_split


def test_defaults():
    assert parse(None) == TailSieveConfig() == parse({})
    assert resolve_split(TailSieveConfig(), 64, 8) == (0, 0)  # measure first, then split
    assert resolve_split(TailSieveConfig(q=4), 64, 8) == (4, 4)
    assert resolve_split(TailSieveConfig(m=2), 64, 8) == (8, 2)
    assert resolve_split(TailSieveConfig(reenter=False), 64, 8) == (8, 4)
    assert resolve_split(TailSieveConfig(policy="fixed"), 64, 8) == (8, 4)
    assert resolve_split(TailSieveConfig(policy="fixed"), 4, 2) == (1, 1)


@pytest.mark.parametrize(("n_groups", "replicas"), [(64, 1), (1, 4)])
def test_nothing_to_route_is_uniform(n_groups, replicas):
    plan = build_policy(parse({"policy": "fixed", "q": 8, "m": 4}), n_groups, replicas).plan(step=1, carried=0)
    assert (plan.q, plan.m) == (0, 0)


def test_uniform_group_keeps_groups_together_on_all_replicas():
    policy = build_policy(parse({"policy": "uniform_group", "q": 8, "m": 2}), 64, 4)  # a split is there to compare with
    plan = policy.plan(step=1, carried=0)
    assert (plan.q, plan.bulk_placement, len(plan.bulk_replicas)) == (0, "group", 4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"q": 64}, r"tailsieve.q and trainer.v1.tailsieve.m: q=64 must be between 1 and 63"),
        ({"q": 100}, "q=100 must be between 1 and 63"),
        ({"q": -1}, r"tailsieve.q=-1 must be a whole number of at least 0"),
        ({"q": 2.5}, r"q=2.5 must be a whole number"),
        ({"m": 4}, "m=4 must be between 1 and 3"),
        ({"m": 9}, "m=9 must be between 1 and 3"),
        ({"q": 0, "m": 2}, "q=0 must be between 1 and 63"),
        ({"q": 4, "m": 0}, "m=0 must be between 1 and 3"),
        ({"policy": "magic"}, r"policy=magic is unknown; choose one of .*fixed"),
        ({"polcy": "fixed"}, r"tailsieve.polcy is not a TailSieve setting; did you mean policy\?"),
        ({"zzz": 1}, "zzz is not a TailSieve setting; known keys are policy"),
        ({"tail_placement": "token"}, "tail_placement=token is unknown; choose one of group, request"),
        ({"stall_deadline_s": 0}, "stall_deadline_s=0 must be a positive number of seconds"),
        ({"max_retries": True}, "max_retries=True must be a whole number"),
        ({"record": "yes"}, "record=yes must be true or false"),
        ({"schedule": {3: [4, 1]}}, r"schedule needs trainer.v1.tailsieve.policy=fixed"),
        ({"policy": "fixed", "schedule": {3: [64, 1]}}, r"schedule at step 3: q=64 must be"),
        ({"policy": "fixed", "schedule": {3: 4}}, r"schedule has 3: 4; write each entry as step: \[q, m\]"),
        ({"policy": "fixed", "schedule": {3: [4.7, 1]}}, r"schedule has 3: \[4.7, 1\]; write each entry"),
        ({"policy": "fixed", "schedule": {3.5: [4, 1]}}, r"schedule has 3.5: \[4, 1\]; write each entry"),
        ({"policy": "fixed", "schedule": {3: "41"}}, "schedule has 3: 41; write each entry"),
        ({"policy": "fixed", "schedule": {3: [True, 1]}}, r"schedule has 3: \[True, 1\]; write each entry"),
        ({"policy": "fixed", "schedule": {0: [4, 1]}}, "schedule has step 0; steps count from 1"),
        ({"policy": "fixed", "schedule": [4, 1]}, r"schedule=\[4, 1\] must be a mapping of step: \[q, m\]"),
        ({"policy": "fixed", "schedule": {3: [float("inf"), 1]}}, r"schedule has 3: \[inf, 1\]; write each entry"),
        ({"stall_deadline_s": float("inf")}, "stall_deadline_s=inf must be a positive number of seconds, at most"),
        ({"sync_deadline_s": 1e300}, "sync_deadline_s=1e.300 must be a positive number of seconds, at most"),
        ({"selector": "history", "history_scenarios": 5000}, "history_scenarios=5000 must be at most 1024"),
        ({"selector": "history", "history_from": ""}, "history_from= must be a path, or null"),
        ([1], r"tailsieve=\[1\] must be a mapping of settings"),
        (5, "tailsieve=5 must be a mapping of settings"),
    ],
)
def test_bad_settings_are_one_sentence_each(settings, said):
    with pytest.raises(TailSieveConfigError, match=said) as error:
        build_policy(parse(settings), 64, 4)
    assert "\n" not in str(error.value)


def test_a_schedule_may_begin_with_uniform_routing():
    policy = build_policy(parse({"policy": "fixed", "q": 0, "m": 0, "schedule": {"5": [4, 1], 9: [0, 0]}}), 64, 8)
    assert [policy.split_at(step) for step in (1, 5, 8, 9)] == [(0, 0), (4, 1), (4, 1), (0, 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": {"_target_": "mine.Policy"}, "m": 2}, "tailsieve.m=2 is not used by policy=mine.Policy; give it"),
        ({"policy": "fixed", "curve": "curve.json"}, "tailsieve.curve needs .*policy=controller"),
    ],
)
def test_what_the_policy_would_not_look_at_is_refused(settings, message):
    with pytest.raises(TailSieveConfigError, match=message):
        parse(settings)
