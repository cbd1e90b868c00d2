"""Settings of the selectors: what they build, and what is said of wrong ones."""

import pytest

from tailsieve_verl.config.schema import TailSieveConfigError, build_policy, parse
from tailsieve_verl.core.controller import Controller
from tailsieve_verl.core.policy import FixedPolicy
from tailsieve_verl.core.selector import HistorySelector
from tailsieve_verl.integration import preflight

from .compose import compose


@pytest.mark.parametrize(
    ("name", "more", "every"), [("history", {}, 50), ("auto", {}, 50), ("auto", {"history_control_every": 7}, 7)]
)
def test_a_selector_wraps_the_controller(name, more, every):
    policy = build_policy(parse({"selector": name, "history_q": 1, **more}), 8, 4)
    assert isinstance(policy, HistorySelector)
    assert (policy.config.name, policy.config.q, policy.config.control_every) == (name, 1, every)
    assert isinstance(policy.controller, Controller)


def test_the_default_selects_by_the_cutoff():
    assert isinstance(build_policy(parse({}), 8, 4), Controller)


@pytest.mark.parametrize(("n_groups", "replicas"), [(8, 1), (1, 4)])
def test_where_nothing_can_be_routed_no_selector_is_built(n_groups, replicas):
    assert isinstance(build_policy(parse({"selector": "auto"}), n_groups, replicas), FixedPolicy)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"selector": "best"}, "selector=best is unknown; choose one of cutoff, history, auto"),
        ({"selector": "history", "policy": "fixed"}, "selector=history needs .*policy=controller"),
        ({"history_from": "runs/1"}, "history_from=runs/1 needs .*selector=history or auto; set that, or remove it"),
        ({"history_q": 1}, "history_q=1 needs .*selector=history or auto"),
        ({"history_scenarios": 4}, "history_scenarios=4 needs .*selector=history or auto"),
        ({"selector": "history", "history_control_every": 7}, "history_control_every=7 needs .*selector=auto"),
        ({"selector": "auto", "history_from": 3}, "history_from=3 must be a path"),
        ({"selector": "auto", "history_q": -1}, "history_q=-1 must be a whole number of at least 0"),
        ({"selector": "auto", "history_scenarios": 0}, "history_scenarios=0 must be a whole number of at least 1"),
        ({"selector": "auto", "history_control_every": 1}, "history_control_every=1 must be"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, said):
    with pytest.raises(TailSieveConfigError, match=said):
        parse(settings)


def test_a_deferral_of_more_than_half_is_refused():
    with pytest.raises(TailSieveConfigError, match="history_q=5 must be at most half of the 8"):
        build_policy(parse({"selector": "auto", "history_q": 5}), 8, 4)


def test_an_earlier_run_that_is_not_there_is_named_before_anything_starts(tmp_path):
    source = "trainer.v1.tailsieve.history_from="
    preflight.check(compose("+tailsieve=history", f"{source}{tmp_path}", n_groups=8, n=4, replicas=4))
    with pytest.raises(TailSieveConfigError, match=r"history_from=.*none does not exist"):
        preflight.check(compose("+tailsieve=history", f"{source}{tmp_path}/none", n_groups=8, n=4, replicas=4))
