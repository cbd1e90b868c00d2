import logging
import math
import urllib.request
from contextlib import closing
from socket import socket

import pytest

from tailsieve_verl.callbacks import ConsoleLine, EarlyWarning, JsonlRecorder, PrometheusExporter, RunInfo
from tailsieve_verl.callbacks.console import step_text
from tailsieve_verl.callbacks.rehearse import rehearse
from tailsieve_verl.records.read import observation_of, read_run

from ..records.steps import decision

INFO = RunInfo(4, 4, 2, "unused", 1, 9)


def test_the_recorder_writes_the_run_s_lines_where_it_is_told(tmp_path):
    decisions = rehearse([JsonlRecorder("mine/steps.jsonl")], steps=3, n_groups=8, folder=str(tmp_path))
    run = read_run(tmp_path / "mine" / "steps.jsonl")
    assert run.run == {"n_groups": 8, "replicas": 4, "n": 8}
    assert [s["step"] for s in run.steps] == [1, 2, 3]
    assert [s["decision"]["reason"] for s in run.steps] == [d.reason for d in decisions]
    assert all(s["trained"]["step_s"] == observation_of(s).generation_s for s in run.steps)


def test_the_recorder_samples_as_it_is_told(tmp_path):
    rehearse([JsonlRecorder(str(tmp_path / "x.jsonl"), most_requests=80)], steps=1, n_groups=64)
    step = read_run(tmp_path / "x.jsonl").steps[0]
    assert len(step["groups"]) < 16
    assert sum(route["groups"] for route in step["totals"]["routes"].values()) == 64


@pytest.fixture
def exporter(tmp_path):
    exporter = PrometheusExporter(port=0)
    exporter.on_run_start(INFO)
    yield exporter
    exporter.on_run_end(None)


def scrape(exporter):
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_exporter_serves_the_metrics_of_the_last_step(exporter):
    exporter.on_step_end(1, {"bias/mean": -0.01, "idle_fraction/tail": 0.5, "idle_fraction/bulk": 0.25, "switch": 1})
    exporter.on_step_end(2, {"bias/mean": -0.02, "idle_fraction/tail": 0.75, "timing_s/old_log_prob": 3.0})
    values = scrape(exporter)
    assert values["tailsieve_step"] == 2
    assert values["tailsieve_prompt_groups"] == 4
    assert values["tailsieve_bias_mean"] == -0.02
    assert values['tailsieve_idle_fraction{pool="tail"}'] == 0.75
    assert values['tailsieve_idle_fraction{pool="bulk"}'] == 0.25
    assert not any("old_log_prob" in name for name in values)


def test_a_run_s_metrics_can_all_be_exported():
    exporter = PrometheusExporter(port=0)
    seen = {}
    on_end, exporter.on_run_end = exporter.on_run_end, lambda failure: seen.update(scrape(exporter))
    rehearse([exporter], steps=4, n_groups=16, settings={"policy": "fixed", "q": 2, "m": 1}, strict=True)
    on_end(None)
    assert seen["tailsieve_step"] == 4
    assert {"tailsieve_t_tail_s", "tailsieve_bias_ks", "tailsieve_q_next"} <= set(seen)


def test_a_port_that_is_taken_costs_the_exporter_and_not_the_run(caplog):
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        decisions = rehearse([PrometheusExporter(port=taken.getsockname()[1])], steps=1, n_groups=8)
    assert len(decisions) == 1
    assert "callback PrometheusExporter failed in on_run_start before the first step: OSError" in caplog.text


METRICS = {"reward": 0.25, "length": 812.0, "t_tail_s": 30.0, "t_bulk_s": 60.0, "step_s": 90.0, "tail_groups": 3.0,
           "tail_replicas": 1.0, "settled": 1.0}  # fmt: skip


def test_the_console_line_shows_both_pools_and_why():
    text = step_text(7, METRICS, decision()).plain
    assert "step    7  reward 0.250  length 812" in text
    assert "t ██████······   30.0s  b ████████████   60.0s" in text
    assert "step 90.0s  q=3 m=1  balanced" in text


