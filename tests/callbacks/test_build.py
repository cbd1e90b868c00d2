"""Classes named in the configuration: what is refused before an engine starts, in one sentence each."""

import pytest
from omegaconf import OmegaConf

from tailsieve_verl.callbacks import Callback, EarlyWarning
from tailsieve_verl.callbacks.build import build_callbacks, build_placement, build_selector
from tailsieve_verl.config.schema import TailSieveConfigError, build_policy, parse
from tailsieve_verl.core.custom import PoolPlacement, SplitPolicy, TailSelector
from tailsieve_verl.core.policy import FixedPolicy

HERE = "tests.callbacks.test_build"


class Mine(Callback):
    def __init__(self, steps, why="x"):
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.steps = steps


class NoCallback:
    pass


class Snake(PoolPlacement):
    like = "group"

    def slots(self, groups, replicas):
        return [[0] * g.sessions for g in groups]


class LikeNothing(Snake):
    like = "snake"


class Reverse(TailSelector):
    def order(self, cut):
        return list(range(len(cut)))[::-1]


class MyPolicy(SplitPolicy):
    def decide(self, observation):
        return 1, 1, "always"


def built(**settings):
    config = parse(settings)
    build_policy(config, 8, 4)
    build_placement(config, "tail")
    build_placement(config, "bulk")
    build_selector(config)
    return build_callbacks(config)


def test_callbacks_come_in_their_order_with_their_arguments():
    raw = OmegaConf.create(
        {"callbacks": [{"_target_": f"{HERE}.Mine", "steps": 3}, {"_target_": "tailsieve_verl.callbacks.EarlyWarning"}]}
    )
    first, second = built(**OmegaConf.to_container(raw))
    assert isinstance(first, Callback)
    assert first.steps == 3
    assert isinstance(second, EarlyWarning)


def test_policies_placements_and_selectors_by_target():
    config = parse(
        {
            "policy": {"_target_": f"{HERE}.MyPolicy", "q": 2, "m": 1},
            "tail_placement": {"_target_": f"{HERE}.Snake"},
            "tail_selector": {"_target_": f"{HERE}.Reverse"},
        }
    )
    policy = build_policy(config, 8, 4)
    assert type(policy).__name__ == "MyPolicy"
    assert (policy.q, policy.m, policy.context.tail_placement) == (2, 1, "group")
    assert type(build_placement(config, "tail")).__name__ == "Snake"
    assert build_placement(config, "bulk") is None
    assert type(build_selector(config)).__name__ == "Reverse"
    assert isinstance(build_policy(parse({"policy": "fixed"}), 8, 4), FixedPolicy)


BAD = {
    "no list": ({"callbacks": {"_target_": "a.B"}}, r"callbacks=.* must be a list, for example \[\{_target_: "),
    "no target": ({"callbacks": [{"steps": 3}]}, r"callbacks\[0\]=.* must name a class, for example \{_target_: "),
    "a name alone": ({"callbacks": ["x.Y"]}, r"callbacks\[0\]=x.Y must name a class"),
    "no dot": ({"callbacks": [{"_target_": "Y"}]}, r"callbacks\[0\]=.* must name a class"),
    "hydra's own": (
        {"callbacks": [{"_target_": "x.Y", "_partial_": True}]},
        r"callbacks\[0\] has _partial_: beside _target_ only keyword arguments",
    ),
    "no module": (
        {"callbacks": [{"_target_": "nowhere.to.Be"}]},
        r"callbacks\[0\]: nowhere.to.Be cannot be imported \(ModuleNotFoundError: .*\); is its module on PYTHONPATH\?",
    ),
    "no such class": (
        {"callbacks": [{"_target_": "tailsieve_verl.callbacks.EarlyWarnin"}]},
        r"callbacks\[0\]: .* has no EarlyWarnin; did you mean EarlyWarning\?",
    ),
    "no class": ({"callbacks": [{"_target_": f"{HERE}.built"}]}, r"callbacks\[0\]: .* is a function, not a class"),
    "no subclass": (
        {"callbacks": [{"_target_": f"{HERE}.NoCallback"}]},
        r"callbacks\[0\]: .*NoCallback is not a subclass of tailsieve_verl.callbacks.base.Callback; derive it",
    ),
    "unknown argument": (
        {"callbacks": [{"_target_": f"{HERE}.Mine", "steps": 3, "stepps": 3}]},
        r"callbacks\[0\]: .*Mine: .*'stepps'; it takes \(steps, why='x'\)\.",
    ),
    "missing argument": ({"callbacks": [{"_target_": f"{HERE}.Mine"}]}, r"missing a required argument: 'steps'"),
    "refused argument": (
        {"callbacks": [{"_target_": f"{HERE}.Mine", "steps": 0}]},
        r"callbacks\[0\]: .*Mine refuses its arguments: ValueError: steps must be at least 1, got 0",
    ),
    "strict": ({"callbacks_strict": "yes"}, r"callbacks_strict=yes must be true or false"),
    "deadline": ({"callback_deadline_s": 0}, r"callback_deadline_s=0 must be a positive number of seconds"),
    "policy": ({"policy": {"_target_": f"{HERE}.NoCallback"}}, r"policy: .* is not a subclass of .*SplitPolicy"),
    "policy's split": (
        {"policy": {"_target_": f"{HERE}.MyPolicy", "q": 8, "m": 1}},
        r"policy: .*MyPolicy refuses its arguments: ValueError: q=8 must be between 1 and 7",
    ),
    "abstract": ({"policy": {"_target_": "tailsieve_verl.core.custom.SplitPolicy"}}, r"policy: .* abstract"),
    "placement": ({"tail_placement": {"_target_": f"{HERE}.Reverse"}}, r"tail_placement: .* of .*PoolPlacement"),
    "placement like": ({"bulk_placement": {"_target_": f"{HERE}.LikeNothing"}}, r"bulk_placement=snake is unknown"),
    "placement's name": ({"tail_placement": "snake"}, r"tail_placement=snake is unknown; choose one of group, request"),
    "selector": ({"tail_selector": {"_target_": f"{HERE}.Snake"}}, r"tail_selector: .* subclass of .*TailSelector"),
    "selector's name": ({"tail_selector": "longest"}, r"tail_selector=longest must name a class"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_classes_are_one_sentence(name):
    settings, said = BAD[name]
    with pytest.raises(TailSieveConfigError, match=said) as error:
        built(**settings)
    assert str(error.value).startswith("trainer.v1.tailsieve.")
    assert "\n" not in str(error.value)
