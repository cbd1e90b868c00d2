"""Our server and replica, without an engine: what they tell vLLM and Ray before one starts."""

import logging
import os
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from packaging.version import Version

from tailsieve_verl.integration import replica
from tailsieve_verl.integration.speculation import SCHEDULER
from tailsieve_verl.integration.speculation_checks import RUNNER

# What verl's server imports silences the warnings of the whole process, and with them other tests'.
logging.root.setLevel(logging.WARNING)


@pytest.mark.parametrize(("before", "after"), [(None, "0"), ("1", "1")])
def test_the_model_runner_is_chosen_before_the_engine_is_configured(monkeypatch, before, after):
    environ = {} if before is None else {RUNNER: before}
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(replica, "installed_vllm", lambda: Version("0.28.0"))
    server = replica.TailSieveHttpServer.__new__(replica.TailSieveHttpServer)
    server.config, server.replica_rank = SimpleNamespace(), 0
    server._preprocess_engine_kwargs({"speculative_config": {"method": "dflash"}, "scheduler_cls": SCHEDULER})
    assert environ[RUNNER] == after


def test_a_health_check_does_not_wait_for_the_requests_of_a_small_bulk_pool():
    """verl's limit: its server's batch and 16 calls, at least 1000, which one bulk replica may exceed."""
    ours = replica.TailSieveReplica.__new__(replica.TailSieveReplica)
    ours.config = SimpleNamespace(max_num_seqs=256)
    groups, n, bulk_replicas = 512, 16, 4
    assert ours.max_concurrency > groups * n / bulk_replicas > super(replica.TailSieveReplica, ours).max_concurrency


@pytest.mark.parametrize(("method", "level"), [("mtp", 1), ("dflash", 1), ("ngram", 2), (None, 2)])
def test_a_drafter_with_weights_does_not_lose_them_in_sleep(method, level):
    from verl.workers.config import RolloutConfig

    server = replica.TailSieveHttpServer.__new__(replica.TailSieveHttpServer)
    spec = {"speculative_config": {"method": method}} if method else {}
    server.config = RolloutConfig(name="vllm", engine_kwargs={"vllm": spec})
    server.model_config = SimpleNamespace(lora_rank=0, lora={})
    assert server._resolve_sleep_level() == level
