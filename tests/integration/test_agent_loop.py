"""The worker's group context and the cut, with verl's own worker code; agent loop, store and router are fakes."""

import asyncio
from types import SimpleNamespace

import pytest
import verl.experimental.agent_loop.agent_loop as verl_loop
import verl.trainer.ppo.v1.agent_loop_tq as verl_tq
from omegaconf import OmegaConf

from tailsieve_verl.config.sampling import parse_sampling
from tailsieve_verl.integration.agent_loop import TailSieveAgentLoopWorker
from tailsieve_verl.integration.context import ROUTED, SESSION, RolloutCut

VERL_SAMPLING = {"temperature": 0.7, "logprobs": True}


class Remote:
    """An actor method: records its calls."""

    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def remote(self, *args):
        self.calls.append((self.name, *args))


class FakeRouter:
    def __init__(self):
        self.calls = []
        self.group_generated = Remote(self.calls, "generated")
        self.group_stored = Remote(self.calls, "stored")
        self.session_restarted = Remote(self.calls, "restarted")


class FakeStore:
    """The two coroutines of the transfer queue that verl's worker uses."""

    def __init__(self):
        self.tags, self.trajectories = {}, []

    async def async_kv_put(self, key, partition_id, tag):
        self.tags[key] = tag["status"]

    async def async_kv_batch_put(self, keys, **kwargs):
        self.trajectories += keys


class FakeLoop:
    """The agent loop: does what the test's script says, and notes the session it saw."""

    script = None
    seen = []  # noqa: RUF012  # reset by the fixture
    sampling = []  # noqa: RUF012  # likewise

    def __init__(self, **kwargs):
        pass

    async def run(self, sampling_params, **kwargs):
        session = SESSION.get()
        FakeLoop.seen.append(session)
        FakeLoop.sampling.append(dict(sampling_params))
        return await FakeLoop.script(session)


@pytest.fixture
def worker(monkeypatch):
    store = FakeStore()
    monkeypatch.setattr(verl_tq, "tq", store)
    monkeypatch.setitem(
        verl_loop._agent_loop_registry, "fake", {"_target_": f"{__name__}.FakeLoop", "_convert_": "none"}
    )
    FakeLoop.seen, FakeLoop.sampling = [], []
    w = TailSieveAgentLoopWorker.__new__(TailSieveAgentLoopWorker)
    w._router, w._groups, w._aborted, w._retries = FakeRouter(), {}, {}, 0
    w.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": 2, "val_kwargs": {"n": 1}}}, "data": {}})
    w.rollout_config = SimpleNamespace(n=2)
    w.llm_client = w.tokenizer = w.processor = w.hf_model_type = w.dataset_cls = None
    w.tools = []
    w.store = store
    w.scored = asyncio.Event()

    async def score(outputs, kwargs):
        w.scoring = True
        await w.scored.wait()
        raise AssertionError("no test lets a reward finish")  # pragma: no cover

    w._compute_score = score
    return w


def run_prompt(worker, uid="u", routed=True, validate=False):
    prompt = {"uid": uid, "agent_name": "fake", "raw_prompt": [], **({ROUTED: True} if routed else {})}
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": validate}
    return worker._run_prompt(prompt, dict(VERL_SAMPLING), trajectory)


def stub_store(worker):
    """Let results go straight to the store, as verl's post-processing does after the reward."""

    async def postprocess(self, output, validate, **kwargs):
        await self.store.async_kv_batch_put([f"{kwargs['uid']}_{kwargs['session_id']}_0"])

    return postprocess


@pytest.fixture
def quick(worker, monkeypatch):
    base = TailSieveAgentLoopWorker.__mro__[1]
    monkeypatch.setattr(base, "_agent_loop_postprocess", stub_store(worker))
    return worker


def test_each_session_sees_its_own_context_and_the_router_hears_of_the_group(quick):
    async def script(session):
        await asyncio.sleep(0)
        return SimpleNamespace()

    FakeLoop.script = script
    asyncio.run(run_prompt(quick))
    assert sorted((s.uid, s.response) for s in FakeLoop.seen) == [("u", 0), ("u", 1)]
    assert quick._router.calls == [("generated", "u"), ("stored", "u", None)]
    assert sorted(quick.store.trajectories) == ["u_0_0", "u_1_0"]
    assert SESSION.get() is None


