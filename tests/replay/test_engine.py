import os
import time
from dataclasses import replace

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.engine import (
    EngineSpec,
    Place,
    ReplicaProcess,
    cpu_places,
    gpu_places,
    run_together,
    start_replicas,
)
from tests.replay import fake_worker
from tests.replay.conftest import FAKE


def test_all_replicas_run_their_load_and_one_without_does_nothing(two):
    busy, idle = run_together(two, [[([1, 2, 3], 4), ([4, 5], 2)], []])
    assert len(busy.finish) == 2
    assert busy.finish[0] > busy.finish[1] > busy.first[1] == busy.first[0]
    assert [step[1] for step in busy.steps] == [2, 2, 1, 1]
    assert idle.seconds == 0
    assert two[0].facts["max_num_seqs"] == 16


def test_each_replica_gets_its_draft_depths_and_says_what_it_drafted(two):
    load = [([1, 2, 3], 2)]
    runs = run_together(two, [load, load], depths=[[3, 3, 1], [5]])
    assert [run.drafting["table"] for run in runs] == [[3, 3, 1], [5]]
    assert all(run.drafting is None for run in run_together(two, [load, load]))


def test_a_worker_that_dies_at_its_start_is_named_with_the_end_of_its_log(spec):
    spec = replace(spec, extra={"fault": "dies"})
    with (
        pytest.raises(UserError, match=r"replica 0's worker ended \(status 1\).*start vLLM(?s:.*)no such model"),
        start_replicas(spec, [Place()], worker=FAKE),
    ):
        pass


def test_a_worker_that_never_gets_ready_is_given_up(spec):
    spec = replace(spec, extra={"fault": "silent"})
    before = time.monotonic()
    with (
        pytest.raises(UserError, match=r"given 0\.5 s to start vLLM"),
        start_replicas(spec, [Place()], worker=FAKE, ready_timeout_s=0.5),
    ):
        pass
    assert time.monotonic() - before < 30


@pytest.mark.parametrize(("fault", "message"), [("dies_running", "out of memory"), ("hangs_running", r"given 0\.5 s")])
def test_a_run_that_fails_is_an_error_and_not_a_hang(spec, fault, message):
    spec = replace(spec, extra={"fault": fault})
    with start_replicas(spec, [Place()], worker=FAKE) as replicas, pytest.raises(UserError, match=message):
        run_together(replicas, [[([1], 2)]], timeout_s=0.5 if fault == "hangs_running" else 60)


def test_closing_ends_the_process_and_may_be_repeated(spec):
    replica = ReplicaProcess(spec, Place(), worker=FAKE)
    replica.wait_ready(30)
    pid = replica._process.pid
    replica.close()
    replica.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_every_replica_has_cores_of_its_own():
    assert cpu_places(2, cores=[0, 1, 2, 3, 4]) == [Place(cores=(0, 1)), Place(cores=(2, 3))]
    with pytest.raises(UserError, match="3 replicas need a core each, and there are 2"):
        cpu_places(3, cores=[0, 1])


def test_gpus_are_dealt_from_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert gpu_places(2, 2) == [Place(gpus=(4, 5)), Place(gpus=(6, 7))]
    with pytest.raises(UserError, match="3 replicas need 6 GPUs"):
        gpu_places(3, 2)


def test_further_engine_arguments_win_and_the_cpu_is_eager(spec):
    arguments = replace(spec, extra={"max_num_seqs": 3}).engine_args()
    assert arguments["max_num_seqs"] == 3
    assert arguments["enforce_eager"]
    assert "gpu_memory_utilization" not in arguments
    assert replace(spec, device="gpu").engine_args()["gpu_memory_utilization"] == 0.9


def test_the_cpu_clock_is_refused_where_it_means_nothing(tmp_path):
    with pytest.raises(UserError, match="clock 'cpu'"):
        EngineSpec(tmp_path, device="gpu", clock="cpu")


def test_the_fake_engine_shares_prompts_like_the_real_one():
    alone = fake_worker.run([(list(range(40)), 1)])["first"][0]
    both = fake_worker.run([(list(range(40)), 1), (list(range(40)), 1)])["first"][0]
    extra = fake_worker.PREFILL * (40 - 32) + fake_worker.PER_REQUEST + 40 * fake_worker.CONTEXT
    assert both - alone == pytest.approx(extra)
