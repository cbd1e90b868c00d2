"""Policies by name: the presets of a run, their settings, and sentences for what is wrong."""

import pytest

from tailsieve_verl.core.controller import Controller
from tailsieve_verl.core.placement import StreamRLOracle
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy
from tailsieve_verl.core.speculation import DepthTable
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.drafting import PoolDepths
from tailsieve_verl.simulate.policies import NAMES, parse_policies, parse_policy


def test_names_build_what_a_run_builds():
    built = {name: parse_policy(name).build(64, 8) for name in NAMES}
    assert isinstance(built["tailsieve"][0], Controller)
    assert built["tailsieve"][0].context.tail_placement == "request"
    assert built["paper"][0].context.tail_placement == "group"
    assert not built["paper"][0].config.predicted_test
    assert isinstance(built["inner_loop"][0], InnerLoopPolicy)
    assert isinstance(built["fixed"][0], FixedPolicy)
    assert built["uniform_group"][0].context.bulk_placement == "group"
    assert built["verl_default"][0].plan().counts.tail == 0
    assert built["verl_default"][0].context.bulk_placement == "request"
    assert isinstance(built["streamrl_oracle"][1], StreamRLOracle)
    assert built["streamrl_oracle"][1].m == 4
    assert [name for name in NAMES if built[name][2]] == ["tailsieve", "paper", "history", "auto"]


def test_settings_are_those_of_the_run():
    spec = parse_policy("tailsieve:q=3,m=2,guard=false,inner_gain=0.1")
    policy = spec.build(64, 8)[0]
    assert (policy.q, policy.m, policy.config.guard, policy.config.inner_gain) == (3, 2, False, 0.1)
    assert spec.label == "tailsieve:q=3,m=2,guard=False,inner_gain=0.1"
    assert [s.label for s in parse_policies(["fixed", "paper", "fixed"])] == ["fixed", "paper"]


def test_any_policy_may_draft():
    assert parse_policy("verl_default").depths is None
    both = parse_policy("seer_oracle:depth=3").depths
    assert both == PoolDepths(DepthTable.constant(3), DepthTable.constant(3))
    spec = parse_policy("fixed:q=8,m=2,depth=auto,depth.tail=1:5/8:2")
    assert spec.depths == PoolDepths("auto", DepthTable(((1, 5), (8, 2))))
    assert spec.depths.deepest == 5
    assert spec.label == "fixed:q=8,m=2,depth=auto,depth.tail=1:5/8:2"
    assert spec.build(64, 8)[0].plan().counts.left_over == 8
    assert parse_policy("tailsieve:depth.tail=3").depths == PoolDepths(None, DepthTable.constant(3))
    with pytest.raises(UserError, match="depth 'deep' must be"):
        _ = parse_policy("fixed:depth=deep").depths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tailsive", "policy 'tailsive' is unknown; choose among uniform_group"),
        ("fixed:q", "write settings as fixed:key=value"),
        ("fixed:qq=3", "qq is not a TailSieve setting"),
        ("fixed:q=99,m=2", "q=99 must be between 1 and 63"),
        ("fixed:q=4,m=8", "m=8 must be between 1 and 7"),
        ("streamrl_oracle:m=8", "m must be below the 8 replicas"),
        ("streamrl_oracle:k=8", "streamrl_oracle:k=8"),
    ],
)
def test_wrong_policies_are_named(text, message):
    with pytest.raises(UserError, match=message):
        parse_policy(text).build(64, 8)