def test_validation_carries_no_context_and_tells_the_router_nothing(quick):
    async def script(session):
        return SimpleNamespace()

    FakeLoop.script = script
    asyncio.run(run_prompt(quick, routed=False, validate=True))
    assert FakeLoop.seen == [None]
    assert quick._router.calls == []


def test_a_failing_session_is_reported_after_its_sibling_has_settled(quick):
    async def script(session):
        if session.response == 0:
            raise ValueError("bad prompt")
        await asyncio.sleep(0.02)
        return SimpleNamespace()

    FakeLoop.script = script
    asyncio.run(run_prompt(quick))
    assert quick._router.calls == [("stored", "u", "ValueError: bad prompt")]
    assert quick.store.tags["u"] == "failure"


def test_a_response_that_fails_now_and_then_does_not_cost_its_group(quick, caplog):
    async def script(session):
        if session.response == 0 and FakeLoop.seen.count(session) < 3:
            raise ValueError("flaky tool")
        return SimpleNamespace()

    FakeLoop.script = script
    quick._retries = 2
    asyncio.run(run_prompt(quick))
    assert quick._router.calls == [("restarted", "u", 0)] * 2 + [("generated", "u"), ("stored", "u", None)]
    assert caplog.text.count("it is generated again") == 2


def test_a_response_whose_reward_fails_is_not_generated_until_it_is_again(quick, monkeypatch):
    """Cut while it runs again, it is no complete one."""
    stored = TailSieveAgentLoopWorker.__mro__[1]._agent_loop_postprocess
    again = asyncio.Event()

    async def postprocess(self, output, validate, **kwargs):
        if kwargs["session_id"] == 0 and not again.is_set():
            raise ValueError("flaky reward")
        await stored(self, output, validate, **kwargs)

    async def script(session):
        if session.response or FakeLoop.seen.count(session) > 1:
            again.set()
            await asyncio.sleep(30)
        return SimpleNamespace()

    async def scenario():
        task = asyncio.create_task(run_prompt(quick))
        await asyncio.wait_for(again.wait(), 5)
        while FakeLoop.seen.count(FakeLoop.seen[0]) < 2:
            await asyncio.sleep(0.01)
        generated = await quick.cut(["u"], 5)
        await task
        return generated

    monkeypatch.setattr(TailSieveAgentLoopWorker.__mro__[1], "_agent_loop_postprocess", postprocess)
    FakeLoop.script = script
    quick._retries = 2
    assert asyncio.run(scenario()) == {"u": []}


def test_a_store_that_fails_is_reported(quick):
    async def refuse(**kwargs):
        raise ConnectionError("store is gone")

    quick.store.async_kv_put = refuse
    asyncio.run(run_prompt(quick))
    assert quick._router.calls == [("stored", "u", "ConnectionError: store is gone")]


def test_an_agent_loop_without_output_makes_an_incomplete_group(quick):
    async def script(session):
        return [] if session.response else SimpleNamespace()

    FakeLoop.script = script
    asyncio.run(run_prompt(quick))
    assert quick._router.calls == [("stored", "u", "1 of 2 responses are missing")]


@pytest.mark.parametrize("where", ["tool", "refused", "aborted"])
def test_a_cut_session_ends_quietly_wherever_it_is(quick, where, caplog):
    async def script(session):
        if session.response == 0:
            return SimpleNamespace()
        if where == "tool":
            await asyncio.sleep(3600)
        await asyncio.sleep(0.01)
        raise RolloutCut("u")

    async def scenario():
        task = asyncio.create_task(run_prompt(quick))
        await asyncio.sleep(0.005)
        done = await quick.cut(["u", "of another worker"], 5.0)
        await task
        return done

    FakeLoop.script = script
    assert asyncio.run(scenario()) == {"u": [0]}
    assert quick._router.calls == []  # neither generated nor failed
    assert caplog.text == ""
    assert quick._groups == {}


