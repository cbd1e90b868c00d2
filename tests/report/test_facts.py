import math
from dataclasses import replace

import pytest

from tailsieve_verl.report.facts import bias_error, early_warnings, facts_of
from tailsieve_verl.report.verdict import judge

from .views import view_of


def test_a_controller_s_run(tmp_path):
    found = facts_of(view_of(tmp_path))
    assert (found.steps, found.split, found.judged, found.predicted) == (8, 5, 5, 8)
    assert (found.moves, found.failed, found.steered) == (1, 0, True)
    assert found.gain.value == pytest.approx(10 / 8)
    assert found.step_gain == pytest.approx(18 / 16)
    assert found.model_error == pytest.approx(math.log(8 / 10))
    assert found.room == pytest.approx(8 / 6)
    # Of the tail replica 7 of 8 s are busy; the bulk ones end at 8, 7 and 6 s.
    assert found.idle == {"tail": pytest.approx(1 / 8), "bulk": pytest.approx(3 / 24)}
    assert judge(found).worth == "unsure"  # uniform steps were as much faster than predicted


def test_the_error_of_the_bias_by_hand(tmp_path):
    """Regenerated groups of 300 and 400 tokens: deviation 70.7, times sqrt(2 * 2) over the sum of all group means."""
    steps = view_of(tmp_path, (0, 1, 1)).steps
    assert bias_error(steps) == 0.0  # both of 350 tokens
    assert bias_error(steps[:2]) is None  # one alone
    groups = [
        replace(step.seen.groups[0], tokens=(mean, mean)) for step, mean in zip(steps[1:], (300, 400), strict=True)
    ]
    changed = [
        replace(step, seen=replace(step.seen, groups=(group, *step.seen.groups[1:])))
        for step, group in zip(steps[1:], groups, strict=True)
    ]
    others = 2 * (400 + 350 + 300)
    assert bias_error(changed) == pytest.approx(math.sqrt(5000) * 2 / (700 + others))


def test_without_a_prediction_there_is_no_gain(tmp_path):
    found = facts_of(view_of(tmp_path, uniform_s=None, start={"policy": "fixed"}))
    assert (found.gain, found.step_gain, found.model_error, found.steered) == (None, None, None, False)
    assert judge(found).worth == "unknown"


def test_an_old_record_does_not_name_its_policy(tmp_path):
    folder = tmp_path / "a"
    view = view_of(folder)
    assert facts_of(view).steered
    assert facts_of(replace(view, run={})).steered
    view = view_of(tmp_path / "b", uniform_s=None, start={"policy": "fixed"})
    assert not facts_of(replace(view, run={})).steered


def test_early_warnings_are_those_of_the_callback(tmp_path):
    view = view_of(tmp_path, bias=-0.08)
    ((steps, says),) = early_warnings(view.steps)
    assert steps == (3,)  # the third in a row
    assert "8.0% from whole fresh pools" in says
