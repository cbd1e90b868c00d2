"""What a callback may do wrong, and that the run does not mind."""

import contextlib
import json
import threading
import time

import pytest

from tailsieve_verl.callbacks.base import HOOKS, Callback, RunInfo
from tailsieve_verl.callbacks.runner import CallbackError, CallbackRunner, names_of
from tailsieve_verl.core.plan import Decision, StepObservation
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.guarded import GuardedPolicy

CONTEXT = PolicyContext(16, 4)
INFO = RunInfo(16, 4, 2, ".", 1, 9)


def make(*callbacks, policy=None, **settings):
    guarded = GuardedPolicy(policy or FixedPolicy(CONTEXT, 4, 2), callbacks=names_of(callbacks))
    return CallbackRunner(callbacks, guarded, **settings), guarded


def step(runner, policy, number=1, carried=0):
    """A step as the trainer runs it; returns plan and decision."""
    plan = policy.plan(step=number, carried=carried)
    runner.at_step(number)
    runner.emit("on_plan", plan)
    observation = StepObservation(plan, 1.0, 2.0, 1.0, 0.0, ())
    runner.emit("on_step_observed", observation)
    decision = runner.emit_decision(policy.observe(observation), policy.amend)
    runner.emit("on_step_end", number, {"step_s": 3.0})
    return plan, decision


def noting(hook):
    return lambda self, *arguments: self.calls.append((hook, *arguments))


class Log(Callback):
    """Notes every call."""

    def __init__(self):
        self.calls = []

    locals().update({hook: noting(hook) for hook in HOOKS})


def test_hooks_come_in_the_order_of_a_step_with_frozen_data():
    log = Log()
    runner, policy = make(log)
    runner.start(INFO)
    plan, decision = step(runner, policy)
    runner.end(None)
    assert [name for name, *_ in log.calls] == [
        "on_run_start", "on_plan", "on_step_observed", "on_decision", "on_step_end", "on_run_end"
    ]  # fmt: skip
    assert log.calls[1] == ("on_plan", plan)
    seen = log.calls[3][1]
    assert (seen.q, seen.reason, dict(seen.extra)) == (decision.q, decision.reason, decision.extra)
    with pytest.raises(TypeError):
        seen.extra["x"] = 1.0
    with pytest.raises(TypeError):
        log.calls[4][2]["x"] = 1.0


class Named(Callback):
    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def on_decision(self, decision):
        self.calls.append((self.name, decision.q))


class Watching(Named):
    observer = True


class Pinning(Named):
    def on_decision(self, decision):
        super().on_decision(decision)
        self.run.pin(q=7, why="seven")


def test_the_configured_order_holds_and_observers_come_last_with_the_final_decision():
    calls = []
    runner, policy = make(Watching(calls, "watch"), Named(calls, "a"), Pinning(calls, "b"), Named(calls, "c"))
    _, decision = step(runner, policy)
    assert calls == [("a", 4), ("b", 4), ("c", 7), ("watch", 7)]
    assert (decision.q, decision.m) == (7, 2)
    assert decision.reason.startswith("q=7 pinned by Pinning (seven)")


def test_two_of_a_class_have_names_of_their_own():
    assert names_of([Named([], "a"), Log(), Named([], "b")]) == ["Named", "Log", "Named#2"]


class Raises(Callback):
    def __init__(self, error=None):
        self.error, self.called = error or ValueError("no disk"), 0

    def on_plan(self, plan):
        self.run.pin(q=9, why="before it fails")
        self.called += 1
        raise self.error

    def on_decision(self, decision):
        self.called += 1


@pytest.mark.parametrize("error", [ValueError("no disk"), SystemExit(3), KeyboardInterrupt()])
def test_one_that_raises_is_named_switched_off_and_its_pin_ends(caplog, error):
    bad, calls = Raises(error), []
    runner, policy = make(bad, Named(calls, "good"))
    _, decision = step(runner, policy, 1)
    step(runner, policy, 2, carried=4)
    assert bad.called == 1
    assert decision.q == 4
    assert calls == [("good", 4), ("good", 4)]
    said = [r.getMessage() for r in caplog.records]
    name = type(error).__name__
    assert said == [f"tailsieve: callback Raises failed in on_plan in step 1: {name}: {error}; "
                    "it is switched off and its pin ends"]  # fmt: skip
    assert caplog.records[0].exc_info


def test_with_strict_the_run_ends_with_its_name():
    runner, policy = make(Raises(), strict=True)
    with pytest.raises(CallbackError, match=r"callback Raises failed in on_plan in step 1: ValueError: no disk\.$"):
        step(runner, policy)


class Hangs(Callback):
    def __init__(self):
        self.wake, self.asked = threading.Event(), None
        self.woken = threading.Event()

    def on_plan(self, plan):
        self.wake.wait(20)
        self.asked = self.run.pin(q=9, why="too late")
        self.woken.set()


def test_one_that_hangs_is_switched_off_at_the_deadline_and_can_ask_for_nothing_later(caplog):
    bad = Hangs()
    runner, policy = make(bad, deadline_s=0.1)
    start = time.monotonic()
    step(runner, policy)
    assert time.monotonic() - start < 5
    assert "Hangs failed in on_plan in step 1: it had not returned after 0.1 s (callback_deadline_s)" in caplog.text
    bad.wake.set()
    assert bad.woken.wait(5)
    assert bad.asked is False
    assert step(runner, policy, 2, carried=4)[1].q == 4