def test_a_slow_reward_of_a_cut_group_delays_nothing(worker):
    async def script(session):
        return SimpleNamespace()

    async def scenario():
        task = asyncio.create_task(run_prompt(worker))
        while not getattr(worker, "scoring", False):
            await asyncio.sleep(0.001)
        done = await asyncio.wait_for(worker.cut(["u"], 5.0), 1.0)
        await task
        return done

    FakeLoop.script = script
    assert asyncio.run(scenario()) == {"u": [0, 1]}
    assert worker.store.trajectories == []


def test_a_group_cut_before_its_sessions_start_generates_nothing(quick):
    async def scenario():
        task = asyncio.create_task(run_prompt(quick))
        await asyncio.sleep(0)  # the prompt is registered, its sessions are not running yet
        done = await quick.cut(["u"], 5.0)
        await task
        return done

    async def script(session):
        raise AssertionError("must not run")

    FakeLoop.script = script
    assert asyncio.run(scenario()) == {"u": []}
    assert FakeLoop.seen == []


def test_a_group_that_the_abort_ends_before_the_cut_arrives_is_not_taken_for_complete(quick):
    async def script(session):
        if session.response == 1:
            raise RolloutCut("its request was aborted")
        return SimpleNamespace()

    async def scenario():
        await run_prompt(quick, uid="whole")
        FakeLoop.script = script
        await run_prompt(quick, uid="aborted")
        first = await quick.cut(["whole", "aborted", "elsewhere"], 1.0)
        return first, await quick.cut(["aborted"], 1.0)

    async def whole(session):
        return SimpleNamespace()

    FakeLoop.script = whole
    first, again = asyncio.run(scenario())
    assert first == {"aborted": [0]}  # "whole" needs no answer: all of it was generated
    assert again == {}


def test_an_abort_that_is_no_cut_is_a_failure(quick):
    async def script(session):
        raise RolloutCut("weights changed")

    FakeLoop.script = script
    asyncio.run(run_prompt(quick))
    assert quick._router.calls == [("stored", "u", "a request was aborted")]


@pytest.mark.parametrize("answer", ["a partial response", "an error of its own"])
def test_a_loop_that_swallows_the_abort_cannot_pass_off_what_it_has_as_a_response(quick, answer):
    async def script(session):
        if session.response == 1:
            session.ended = True  # as the client does
            if answer == "an error of its own":
                raise ValueError("no answer from the engine")
        return SimpleNamespace()

    FakeLoop.script = script
    quick._retries = 2
    asyncio.run(run_prompt(quick))
    assert quick._router.calls == [("stored", "u", "a request was aborted")]
    assert quick.store.trajectories == ["u_0_0"]
    assert len(FakeLoop.seen) == 2  # and it is not generated again


def test_a_session_that_will_not_end_is_named(quick, monkeypatch):
    async def script(session):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
        return SimpleNamespace()

    async def scenario():
        task = asyncio.create_task(run_prompt(quick))
        await asyncio.sleep(0.005)
        with pytest.raises(TimeoutError, match=r"1 cut prompt groups still run after 0.05 s"):
            await quick.cut(["u"], 0.05)
        await task

    FakeLoop.script = script
    asyncio.run(scenario())


@pytest.mark.parametrize("routed", [True, False])
def test_every_loop_is_given_our_sampling_parameters_beside_verl_s(quick, routed):
    async def script(session):
        return SimpleNamespace()

    FakeLoop.script = script
    quick._sampling = parse_sampling({"presence_penalty": 1.5, "stop": ["<END>"]})
    asyncio.run(run_prompt(quick, routed=routed))
    stop = {"stop": ["<END>"], "detokenize": True, "include_stop_str_in_output": True}
    assert FakeLoop.sampling == [{**VERL_SAMPLING, **stop, "presence_penalty": 1.5}] * 2
    FakeLoop.sampling.clear()
    asyncio.run(run_prompt(quick, routed=False, validate=True))
    assert FakeLoop.sampling == [{**VERL_SAMPLING, **stop}]


def test_without_settings_verl_s_sampling_parameters_are_untouched(quick):
    async def script(session):
        return SimpleNamespace()

    FakeLoop.script = script
    asyncio.run(run_prompt(quick))
    assert FakeLoop.sampling == [VERL_SAMPLING] * 2
