import numpy as np
import pytest

from tailsieve_verl.curves import load_curve
from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.calibrate import _cut_mean, calibrate, default_batch_sizes
from tailsieve_verl.replay.calibration import Calibration, load_calibration, pooled, save_calibration
from tailsieve_verl.replay.engine import EngineRun
from tailsieve_verl.replay.fit import (
    Steps,
    clean_curve,
    decode_steps,
    fit_context,
    fit_prefill,
    non_decreasing,
    prefill_phase,
)
from tests.replay import fake_worker


@pytest.fixture(scope="module")
def facts():
    return {**fake_worker.FACTS, "max_num_seqs": 16, "max_model_len": 1024}


def test_the_costs_of_a_known_engine_are_found(two):
    result = calibrate(two, tokens=16, repeats=2)
    assert result.curve.batch_sizes == (1, 2, 4, 8, 16)
    assert result.curve.seconds_per_token == pytest.approx([fake_worker.tau(b) for b in (1, 2, 4, 8, 16)], rel=1e-3)
    assert result.context_seconds_per_token == pytest.approx(fake_worker.CONTEXT, rel=1e-3)
    assert result.prefill_seconds_per_token == pytest.approx(fake_worker.PREFILL, rel=1e-3)
    assert result.fixed_seconds == pytest.approx(fake_worker.FIXED, rel=1e-2)
    assert result.complete
    assert result.replicas == 2
    assert result.points[0].steps == 2 * 2 * 2 * 15  # replicas, repeats, prompt lengths, decode steps


def test_what_was_measured_is_kept_when_it_stops_midway(two, tmp_path):
    path = tmp_path / "curve.json"

    def stop(what, done, total):
        if what != "warm-up" and done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(two, tokens=8, repeats=1, tick=stop, on_result=lambda c: save_calibration(path, c))
    kept = load_calibration(path)
    assert not kept.complete
    assert kept.curve.batch_sizes == (1, 2, 4, 8, 16)


def test_a_saved_calibration_is_read_back_and_is_a_curve(two, tmp_path):
    path = tmp_path / "curve.json"
    result = calibrate(two, batch_sizes=[4, 1], tokens=8, repeats=1)
    save_calibration(path, result)
    assert load_calibration(path) == result
    assert load_curve(path) == result.curve
    assert result.costs().kv_tokens == fake_worker.FACTS["kv_tokens"]


def test_a_bare_curve_is_a_calibration_without_further_costs(tmp_path):
    (tmp_path / "c.csv").write_text("batch_size,seconds_per_token\n1,0.01\n2,0.02\n")
    found = load_calibration(tmp_path / "c.csv")
    assert found.context_seconds_per_token == 0
    assert found.largest == 2


@pytest.mark.parametrize(
    ("text", "message"), [(None, "there is no curve"), ("{}", "lacks"), ("[", "holds no calibration")]
)
def test_a_file_that_holds_no_curve_is_one_sentence(tmp_path, text, message):
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_calibration(path)


def test_batch_sizes_stop_where_the_engine_does(facts):
    assert default_batch_sizes({**facts, "max_num_seqs": 6}, 64) == [1, 2, 4, 6]
    assert default_batch_sizes({**facts, "kv_tokens": 400}, 64) == [1, 2, 4]
    with pytest.raises(UserError, match="too small"):
        default_batch_sizes({**facts, "kv_tokens": 32}, 64)


def test_a_batch_size_beyond_the_engine_is_refused(two):
    with pytest.raises(UserError, match=r"batch size 17 is not in 1\.\.16"):
        calibrate(two, batch_sizes=[17])


def test_decode_steps_are_those_at_full_batch_after_the_last_first_token():
    steps = ((1.0, 1, 1, 5, 1), (3.0, 2, 2, 11, 1), (3.5, 2, 2, 13, 0), (4.1, 2, 2, 15, 0), (4.5, 1, 1, 8, 0))
    run = EngineRun((1.0, 3.0), (4.5, 4.1), steps)
    found = decode_steps(run, 2)
    assert found.seconds == pytest.approx([0.5, 0.6])
    assert found.context.tolist() == [13, 15]
    phase = prefill_phase(run, 10)
    assert (phase.seconds, phase.decoding) == (3.0, ((1, 5), (2, 11)))


def test_the_context_term_is_never_negative_and_needs_different_contexts():
    falling = Steps(2, np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]))
    assert fit_context([falling]) == 0
    assert fit_context([Steps(1, np.array([1.0]), np.array([5.0]))]) == 0
    assert fit_context([]) == 0


def test_noise_never_makes_the_context_term_take_the_whole_step():
    short = Steps(1, np.full(8, 0.001), np.full(8, 20.0))
    disturbed = Steps(1, np.full(8, 0.2), np.full(8, 200.0))
    k = fit_context([short, disturbed])
    assert 0 < k * 20 <= 0.9 * 0.001


def test_hiccups_of_the_machine_do_not_move_the_context_term():
    rng = np.random.default_rng(0)
    records = []
    for b in (4, 16):
        for start in (16, 512):
            context = b * (start + np.arange(64.0))
            seconds = 0.01 * b + 2e-6 * context
            seconds[rng.choice(64, 5, replace=False)] *= 3
            records.append(Steps(b, seconds, context))
    assert fit_context(records) == pytest.approx(2e-6, rel=0.02)


def test_prefill_without_any_measurement_costs_nothing():
    assert fit_prefill([], clean_curve([1], [1.0]), 0.0) == (0.0, 0.0)


def test_a_spike_of_the_machine_does_not_stop_a_calibration():
    assert clean_curve([1, 2, 4], [0.01, 0.045, 0.02]).seconds_per_token == pytest.approx((0.01, 0.0325, 0.0325))
    assert clean_curve([1, 2, 4], [0.01, 0.9, 0.02]).seconds_per_token[1] == pytest.approx(0.04, rel=1e-2)
    assert clean_curve([1, 2], [0.02, 0.01]).seconds_per_token == (0.02, 0.01)  # noise that the curve accepts


def test_a_hiccup_counts_little_and_a_lean_to_the_long_side_counts():
    seconds = np.array([10.0] * 8 + [12.0, 500.0])
    assert _cut_mean(seconds) == pytest.approx((80 + 12 + 15) / 10)


def test_equal_neighbours_are_pooled():
    assert non_decreasing([1.0, 3.0, 2.0, 4.0]).tolist() == [1.0, 2.5, 2.5, 4.0]
    assert non_decreasing([]).size == 0


def test_unknown_keys_in_a_file_are_left_out():
    assert Calibration.from_dict({"batch_sizes": [1], "seconds_per_token": [0.1], "later": 1}).largest == 1


def test_calibrations_are_pooled_by_their_mean():
    one, two = (Calibration(clean_curve([1, 2], [x, 2 * x]), context_seconds_per_token=x) for x in (0.1, 0.3))
    both = pooled([one, two])
    assert both.curve.seconds_per_token == pytest.approx((0.2, 0.4))
    assert both.context_seconds_per_token == pytest.approx(0.2)
    with pytest.raises(ValueError, match="same batch sizes"):
        pooled([one, Calibration(clean_curve([1], [1.0]))])
    with pytest.raises(ValueError, match="at least one"):
        pooled([])
