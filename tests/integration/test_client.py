"""The client's calls: one awaited acquire and one release a request, group and tokens in them, no prompt."""

import asyncio

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, ActorUnavailableError
from verl.workers.rollout.replica import TokenOutput

from tailsieve_verl.integration.client import TailSieveLLMClient, describe_fatal
from tailsieve_verl.integration.context import SESSION, RolloutCut, Session


class Method:
    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def remote(self, *args, **kwargs):
        self.owner.calls.append((self.name, args, kwargs))
        answer = asyncio.get_event_loop().create_future()
        value = self.owner.answers.get(self.name)
        if isinstance(value, Exception):
            answer.set_exception(value)
            answer.exception()  # nobody awaits a release
        else:
            answer.set_result(value)
        return answer


class Actor:
    def __init__(self, **answers):
        self.calls, self.answers = [], answers

    def __getattr__(self, name):
        return Method(self, name)


CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})


def generate(answer, routed=True, server_id="s0"):
    session = Session("group", 3) if routed else None
    server = Actor(generate=answer)
    router = Actor(get_handles={"s0": server}, acquire_server=server_id)

    async def scenario():
        SESSION.set(session)
        client = TailSieveLLMClient(CONFIG, router)
        try:
            return await client.generate(request_id="r", prompt_ids=[1, 2, 3], sampling_params={})
        except (RolloutCut, RuntimeError, ActorDiedError) as error:
            return error

    result = asyncio.run(scenario())
    assert (session is not None and session.ended) == (session is not None and isinstance(result, RolloutCut))
    return result, router.calls


def output(reason, tokens=5):
    return TokenOutput(token_ids=[0] * tokens, stop_reason=reason, extra_fields={"global_steps": 7})


def test_a_training_request():
    result, calls = generate(output("completed"))
    assert result.extra_fields["min_global_steps"] == 7
    assert calls == [
        ("get_handles", (), {}),
        ("acquire_server", ("r", "group", 3), {}),
        ("release_server", ("s0", "group", 3, 5, None), {}),
    ]


def test_a_validation_request_has_no_group():
    _, calls = generate(output("completed"), routed=False)
    assert calls[1:] == [("acquire_server", ("r",), {}), ("release_server", ("s0",), {})]


def test_an_aborted_response_is_never_returned_but_its_tokens_are_counted():
    result, calls = generate(output("aborted", tokens=2))
    assert isinstance(result, RolloutCut)
    assert calls[-1] == ("release_server", ("s0", "group", 3, 2, None), {})


def test_a_refused_request_ends_the_session():
    result, calls = generate(output("completed"), server_id=None)
    assert isinstance(result, RolloutCut)
    assert [name for name, _, _ in calls] == ["get_handles", "acquire_server"]  # nothing to release


def test_a_dead_replica_is_reported_with_the_release():
    result, calls = generate(ActorDiedError())
    assert isinstance(result, ActorDiedError)
    assert calls[-1][1][:4] == ("s0", "group", 3, 0)
    assert calls[-1][1][4].startswith("ActorDiedError: ")


class EngineDeadError(Exception):
    """Named as vLLM's."""


@pytest.mark.parametrize(
    ("error", "fatal"), [(EngineDeadError("gone\nmore"), "EngineDeadError: gone"), (ValueError("bad prompt"), None)]
)
def test_what_is_fatal(error, fatal):
    assert describe_fatal(error) == fatal
    assert describe_fatal(ActorUnavailableError("a network blip", None)) is None
    wrapped = RuntimeError("task failed")
    wrapped.cause = error
    assert describe_fatal(wrapped) == fatal
