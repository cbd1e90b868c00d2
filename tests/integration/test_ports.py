"""Calls to replicas: named errors for dead ones, also when the call itself never returns."""

import asyncio
import time

import pytest

from tailsieve_verl.integration import ports
from tailsieve_verl.integration.deadline import ReplicaDiedError, RolloutStalledError


class EngineDeadError(Exception):
    """Named as vLLM's."""


class Replica:
    def __init__(self, answer=0, health=None):
        self.answer, self.health = answer, health

    async def unfinished(self):
        if self.answer == "never":
            await asyncio.sleep(3600)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def check(self):
        if self.health is not None:
            raise self.health


def call(*replicas, timeout_s=5.0):
    return ports.RayReplicas(replicas, timeout_s).unfinished(range(len(replicas)))


def test_answers_are_added_up():
    assert call(Replica(2), Replica(3)) == 5


def test_a_dead_engine_is_named_with_its_rank():
    with pytest.raises(ReplicaDiedError, match="rollout replica 1 died: EngineDeadError: gone"):
        call(Replica(), Replica(EngineDeadError("gone")))


def test_other_errors_stay_what_they_are():
    with pytest.raises(ValueError, match="bad"):
        call(Replica(ValueError("bad")))


def test_a_call_into_an_engine_that_died_meanwhile_does_not_wait_for_its_deadline(monkeypatch):
    monkeypatch.setattr(ports, "HEALTH_DURING_CALLS_S", 0.02)
    start = time.monotonic()
    with pytest.raises(ReplicaDiedError, match="replica 1"):
        call(Replica(), Replica("never", EngineDeadError("gone")), timeout_s=60.0)
    assert time.monotonic() - start < 30


def test_a_healthy_replica_that_never_answers_is_named_at_the_deadline():
    with pytest.raises(RolloutStalledError, match=r"unfinished on rollout replicas \[0\] did not finish within 0.1 s"):
        call(Replica("never"), timeout_s=0.1)
