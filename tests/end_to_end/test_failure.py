"""A replica's engine is killed in the middle of a step: the run ends with a named error, and soon."""

import os
import signal
import time

import pytest

from .harness import Run, write_data

pytestmark = pytest.mark.end_to_end

DEADLINE_S = 120  # to notice, report, and take Ray and the other engine down on two busy cores


def test_a_killed_engine_ends_the_run_with_its_name(tmp_path):
    # The tool keeps every group busy for 30 s: the engine dies while the step waits.
    data = write_data(tmp_path / "data", prompts=16, tool_every=2, tool_s=30.0)
    run = Run(
        tmp_path / "out", data, "+tailsieve=fixed", "trainer.v1.tailsieve.q=1", "trainer.v1.tailsieve.m=1",
        "trainer.v1.tailsieve.health_interval_s=2", "trainer.v1.tailsieve.sync_deadline_s=60", steps=2,
    )  # fmt: skip
    try:
        run.wait_for(lambda: "Training Progress" in run.log, "the first step")
        time.sleep(8)  # first turns are over, tools are at work
        engines = run.engine_of(1)
        assert engines, "no engine process of replica 1 found"
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        code = run.process.wait(timeout=DEADLINE_S)
    finally:
        run.kill()
    assert code != 0
    assert time.monotonic() - killed < DEADLINE_S
    assert "ReplicaDiedError" in run.log
    assert "rollout replica" in run.log.split("ReplicaDiedError", 1)[1]
