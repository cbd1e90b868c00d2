"""What engines drafted, added up by hand; alarms for lost and for stale drafters, once each."""

import math

import pytest

from tailsieve_verl.core.drafting import AcceptanceWatch, DraftCounts, WeightsWatch


def counts(proposed, accepted, deepest=4):
    """One engine's drafts of one token each: `accepted` of `proposed`."""
    made = DraftCounts(deepest)
    made.add([(2, 1, 5)], [(1, 1, accepted), (1, 0, proposed - accepted)])
    return made


def test_counts_add_up():
    made = DraftCounts(3)
    made.add([(1, 3, 10), (4, 0, 5)], [(3, 2, 4), (3, 0, 1), (1, 1, 2)], [(1, 3, 8, 0.4)])
    made.add([(1, 3, 2)], [(3, 2, 1)], [(1, 3, 2, 0.2)])
    assert made.steps == 17
    assert made.depths == {(1, 3): 12, (4, 0): 5}
    assert made.times[1, 3][0] == 10
    assert abs(made.times[1, 3][1] - 0.6) < 1e-12
    assert (made.drafted, made.accepted) == (3 * 6 + 2, 2 * 5 + 2)
    assert made.acceptance_length == 1 + 12 / 8
    assert made.acceptance_rate == 12 / 20
    assert made.mean_depth == 12 * 3 / (12 + 20)


def test_nothing_drafted_is_no_acceptance():
    made = DraftCounts(3)
    assert (made.steps, made.drafted, made.acceptance_length, made.acceptance_rate) == (0, 0, 1, 0)


def test_a_lost_drafter_is_told_at_once_and_once():
    watch = AcceptanceWatch()
    assert "weights are lost or wrong" in watch.see(counts(500, 5))
    assert watch.see(counts(500, 5)) == ""
    assert watch.see(counts(500, 250)) == ""
    assert "weights are lost" in watch.see(counts(500, 5))


def test_a_fall_by_more_than_30_percent_is_told_and_a_drift_is_not():
    watch = AcceptanceWatch()
    for accepted in (400, 390, 380, 350, 330, 310):
        assert watch.see(counts(500, accepted)) == ""
    alarm = watch.see(counts(500, 180))
    assert "fell from 70%" in alarm
    assert "to 36%" in alarm


def test_deeper_drafts_are_no_fall():
    """Of five tokens a smaller share is accepted than of one, by the same drafter."""
    watch, deep = AcceptanceWatch(), DraftCounts(5)
    watch.see(counts(500, 300, deepest=5))
    deep.add([(1, 5, 100)], [(5, 0, 40), (5, 1, 24), (5, 2, 14), (5, 3, 9), (5, 4, 5), (5, 5, 8)])
    assert deep.first_rate == 0.6
    assert deep.acceptance_rate < 0.7 * deep.first_rate
    assert watch.see(deep) == ""


def test_a_fall_that_chance_may_make_says_nothing():
    few, many = AcceptanceWatch(level=0.4), AcceptanceWatch(level=0.4)
    assert few.see(counts(100, 27)) == ""  # 2.7 standard errors
    assert "fell from 40% to 27%" in many.see(counts(1000, 270))


def test_a_handful_of_drafts_says_nothing():
    watch = AcceptanceWatch()
    watch.see(counts(500, 400))
    assert watch.see(counts(50, 0)) == ""


def test_weights_of_a_frozen_drafter_that_change_are_told_once():
    watch = WeightsWatch(frozen=True)
    assert watch.see({0: [[1.0, 9.0, 4]], 1: [[1.0, 9.0, 4]]}) == ""
    assert watch.see({0: [[1.0 + 1e-12, 9.0, 4]]}) == ""  # another order of summation
    assert "replica 1 changed" in watch.see({0: [[1.0, 9.0, 4]], 1: [[1.1, 9.0, 4]]})
    assert watch.see({0: [[2.0, 9.0, 4]]}) == ""


def test_weights_that_a_trainer_may_send_may_change():
    watch = WeightsWatch(frozen=False)
    assert watch.see({0: [[1.0, 9.0, 4]]}) == watch.see({0: [[1.1, 9.5, 4]]}) == ""


@pytest.mark.parametrize("size", [0.0, math.nan, math.inf])
def test_weights_that_cannot_be_right_are_told_for_any_drafter(size):
    assert "all zero or not finite" in WeightsWatch(frozen=False).see({0: [[0.0, size, 4]]})


def test_a_drafter_without_weights_of_its_own_says_nothing():
    watch = WeightsWatch(frozen=True)
    assert watch.see({0: []}) == watch.see({0: [[0.0, 0.0, 0]]}) == ""
