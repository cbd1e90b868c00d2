import json

import pytest

from tailsieve_verl.core.inner import BalanceLoop, hold_after, sane_time


def test_the_paper_s_formulas_by_hand():
    loop = BalanceLoop(64)
    numbers = loop.measured(8, 4.0, 7.0)
    assert (numbers.rate_tail, numbers.rate_bulk) == (2.0, 8.0)
    assert numbers.q_star == pytest.approx(64 * 2 / 10)
    assert numbers.velocity == pytest.approx(0.5 * (12.8 - 8))
    assert loop.proposal(8, numbers.q_star) == 10  # 2.4 rounds to 2
    again = loop.measured(8, 2.0, 7.0)  # the tail rate doubles: 0.3 of the way
    assert again.rate_tail == pytest.approx(2.0 + 0.3 * 2.0)
    assert again.velocity == pytest.approx(0.3 * 2.4 + 0.5 * (again.q_star - 8))


@pytest.mark.parametrize(("velocity", "q_star", "q_new"), [(0.5, 9, 9), (-0.5, 7, 7), (0.2, 8.3, 9), (0.2, 8.2, 8)])
def test_halves_round_away_from_zero_and_a_due_group_moves(velocity, q_star, q_new):
    assert BalanceLoop(64, velocity=velocity).proposal(8, q_star) == q_new


@pytest.mark.parametrize(("n", "clip"), [(16, 4), (64, 8), (8, 4)])
def test_the_change_is_clipped_and_q_stays_in_range(n, clip):
    loop = BalanceLoop(n, velocity=1000.0)
    assert loop.proposal(1, 1000.0) == min(1 + clip, n // 2)
    loop.velocity = -1000.0
    assert loop.proposal(2, 0.0) == 1


def test_constant_rates_never_leave_one_group_unless_bulk_takes_twice_as_long():
    """Why the paper's own test is not our default: 1 -> 2 is predicted to double the tail time."""
    loop = BalanceLoop(64)
    loop.measured(1, 5.0, 9.0)
    assert loop.makespan(2) > loop.makespan(1)
    loop.restart()
    loop.measured(1, 5.0, 11.0)
    assert loop.makespan(2) < loop.makespan(1)


def test_balance_to_within_a_group_is_left_alone():
    assert BalanceLoop(64).balance(11, 11.0, 10.6)[0] == 11
    q, why, _ = BalanceLoop(64).balance(8, 2.0, 7.0)
    assert q > 8
    assert "bulk pool slower" in why


def test_holds_and_times():
    assert (hold_after(4, 6), hold_after(6, 4), hold_after(4, 4)) == (1, 2, 1)
    assert sane_time(1.0)
    assert not any(sane_time(t) for t in (None, 0.0, -1.0, float("nan"), float("inf")))


def test_the_state_is_plain_and_restores():
    loop = BalanceLoop(64)
    loop.measured(8, 4.0, 7.0)
    copy = BalanceLoop(64)
    copy.load_state_dict(json.loads(json.dumps(loop.state_dict())))
    assert copy == loop
