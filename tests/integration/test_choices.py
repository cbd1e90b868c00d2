"""What a run is built from, and when a saved policy goes on or starts afresh."""

import pytest

from tailsieve_verl.config.schema import parse
from tailsieve_verl.core.custom import SplitPolicy
from tailsieve_verl.core.policy import FixedPolicy
from tailsieve_verl.integration.choices import (
    build_choices,
    guarded_placements,
    guarded_selector,
    identity,
    restore,
)

from ..records.steps import group

N, R = 16, 4


def built(**raw):
    """Policy, forecast and identity of a run with these settings."""
    split = {} if isinstance(raw.get("policy"), dict) else {"q": 2, "m": 1}
    settings = parse({**split, **raw})
    policy, _, forecast = build_choices(settings, N, R)
    return policy, forecast, identity(settings, R)


def saved(policy, mine):
    return {**mine, "state": policy.state_dict()}


def restored(policy, state, mine, forecast):
    restore(policy, state, mine, steering=None, by_history=forecast is not None)


def test_only_a_selector_by_history_has_a_forecast():
    assert built(policy="fixed")[1] is None
    assert built(policy="controller", selector="cutoff")[1] is None
    assert built(policy="controller", selector="auto")[1] is not None


class FourMethods:
    """A policy of one's own with the four methods alone."""

    def __init__(self, context):
        self.fixed = FixedPolicy(context, 3, 1)
        for name in ("plan", "observe", "state_dict", "load_state_dict"):
            setattr(self, name, getattr(self.fixed, name))

    def plan(self): ...
    def observe(self): ...
    def state_dict(self): ...
    def load_state_dict(self): ...


def test_four_methods_are_enough_for_a_policy():
    policy, _, _ = built(policy={"_target_": f"{__name__}.FourMethods"})
    plan = policy.plan(step=1, carried=0)
    assert (plan.q, policy.failure, policy.context.replicas) == (3, None, R)


def test_without_own_choices_ours_are_used():
    settings = parse({"q": 2, "m": 1})
    assert guarded_placements(settings) == {}
    assert guarded_selector(settings).order([group(1, status="cut"), group(2, status="cut")]) == [0, 1]


def test_the_same_policy_goes_on(caplog):
    before, _, mine = built(policy="controller", selector="auto", q=3)
    policy, forecast, _ = built(policy="controller", selector="auto")
    restored(policy, saved(before, mine), mine, forecast)
    assert policy.plan().q == 3
    assert not caplog.records


def test_the_controller_of_a_saved_selector_goes_on_without_it():
    before, _, mine = built(policy="controller", selector="auto", q=3)
    policy, forecast, _ = built(policy="controller", selector="cutoff")
    restored(policy, saved(before, mine), mine, forecast)
    assert policy.plan().q == 3
    assert policy.failure is None


class Remembering(SplitPolicy):
    """A policy of one's own whose state has names that ours has, too."""

    def __init__(self, context):
        super().__init__(context, 3, 1)
        self.memory = {"controller": {"gain": 1}, "failed": 0}

    def decide(self, observation):
        return self.q, self.m, "stays"

    def state_dict(self):
        return self.memory

    def load_state_dict(self, state):
        self.memory = {**state, "restored": True}


def test_a_state_of_one_s_own_comes_back_whole(caplog):
    own = {"policy": {"_target_": f"{__name__}.Remembering"}}
    policy, _, mine = built(**own)
    again, forecast, _ = built(**own)
    restored(again, saved(policy, mine), mine, forecast)
    assert again.state_dict() == {"controller": {"gain": 1}, "failed": 0, "restored": True}
    assert not caplog.text


@pytest.mark.parametrize("other", [{"policy": "inner_loop"}, {"policy": "controller", "replicas": 8}])
def test_another_policy_starts_afresh(other, caplog):
    before, _, mine = built(policy="controller", q=3)
    policy, forecast, own = built(policy=other["policy"])
    own = {**own, "replicas": other.get("replicas", R)}
    restored(policy, saved(before, mine), own, forecast)
    assert policy.plan().q == 2
    assert "the policy starts afresh" in caplog.text
