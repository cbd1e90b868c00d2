import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.plan import Decision, StepObservation
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy, PolicyContext
from tailsieve_verl.core.steering import Request, SteeredPolicy

from .closed_loop import DENSE, LOADS, N, Rollout

ORDER = ("first", "second", "third")


def steered(q=4, m=2, n_groups=16, replicas=4):
    return SteeredPolicy(FixedPolicy(PolicyContext(n_groups, replicas), q, m), ORDER)


def pin(by="first", why="x", **split):
    return Request(by, "pin", why, **split)


class Moving:
    """A policy that wants another split after every step; it cannot be held."""

    def __init__(self, context, splits):
        self.context, self.splits, self.seen = context, dict(splits), []

    def plan(self, **arguments):
        return FixedPolicy(self.context, *self.splits[arguments["step"]]).plan(**arguments)

    def observe(self, observation):
        step = observation.plan.step
        self.seen.append((observation.plan.q, observation.plan.m))
        return Decision(step, *self.splits[step + 1], True, True, "it moves")

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def seen(plan):
    """An observation of a plan; the policies here look at nothing else."""
    return StepObservation(plan, 1.0, 1.0, 1.0, 0.0, ())


def step(policy, number, carried=0, ask=(), late=()):
    """One step: its plan, and the decision with what is asked for before and after the policy's own."""
    plan = policy.plan(step=number, carried=carried)
    for request in ask:
        policy.request(request)
    policy.observe(seen(plan))
    for request in late:
        policy.request(request)
    return plan, policy.amend()


def test_without_requests_nothing_changes():
    policy, plain = steered(), FixedPolicy(PolicyContext(16, 4), 4, 2)
    for number in (1, 2, 3):
        plan, decision = step(policy, number, carried=4)
        assert plan == plain.plan(step=number, carried=4)
        assert decision == plain.observe(seen(plan))


def test_a_pin_holds_from_the_next_step_until_it_is_taken_back():
    policy = steered()
    plan, decision = step(policy, 1, ask=[pin(q=6, m=1)])
    assert plan.q == 4
    assert (decision.q, decision.m, decision.switched) == (6, 1, True)
    assert decision.reason == "q=6, m=1 pinned by first (x); the policy: fixed by the configuration"
    plan, decision = step(policy, 2, carried=6)
    assert (plan.q, plan.m, plan.counts.tail, decision.switched) == (6, 1, 6, False)
    assert plan.reason.startswith("q=6, m=1 pinned by first")
    plan, decision = step(policy, 3, carried=6, ask=[Request("first", "unpin")])
    assert plan.q == 6
    assert (decision.q, decision.m, decision.switched, decision.reason) == (4, 2, True, "fixed by the configuration")
    assert policy.plan(step=4, carried=6).q == 4


def test_a_pin_before_the_first_step_holds_in_it():
    policy = steered(0, 0)
    policy.request(pin(q=3, m=1))
    assert policy.plan(step=1).q == 3
    assert policy.plan(step=1).reason == "q=3, m=1 pinned by first (x)"


def test_a_pin_of_one_number_leaves_the_other_to_the_policy():
    policy = SteeredPolicy(Moving(PolicyContext(16, 4), {1: (2, 1), 2: (3, 1), 3: (5, 2), 4: (0, 0)}), ORDER)
    _, first = step(policy, 1, ask=[pin(m=3)])
    _, second = step(policy, 2, carried=3)
    _, third = step(policy, 3, carried=5)
    assert [(d.q, d.m) for d in (first, second, third)] == [(3, 3), (5, 3), (2, 3)]  # uniform: the default N // 8


def test_a_veto_keeps_the_split_for_one_step():
    policy = SteeredPolicy(Moving(PolicyContext(16, 4), {1: (2, 1), 2: (3, 1), 3: (4, 1)}), ORDER)
    _, decision = step(policy, 1, late=[Request("second", "veto", "too early")])
    assert (decision.q, decision.m, decision.switched) == (2, 1, False)
    assert decision.reason == "move to (3, 1) vetoed by second (too early); the policy: it moves"
    plan, decision = step(policy, 2, carried=2)
    assert (plan.q, decision.q, decision.switched) == (2, 4, True)
    assert policy._policy.seen == [(2, 0), (2, 1)]


def test_a_veto_of_nothing_leaves_no_word():
    assert step(steered(), 1, late=[Request("first", "veto", "no")])[1].reason == "fixed by the configuration"


