import math
import re

import pytest

from tailsieve_verl.advise.advice import MEAN_SHIFT, MIN_GAIN, P99_SHIFT
from tailsieve_verl.compare.speedup import Interval
from tailsieve_verl.report.verdict import FEW_STEPS, Facts, judge


def facts(**changes):
    given = {
        "steps": 30, "split": 20, "judged": 20, "predicted": 30, "gain": Interval(1.2, 1.15, 1.25), "step_gain": 1.1,
        "room": 1.3, "bias": {"mean": -0.01, "p99": -0.02, "truncated": 0.0, "ks": 0.02}, "bias_error": 0.004,
        "idle": {"tail": 0.2, "bulk": 0.1},
    }  # fmt: skip
    return Facts(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "worth", "says"),
    [
        ({}, "yes", r"1\.20x \(1\.15 to 1\.25\) faster .* whole step is 1\.10x"),
        ({"gain": Interval(MIN_GAIN - 0.01, 1.0, 1.03)}, "no", "hardly faster"),
        ({"gain": Interval(0.9, 0.85, 0.95)}, "no", "slower than"),
        ({"gain": Interval(1.2, 0.97, 1.4)}, "unsure", "the interval reaches 1"),
        ({"model_error": -math.log(1.3)}, "unsure", r"uniform steps, too, were .* leaves 0\.92x"),
        ({"model_error": 0.05}, "yes", "Worth it"),
        ({"step_gain": 1.004}, "no", "so small a part"),
        ({"judged": FEW_STEPS - 1}, "unsure", "Too early"),
        ({"judged": 1, "gain": Interval(1.2, math.nan, math.nan)}, "unsure", r"1\.20x against"),
        ({"gain": None, "judged": 0, "steered": False}, "unknown", "only the controller makes; see tailsieve compare"),
        (
            {"gain": None, "judged": 0, "last_reason": "held"},
            "unknown",
            r"no settled one has a prediction .* \(held\)\.$",
        ),
        ({"split": 0, "gain": None, "room": 1.02}, "no", "nothing to gain"),
        ({"split": 0, "gain": None}, "no", "no split was predicted"),
        ({"split": 0, "gain": None, "predicted": 0, "last_reason": "not yet"}, "unknown", r"Too early .*\(not yet\)"),
        ({"split": 0, "gain": None, "steered": False}, "unknown", "by its configuration"),
    ],
)
def test_worth(changes, worth, says):
    verdict = judge(facts(**changes))
    assert verdict.worth == worth

    assert re.search(says, verdict.headline), verdict.headline


@pytest.mark.parametrize(
    ("changes", "tolerable", "says"),
    [
        ({}, "yes", "tolerable"),
        ({"bias": {"mean": -MEAN_SHIFT - 0.01}}, "no", "not tolerable \\(mean\\)"),
        ({"bias": {"mean": -MEAN_SHIFT - 0.01}, "bias_error": None}, "no", "not tolerable"),
        ({"bias": {"mean": -0.06}, "bias_error": 0.04}, "unsure", "chance alone scatters the mean by 4.0%"),
        ({"bias": {"mean": -0.06, "p99": -P99_SHIFT - 0.01}, "bias_error": 0.04}, "no", "mean, p99"),
        ({"bias": {"mean": 0.0, "truncated": -0.01}}, "no", "truncated"),
        ({"bias": {}}, "unknown", "no bias figures"),
        ({"split": 0, "gain": None}, "yes", "Nothing was cut"),
    ],
)
def test_bias(changes, tolerable, says):

    verdict = judge(facts(**changes))
    assert verdict.tolerable == tolerable
    assert re.search(says, verdict.bias), verdict.bias


def test_a_gain_with_a_bias_is_said_to_be_part_of_it():
    verdict = judge(facts(bias={"mean": -0.1}))
    assert (verdict.worth, verdict.tolerable) == ("yes", "no")
    assert "shorter answers" in verdict.headline
    assert any("Raise q" in line for line in verdict.change)


def test_longer_answers_are_not_what_routing_gives():
    verdict = judge(facts(bias={"mean": 0.1}))
    assert (verdict.worth, verdict.tolerable) == ("yes", "no")
    assert "shorter answers" not in verdict.headline
    assert [line for line in verdict.change if "Longer answers" in line] == list(verdict.change)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gain": Interval(0.9, 0.8, 0.95)}, "Leave \\+tailsieve out"),
        ({"idle": {"tail": 0.6}}, "idles for 60%"),
        ({"moves": 9}, "moved in 9 of 30"),
        ({"failed": 1}, "1 prompt group failed"),
    ],
)
def test_what_to_change(changes, says):

    assert judge(facts()).change == ()
    (line,) = judge(facts(**changes)).change
    assert re.search(says, line)


def test_early_warnings_are_passed_on_with_their_step():
    assert judge(facts(warnings=(((7,), "it is wrong"),))).warnings == ("Step 7: it is wrong.",)
    (line,) = judge(facts(warnings=((tuple(range(1, 8)), "it is wrong"),))).warnings
    assert line == "Steps 1, 2, 3, 4 and 3 more; the last time: it is wrong."
