"""The whole way with real engines: calibrate two batch sizes, replay a small load on two replicas, predict it."""

from pathlib import Path

import numpy as np
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.calibrate import calibrate
from tailsieve_verl.replay.engine import EngineSpec, Place, cpu_places, run_together, start_replicas
from tailsieve_verl.replay.policies import place
from tailsieve_verl.replay.predict import predict
from tailsieve_verl.replay.run import group_prompts, replay
from tailsieve_verl.workloads.models import ensure_tiny

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]

MODEL = Path(__file__).parents[2] / ".cache" / "models" / "tiny"
LENGTHS = np.array([[40, 5], [12, 30], [8, 8], [25, 3]])
START_S = 240


@pytest.fixture(scope="module")
def spec():
    return EngineSpec(ensure_tiny(MODEL), max_model_len=512, max_num_seqs=8, clock="cpu")


@pytest.fixture(scope="module")
def replicas(spec):
    places = [Place(cores=p.cores[:1]) for p in cpu_places(2)]
    with start_replicas(spec, places, ready_timeout_s=START_S) as running:
        yield running


def test_an_engine_is_calibrated_and_a_load_replayed_and_predicted(replicas):
    calibration = calibrate(replicas, batch_sizes=[1, 4], tokens=16, repeats=1)
    assert calibration.curve.batch_sizes == (1, 4)
    assert min(calibration.curve.seconds_per_token) > 0
    assert calibration.complete
    assert calibration.engine["block_size"] == 128
    where = place("verl_default", LENGTHS, LENGTHS, 2)
    prompts = group_prompts(4, 16, replicas[0].facts["vocab_size"])
    run = replay(LENGTHS, where, replicas, prompts, timeout_s=120)
    finish = np.array(run.finish_s)
    assert run.preemptions == 0
    for rank in range(2):  # all submitted at once: shorter ones end first
        mine = where == rank
        assert np.all(np.diff(finish[mine][np.argsort(LENGTHS[mine], kind="stable")]) >= 0)
        assert run.replica_s[rank] == finish[mine].max()
    predicted = predict(LENGTHS, where, 2, calibration, prompt_tokens=16)
    assert np.all(np.isfinite(predicted))
    assert predicted.min() > 0  # how close it is depends on the machine's other work: recipes/fidelity


def test_every_token_is_a_step_and_runs_do_not_share_the_cache(replicas):
    prompt = list(range(20, 320))  # more than two blocks of 128
    first, second = ([run_together(replicas, [[(prompt, 6), (prompt, 3)], []], timeout_s=120)[0]][0] for _ in range(2))
    assert [step[1] for step in first.steps] == [2, 2, 2, 1, 1, 1]
    assert sum(step[2] for step in second.steps) == 9
    assert first.steps[0][3] == 600


def test_a_folder_that_is_no_model_is_said_with_the_reason(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    spec = EngineSpec(tmp_path)
    with (
        pytest.raises(UserError, match=r"worker ended(?s:.*)Error"),
        start_replicas(spec, [Place(cores=(0,))], ready_timeout_s=START_S),
    ):
        pass