CONTRADICTIONS = {
    "the last pin": ([pin(q=5), pin("second", q=6)], (6, 2), "q=6 pinned by second (x) over first"),
    "whenever it was asked": ([pin("second", q=6), pin(q=5)], (6, 2), "q=6 pinned by second (x) over first"),
    "each its own": ([pin(q=5), pin("second", m=3)], (5, 3), "q=5 pinned by first (x), m=3 pinned by second (x)"),
    "the same twice": ([pin(q=5), pin("second", q=5)], (5, 2), "q=5 pinned by second (x)"),
    "half of a pin": (
        [pin(q=5, m=1), pin("second", m=3)], (5, 3), "q=5 pinned by first (x), m=3 pinned by second (x) over first"
    ),
    "uniform": ([pin(q=5, m=1), Request("second", "uniform", "x")], (0, 0), "uniform pinned by second (x) over first"),
    "after uniform": ([Request("first", "uniform"), pin("second", q=5)], (5, 2), "q=5 pinned by second (x) over first"),
    "a veto": ([pin(q=5), Request("second", "veto", "x")], (4, 2), "move to (5, 2) vetoed by second (x) over first"),
    "after a veto": (
        [pin(q=7), Request("second", "veto"), pin("third", q=6)],
        (6, 2),
        "q=6 pinned by third (x) over second, move to (7, 2) vetoed by second over first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_callbacks_that_contradict(name):
    requests, split, words = CONTRADICTIONS[name]
    _, decision = step(steered(), 1, ask=requests)
    assert (decision.q, decision.m) == split
    assert decision.reason == f"{words}; the policy: fixed by the configuration"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (pin(), "a pin needs q, m or both"),
        (pin(q=16), r"q must be a whole number in \[1, 15\], got 16"),
        (pin(q=-1), r"q must be a whole number in \[1, 15\], got -1"),
        (pin(q="four"), r"q must be a whole number in \[1, 15\], got 'four'"),
        (pin(m=True), r"m must be a whole number in \[1, 3\], got True"),
        (pin(m=4), r"m must be a whole number in \[1, 3\], got 4"),
        (pin(q=0), "ask for uniform"),
        (Request("first", "explode"), "there is no request 'explode'"),
        (Request("stranger", "uniform"), "stranger is not one of the run's callbacks"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(request_, said):
    policy = steered()
    with pytest.raises(ValueError, match=said):
        policy.request(request_)
    assert step(policy, 1)[1].reason == "fixed by the configuration"


def test_one_replica_leaves_nothing_to_pin():
    policy = steered(0, 0, replicas=1)
    with pytest.raises(ValueError, match="leave nothing to route"):
        policy.request(pin(q=1))


def test_a_callback_that_is_gone_holds_nothing():
    policy = steered()
    step(policy, 1, ask=[pin(q=6), Request("second", "uniform")])
    assert policy.release("second")
    assert not policy.release("second")
    assert step(policy, 2, carried=0)[1].q == 6


def test_pins_are_saved_and_restored():
    policy = steered()
    step(policy, 1, ask=[pin(q=6, m=1)])
    state = json.loads(json.dumps(policy.steering_state()))
    other = steered()
    assert other.load_steering_state(state) == []
    assert other.plan(step=2, carried=4) == policy.plan(step=2, carried=4)
    assert step(other, 2, carried=4) == step(policy, 2, carried=4)


def test_a_pin_whose_callback_left_the_configuration_is_void():
    policy = steered()
    step(policy, 1, ask=[pin("third", q=6)])
    other = SteeredPolicy(FixedPolicy(PolicyContext(16, 4), 4, 2), ("first",))
    assert other.load_steering_state(policy.steering_state()) == ["third"]
    assert other.plan(step=2, carried=4).q == 4


def test_the_inner_loop_does_not_judge_steps_on_another_tail_pool():
    policy = SteeredPolicy(InnerLoopPolicy(PolicyContext(16, 4), 4, 1), ORDER)
    step(policy, 1, ask=[pin(m=3)])
    plan = policy.plan(step=2, carried=4)
    decision = policy.observe(replace(seen(plan), t_tail_s=9.0))
    assert (plan.m, decision.settled, decision.q) == (3, False, 4)


REQUESTS = st.sampled_from(
    [pin(q=3), pin("second", m=1), pin("second", q=9, m=2), Request("first", "uniform"), Request("third", "veto", "x"),
     Request("first", "unpin"), Request("second", "unpin")]
)  # fmt: skip


@given(
    asked=st.lists(st.lists(REQUESTS, max_size=2), min_size=14, max_size=14), start=st.sampled_from([(0, 0), (8, 2)])
)
@settings(max_examples=8, deadline=None)
def test_under_any_requests_the_controller_s_runs_stay_whole(asked, start):
    """The books close on every step, the controller is where its decision says, and a resume plans the same."""
    controller = Controller(ControllerConfig(*start), N, 4, curve=DENSE)
    policy = SteeredPolicy(controller, ORDER)
    rollout = Rollout(LOADS["runaway"], DENSE)
    for number, requests in enumerate(asked, start=1):
        plan = policy.plan(step=number, carried=len(rollout.carried))
        observation = rollout.step(plan)  # its ledger raises if a prompt is lost or trained twice
        assert sum(g.status == "trained" for g in observation.groups) == N
        assert len(rollout.carried) == plan.q
        policy.observe(observation)
        for request in requests:
            policy.request(request)
        decision = policy.amend()
        assert (decision.q, decision.m) == (controller.q, controller.m)
        assert (decision.q, decision.m) == (0, 0) or (1 <= decision.q < N and 1 <= decision.m < 4)
        other = SteeredPolicy(Controller(ControllerConfig(*start), N, 4, curve=DENSE), ORDER)
        other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        other.load_steering_state(json.loads(json.dumps(policy.steering_state())))
        carried = len(rollout.carried)
        assert other.plan(step=number + 1, carried=carried) == policy.plan(step=number + 1, carried=carried)


def run_controller(steps, ask, load="runaway"):
    """Decisions of a controller on a load that a split gains much on; ``ask``: step -> requests."""
    policy = SteeredPolicy(Controller(ControllerConfig(), N, 4, curve=DENSE), ORDER)
    rollout = Rollout(LOADS[load], DENSE)
    for number in range(1, steps + 1):
        observation = rollout.step(policy.plan(step=number, carried=len(rollout.carried)))
        for request in ask.get(number, ()):
            policy.request(request)
        policy.observe(observation)
        yield policy.amend()


def test_a_controller_that_is_held_goes_on_from_there_when_it_is_released():
    ask = {1: [Request("first", "uniform", "warm-up")], 10: [Request("first", "unpin")]}
    decisions = list(run_controller(14, ask))
    assert all((d.q, d.m) == (0, 0) and "uniform pinned by first (warm-up)" in d.reason for d in decisions[:9])
    assert any("but the split is pinned" in d.reason for d in decisions[:9])  # it would have left
    assert any(d.q > 0 for d in decisions[9:])


def test_a_controller_with_m_pinned_still_moves_q():
    decisions = list(run_controller(14, {1: [pin(m=1)]}, "strong"))
    assert {d.m for d in decisions} == {1}
    assert len({d.q for d in decisions}) > 1
    assert any(d.settled for d in decisions[3:])


def test_vetoed_moves_are_not_counted_as_switches():
    veto = Request("second", "veto", "never")
    decisions = list(run_controller(40, {number: [veto] for number in range(1, 41)}))
    assert {(d.q, d.m) for d in decisions} == {(0, 0)}
    assert sum("vetoed by second (never)" in d.reason for d in decisions) > 10  # 10 are allowed


def test_pins_keep_to_the_band_of_replicas_that_draft_as_the_tail_pool_does():
    policy = SteeredPolicy(Controller(ControllerConfig(2, 1, most_m=1), N, 8, curve=DENSE), ORDER)
    with pytest.raises(ValueError, match=r"m must be a whole number in \[1, 1\], got 7"):
        policy.request(pin(q=4, m=7))
    rollout = Rollout(LOADS["runaway"], DENSE)
    for number in range(1, 10):  # from uniform routing on, where half of the replicas would be the other number
        observation = rollout.step(policy.plan(step=number, carried=len(rollout.carried)))
        policy.request(Request("first", "uniform") if number == 1 else pin(q=4))
        policy.observe(observation)
        decision = policy.amend()
    assert (decision.q, decision.m) == (4, 1)


def test_a_controller_saved_with_a_wider_band_goes_on_in_this_one():
    saved = Controller(ControllerConfig(4, 3), N, 4).state_dict()
    controller = Controller(ControllerConfig(most_m=1), N, 4)
    controller.load_state_dict(json.loads(json.dumps(saved)))
    assert (controller.q, controller.m) == (4, 1)
