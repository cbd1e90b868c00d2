"""The same command without ``+tailsieve`` is plain verl: our package is installed, loaded, and does nothing."""

import pytest

from .harness import Run, write_data

pytestmark = pytest.mark.end_to_end


def test_plain_verl_runs_as_ever(tmp_path):
    data = write_data(tmp_path / "data", prompts=16, tool_every=1000)
    run = Run(tmp_path / "out", data, steps=2)
    assert run.wait() == 0, run.log[-5000:]
    assert "'trainer_mode': 'sync'" in run.log
    assert "step:2 - " in run.log
    for trace in ("[tailsieve]", "tailsieve/t_bulk_s", "TailSieveAgentLoopWorker", "TailSieveHttpServer"):
        assert trace not in run.log
    assert "AgentLoopWorkerTQ" in run.log or "vLLMHttpServer" in run.log
    assert not (run.out / "tailsieve").exists()
