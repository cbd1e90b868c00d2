import pytest

from tailsieve_verl.config.schema import TailSieveConfig, TailSieveConfigError, build_policy, parse
from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy
from tailsieve_verl.curves import save_curve


def test_the_default_is_the_controller_with_its_own_defaults():
    policy = build_policy(parse(None), 64, 8)
    assert isinstance(policy, Controller)
    assert policy.config == ControllerConfig(q=0, m=0)
    assert (policy.context.tail_placement, policy.context.bulk_placement) == ("request", "request")
    assert isinstance(build_policy(parse({"policy": "inner_loop"}), 64, 8), InnerLoopPolicy)


def test_it_may_start_uniform_but_one_replica_or_one_group_needs_none():
    policy = build_policy(parse({"q": 0, "m": 0}), 64, 8)
    assert isinstance(policy, Controller)
    assert (policy.q, policy.m) == (0, 0)
    assert isinstance(build_policy(parse(None), 64, 1), FixedPolicy)
    assert isinstance(build_policy(parse(None), 1, 8), FixedPolicy)


def test_the_letter_of_the_paper_is_a_set_of_switches():
    names = ("reoptimise_q", "search_far", "predicted_test", "guard", "reenter")
    policy = build_policy(parse(dict.fromkeys(names, False)), 64, 8)
    assert all(getattr(policy.config, name) is False for name in names)
    assert all(getattr(TailSieveConfig(), name) is True for name in names)


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_a_curve_file_is_loaded(tmp_path, suffix):
    path = tmp_path / f"curve.{suffix}"
    curve = DecodeCurve([1, 64], [0.01, 0.02])
    save_curve(path, curve)
    policy = build_policy(parse({"curve": str(path)}), 64, 8)
    assert policy.evidence.curve == curve
    assert policy.evidence.confidence == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"curve": "/no/such/curve.json"}, r"tailsieve.curve=/no/such/curve.json cannot be used: .*No such file"),
        ({"curve": "curve.txt"}, r"cannot be used: path must end in .json or .csv"),
        ({"curve": 3}, r"curve=3 must be the path of a .json or .csv file, or null"),
        ({"guard": "yes"}, "guard=yes must be true or false"),
        ({"reoptimise_q": 1}, "reoptimise_q=1 must be true or false"),
        ({"outer_gain": 3}, "outer_gain=3 must be a share between 0 and 1"),
        ({"inner_gain": -0.1}, "inner_gain=-0.1 must be a share"),
        ({"switch_limit": 0}, "switch_limit=0 must be a whole number of at least 1"),
        ({"swich_limit": 5}, r"did you mean switch_limit\?"),
    ],
)
def test_bad_settings_are_one_sentence_each(settings, said):
    with pytest.raises(TailSieveConfigError, match=said) as error:
        build_policy(parse(settings), 64, 8)
    assert "\n" not in str(error.value)