class Nonsense(Callback):
    def on_plan(self, plan):
        return plan

    def on_step_observed(self, observation):
        self.answers = [
            self.run.pin(**split, why="x") for split in ({"q": 99}, {}, {"m": "2"}, {"q": 0}, {"q": float("nan")})
        ]

    def on_save(self):
        return {"lock": threading.Lock()}


def test_nonsense_is_refused_with_a_sentence_and_changes_nothing(caplog):
    bad = Nonsense()
    runner, policy = make(bad)
    for number in (1, 2):
        assert step(runner, policy, number, carried=0 if number == 1 else 4)[1].q == 4
    assert bad.answers == [False] * 5
    assert caplog.text.count("on_plan returned a StepPlan, which is ignored; ask for changes through self.run") == 1
    assert (
        "callback Nonsense asks for a pin, which is refused: q must be a whole number in [1, 15], got 99" in caplog.text
    )
    assert "a pin needs q, m or both" in caplog.text
    assert runner.state_dict() == {}
    assert "what on_save returned is not plain JSON data" in caplog.text
    assert runner.has(Nonsense)  # still on


@pytest.mark.parametrize("state", [[1], "text", {"x": float("nan")}, {1: {2, 3}}])
def test_a_state_that_is_no_json_mapping_is_not_saved(state, caplog):
    saves = type("Saves", (Callback,), {"on_save": lambda self: state})()
    assert make(saves)[0].state_dict() == {}
    assert "is not saved" in caplog.text


def test_with_strict_a_refused_request_ends_the_run_even_if_the_callback_hides_it():
    class Hides(Callback):
        def on_plan(self, plan):
            with contextlib.suppress(Exception):
                self.run.pin(q=99, why="x")

    runner, policy = make(Hides(), strict=True)
    with pytest.raises(CallbackError, match=r"callback Hides asks for a pin, which is refused: .*got 99"):
        step(runner, policy)


def test_an_observer_cannot_ask(caplog):
    class Peeks(Callback):
        observer = True

        def on_plan(self, plan):
            self.answer = self.run.uniform(why="I would rather")

    peeks = Peeks()
    runner, policy = make(peeks)
    assert step(runner, policy)[1].q == 4
    assert peeks.answer is False
    assert "an observer only watches" in caplog.text


class Counts(Callback):
    def __init__(self):
        self.count = 0

    def on_plan(self, plan):
        self.count += 1

    def on_save(self):
        return {"count": self.count}

    def on_load(self, state):
        self.count = state["count"]


def test_state_is_saved_and_restored_by_name(caplog):
    first, second = Counts(), Counts()
    runner, policy = make(first, second)
    step(runner, policy, 1)
    second.count = 7
    saved = json.loads(json.dumps(runner.state_dict()))
    assert saved == {"Counts": {"count": 1}, "Counts#2": {"count": 7}}
    again, other = Counts(), Counts()
    resumed, _ = make(again, other)
    resumed.load_state_dict({**saved, "Gone": {"x": 1}})
    resumed.start(INFO)
    assert (again.count, other.count) == (1, 7)
    assert "state of callbacks that are not configured: Gone" in caplog.text


def test_a_callback_that_cannot_read_its_state_is_switched_off(caplog):
    runner, _ = make(Counts())
    runner.load_state_dict({"Counts": {"of": "another version"}})
    runner.start(INFO)
    assert "callback Counts failed in on_load before the first step: KeyError: 'count'" in caplog.text
    assert not runner.has(Counts)


def test_a_failed_run_is_told_and_not_hidden(caplog):
    class Ends(Callback):
        def on_run_end(self, failure):
            self.failure = failure
            raise RuntimeError("socket")

    ends = Ends()
    runner, _ = make(ends, strict=True)
    runner.end("it never began")
    assert not hasattr(ends, "failure")
    runner.start(INFO)
    runner.end("ReplicaDiedError: replica 1")
    assert ends.failure == "ReplicaDiedError: replica 1"
    assert "a callback failed at the end of a run that failed" in caplog.text
    runner, _ = make(Ends(), strict=True)
    runner.start(INFO)
    with pytest.raises(CallbackError, match="RuntimeError: socket"):
        runner.end(None)


class Dies(FixedPolicy):
    def observe(self, observation):
        raise ZeroDivisionError("no rate")


def test_when_the_policy_has_failed_requests_are_refused_and_the_run_stays_uniform(caplog):
    class Asks(Callback):
        def on_step_end(self, step, metrics):
            self.answer = self.run.pin(q=3, why="x")

    asks = Asks()
    runner, policy = make(asks, policy=Dies(CONTEXT, 4, 2))
    _, decision = step(runner, policy)
    assert (decision.q, decision.switched, asks.answer) == (0, True, False)
    assert "the policy has failed and the run stays uniform" in caplog.text
    _, decision = step(runner, policy, 2, carried=4)
    assert (decision.q, decision.switched) == (0, False)


def test_what_hooks_take_is_counted_and_hooks_not_overridden_cost_nothing():
    class Slow(Callback):
        def on_plan(self, plan):
            time.sleep(0.05)

    runner, policy = make(Slow(), Callback())
    step(runner, policy)
    assert 0.05 <= runner.seconds < 1.0
    runner.at_step(2)
    runner.emit("on_step_observed", Decision(1, 0, 0, True, False, ""))
    assert runner.seconds == 0.0
