"""The decision and its words, on findings made up one by one."""

from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from tailsieve_verl.advise.advice import Findings, decide, override_line
from tailsieve_verl.advise.fit import Lengths
from tailsieve_verl.advise.match import Match
from tailsieve_verl.config.schema import parse, resolve_split
from tailsieve_verl.simulate.study import Interval

LENGTHS = Lengths(
    responses=16384, groups=2048, steps=32, prompts=2048, n_groups=64, n=8, mean=1900.0, p50=1160.0, p90=4115.0,
    p99=11000.0, longest=16384, stretch=14.0, cap=16384, truncated=0.004, icc=0.65, tail_icc=0.4, half_auc=0.9,
    epoch_auc=None, repeated=0,
)  # fmt: skip
PAYS = Findings(
    lengths=LENGTHS, icc=Interval(0.65, 0.6, 0.7), tail_icc=Interval(0.4, 0.3, 0.5), n_groups=64, replicas=8,
    now="verl_default", q=8, m=4, gain=Interval(1.08, 1.04, 1.12), held=Interval(1.07, 1.03, 1.11), risk=0.001,
    bias_mean=Interval(-0.015, -0.03, 0.0), bias_p99=Interval(-0.04, -0.1, 0.02),
    bias_truncated=Interval(0.0, -0.001, 0.001), now_s=114.0, tailsieve_s=106.0, room=1.2, idle=0.2, uniform=0.0,
    match=None, made_up=False,
)  # fmt: skip
MATCH = Match(scale=1.1, error=0.05, worst=0.08, steps=20, spread=0.6, generation_share=0.7, measured_s=120.0)
FLAT = replace(LENGTHS, stretch=1.0, p50=64.0, p90=64.0, longest=64)
BARELY = Interval(1.02, 1.0, 1.04)
NONE = {"gain": Interval(1.0, 0.98, 1.02), "risk": 0.5}


def text(advice):
    return " ".join((advice.headline, *advice.sentences))


@pytest.mark.parametrize(
    ("change", "verdict", "reason", "word"),
    [
        ({}, "use", "pays", "1.08x (1.04 to 1.12)"),
        ({"gain": Interval(1.08, 0.95, 1.22), "risk": 0.08}, "use", "pays", "chance of a loss is 8%"),
        ({"gain": Interval(1.08, 0.90, 1.30), "risk": 0.2}, "try", "unsure", "chance of a loss is 20%"),
        ({"bias_mean": Interval(-0.05, -0.06, -0.04)}, "try", "shift", "1.07x of it by routing alone"),
        ({"bias_p99": Interval(-0.3, -0.4, -0.2), "held": BARELY}, "leave", "chance", "the tail is in part chance"),
        ({"bias_truncated": Interval(-0.02, -0.03, -0.01), "held": BARELY}, "leave", "chance",
         "learn from shorter answers"),
        ({"bias_mean": Interval(-0.09, -0.1, -0.08), "tail_icc": Interval(0.01, 0.0, 0.05),
          "gain": Interval(1.3, 1.2, 1.4)}, "leave", "chance", "the tail is chance"),
        ({**NONE, "lengths": FLAT, "room": 1.0}, "leave", "flat", "there is no tail"),
        ({**NONE, "room": 1.02}, "leave", "full", "nothing left to gain"),
        (NONE, "leave", "split", "no split of 8 replicas"),
        ({"match": replace(MATCH, generation_share=0.1)}, "leave", "share", "generation is 10% of a step"),
    ],
)  # fmt: skip
def test_decided(change, verdict, reason, word):
    advice = decide(replace(PAYS, **change))
    assert (advice.verdict, advice.reason) == (verdict, reason)
    assert word in text(advice)
    assert (advice.override is None) == (verdict == "leave")
    assert advice.headline.startswith({"use": "Use it", "try": "Try it", "leave": "Leave it off, because"}[verdict])


def test_every_sentence_is_one():
    for change in ({}, NONE, {"bias_mean": Interval(-0.2, -0.3, -0.1)}, {"match": MATCH, "made_up": True}):
        for sentence in (advice := decide(replace(PAYS, **change))).sentences:
            assert sentence.endswith("."), sentence
            assert "nan" not in sentence
        assert advice.headline.endswith(".")


def test_the_override_is_one_that_a_run_accepts():
    found = decide(PAYS).override
    assert found == "+tailsieve=default trainer.v1.tailsieve.q=8 trainer.v1.tailsieve.m=4"
    dots = OmegaConf.from_dotlist(found.split()[1:])
    config = parse(OmegaConf.to_container(dots.trainer.v1.tailsieve))
    assert resolve_split(config, 64, 8) == (8, 4)
    assert override_line(None, None) == "+tailsieve=default"


def test_a_small_dump_is_said_to_be_small():
    small = replace(LENGTHS, steps=4, groups=96)
    assert "4 steps and 96 prompt groups" in text(decide(replace(PAYS, lengths=small)))
    assert "1 step and" in text(decide(replace(PAYS, lengths=replace(small, steps=1))))
    assert "with so few" not in text(decide(PAYS))


def test_an_interval_that_reaches_a_gain_asks_for_more_steps():
    assert "more steps" in text(decide(replace(PAYS, gain=Interval(1.01, 0.95, 1.07))))
    assert "more steps" not in text(decide(replace(PAYS, **NONE)))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, "Simulated step times match: they miss the log's by 5% (worst 8% of 20 steps)"),
        ({"error": 0.4}, "do NOT match"),
        ({"scale": 8.0}, "a scale so far from 1 cannot tell"),
        ({"spread": 0.01}, "steps so alike cannot tell"),
        ({"steps": 1}, "One logged step"),
    ],
)
def test_what_a_log_says_of_the_curve(change, word):
    assert word in text(decide(replace(PAYS, match=replace(MATCH, **change))))


def test_the_whole_step_gains_less():
    found = replace(PAYS, match=MATCH)
    assert found.step_gain == pytest.approx(1 / (0.3 + 0.7 / 1.08))
    assert "A whole step becomes 1.05x." in text(decide(found))


def test_a_made_up_curve_is_said_to_be():
    assert "tailsieve calibrate" in text(decide(replace(PAYS, made_up=True)))


def test_nothing_varies():
    found = replace(PAYS, lengths=FLAT, icc=None, tail_icc=None, **NONE)
    assert "same length" in text(decide(found))


def test_epochs_are_told_where_prompts_came_again():
    lengths = replace(LENGTHS, epoch_auc=0.93, repeated=40)
    assert "AUC of 0.93" in text(decide(replace(PAYS, lengths=lengths)))
