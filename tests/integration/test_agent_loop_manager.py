"""How prompts are dealt to the agent loop workers, with Ray as a fake."""

from types import SimpleNamespace

import pytest
import verl.trainer.ppo.v1.agent_loop_tq as verl_tq

from tailsieve_verl.integration import agent_loop
from tailsieve_verl.integration.agent_loop import TailSieveAgentLoopManager

from .test_agent_loop import Remote


class FakeRay:
    """Ray's ``get`` for workers of which one never answers."""

    def get(self, calls, timeout=None):
        if timeout is None:
            raise AssertionError("waits for ever")
        raise TimeoutError(f"{calls} within {timeout}")


class Chunks(list):
    def chunk(self, count):
        return [self[i::count] for i in range(min(count, len(self)))]


def test_workers_that_do_not_take_their_prompts_are_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(agent_loop, "ray", FakeRay())
    monkeypatch.setattr(verl_tq, "ray", FakeRay())
    calls = []
    manager = TailSieveAgentLoopManager.__new__(TailSieveAgentLoopManager)
    manager.agent_loop_workers = [SimpleNamespace(generate_sequences=Remote(calls, rank)) for rank in range(3)]
    with pytest.raises(TimeoutError, match="within"):
        manager.generate_sequences(Chunks("ab"))
    assert calls == [(0, ["a"]), (1, ["b"])]