def test_the_console_line_without_a_tail_pool_and_without_a_decision():
    text = step_text(1, {"t_bulk_s": 2.0, "tail_groups": 0.0, "tail_replicas": 0.0}, None).plain
    assert "t ············       -  b ████████████    2.0s  q=0 m=0" in text


def test_a_change_stands_out_in_colour(capsys):
    line = ConsoleLine(colour=True)
    line.on_decision(decision())
    line.on_step_end(7, METRICS)
    assert "\x1b[" in capsys.readouterr().out
    plain = ConsoleLine(colour=False)
    plain.on_step_end(7, METRICS)
    out = capsys.readouterr().out
    assert "\x1b[" not in out
    assert out.count("\n") == 1


GOOD = {
    "bias/mean": 0.01,
    "bias/p99": 0.02,
    "spec_accept_rate/tail": 0.6,
    "t_tail_s": 10.0,
    "t_bulk_s": 11.0,
    "settled": 1,
}
BAD = {
    "bias/mean": (-0.08, "the mean length trained on differs by 8.0% from whole fresh pools"),
    "bias/p99": (-0.3, "the 99th percentile of the lengths trained on differs by 30.0%"),
    "spec_accept_rate/tail": (0.1, "only 10.0% of the tail route's drafted tokens are accepted"),
    "t_bulk_s": (40.0, "the tail pool idles 75.0% of the step for the other"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_figure_that_stays_bad_is_said_once_and_again_after_it_was_good(name, caplog):
    value, said = BAD[name]
    warning = EarlyWarning()
    for step, bad in enumerate([1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1], start=1):
        warning.on_step_end(step, {**GOOD, name: value} if bad else GOOD)
    said_at = [r.getMessage() for r in caplog.records if said in r.getMessage()]
    assert len(said_at) == len(caplog.records) == 2
    assert "early warning at step 6 (3 in a row)" in said_at[0]
    assert "early warning at step 12" in said_at[1]


def test_a_step_in_transition_does_not_count_as_imbalance(caplog):
    warning = EarlyWarning(patience=1)
    warning.on_step_end(1, {"t_tail_s": 1.0, "t_bulk_s": 9.0, "settled": 0.0})
    warning.on_step_end(2, {"t_bulk_s": 9.0, "settled": 1.0})
    assert not caplog.records


def test_the_count_survives_a_resume(caplog):
    first = EarlyWarning()
    for step in (1, 2):
        first.on_step_end(step, {"bias/mean": 0.5})
    again = EarlyWarning()
    again.on_load(first.on_save())
    again.on_step_end(3, {"bias/mean": 0.5})
    assert "early warning at step 3" in caplog.text


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        (EarlyWarning, {"bias_mean": -1}, "bias_mean must be a positive number, got -1"),
        (EarlyWarning, {"imbalance": math.inf}, "imbalance must be a positive number, got inf"),
        (EarlyWarning, {"patience": 0}, "patience must be a whole number of at least 1, got 0"),
        (PrometheusExporter, {"port": 70_000}, "port must be a whole number from 0 to 65535, got 70000"),
        (ConsoleLine, {"width": 3}, "width must be a whole number of at least 40, got 3"),
        (JsonlRecorder, {"path": "x", "most_requests": 0}, "most_requests must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(kind, arguments, said):
    with pytest.raises(ValueError, match=said):
        kind(**arguments)


def test_built_in_callbacks_go_through_a_run_in_strict_mode(tmp_path, caplog):
    """Nothing in them fails, is refused or warns on a plain run."""
    callbacks = [
        JsonlRecorder("r.jsonl"),
        PrometheusExporter(0),
        ConsoleLine(),
        EarlyWarning(imbalance=2.0, bias_p99=2.0),
    ]
    with caplog.at_level(logging.WARNING):
        rehearse(callbacks, steps=6, n_groups=16, folder=str(tmp_path), strict=True)
    assert not caplog.records
