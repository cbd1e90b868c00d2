"""Depth tables and their costs: hand-worked cases, the best table by exhaustive search, estimates from counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.speculation import (
    Acceptance,
    DepthTable,
    SpeculationCosts,
    best_table,
    effective_curve,
    tries,
)

FLAT = DecodeCurve([1, 512], [0.01, 0.0101])
STEEP = DecodeCurve([1, 8, 512], [0.01, 0.011, 0.5])


def test_acceptance_length_is_the_expected_run():
    assert Acceptance((0.7,)).length(0) == 1
    assert Acceptance((0.7,)).length(3) == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert Acceptance((0.8, 0.5)).length(3) == pytest.approx(1 + 0.8 + 0.4 + 0.2)
    assert Acceptance((1.0,)).length(5) == 6
    with pytest.raises(ValueError, match=r"0\.\.1"):
        Acceptance((1.2,))


def test_counts_give_the_rates_that_made_them():
    rng = np.random.default_rng(0)
    rates, depth = (0.8, 0.6, 0.3), 3
    counts = np.zeros((4, 4))
    for _ in range(20_000):
        proposed = int(rng.integers(1, depth + 1))
        accepted = 0
        while accepted < proposed and rng.random() < rates[accepted]:
            accepted += 1
        counts[proposed, accepted] += 1
    assert Acceptance.from_tries(*tries(counts)).rates == pytest.approx(rates, abs=0.02)


def test_few_counts_say_little_and_wrong_ones_are_refused():
    nothing = np.zeros((3, 3))
    assert Acceptance.from_tries(*tries(nothing)).rates == (0.5, 0.5)
    with pytest.raises(ValueError, match="accepted than proposed"):
        tries([[0, 1], [0, 0]])
    with pytest.raises(ValueError, match="shape"):
        tries([[1]])


def test_tables_are_looked_up_from_below():
    table = DepthTable(((1, 5), (4, 2), (16, 0)))
    assert [table(b) for b in (0, 1, 3, 4, 15, 16, 900)] == [5, 5, 5, 2, 2, 0, 0]
    assert table.as_list(4) == [5, 5, 5, 5, 2]
    assert DepthTable.from_list([table(b) for b in range(1, 20)]) == table
    assert (str(table), str(DepthTable.constant(3))) == ("1:5,4:2,16:0", "3")
    assert table.deepest == 5
    for wrong in ((), ((2, 1),), ((1, 1), (1, 2)), ((1, -1),)):
        with pytest.raises(ValueError, match="depth"):
            DepthTable(wrong)


def test_a_modelled_step_costs_its_tokens_and_its_drafts():
    costs = SpeculationCosts.modelled(STEEP, [2, 4], 0.05)
    assert costs.seconds(4, 0) == pytest.approx(STEEP(4))
    assert costs.seconds(8, 2) == pytest.approx(STEEP(24) + 2 * 0.05 * STEEP(8))
    assert costs.seconds(8, 3) == pytest.approx((costs.seconds(8, 2) + costs.seconds(8, 4)) / 2)
    assert costs.seconds(8, 6) == pytest.approx(2 * costs.seconds(8, 4) - costs.seconds(8, 2))
    for batch in range(1, 65):  # between the curve's points too
        assert costs.seconds(batch, 4) == pytest.approx(STEEP(5 * batch) + 4 * 0.05 * STEEP(batch))
    block = SpeculationCosts.modelled(STEEP, [1, 4], 0.0, pass_share=0.1)
    assert block.seconds(8, 4) == pytest.approx(STEEP(40) + 0.1 * STEEP(8))
    assert block.seconds(8, 0) == pytest.approx(STEEP(8))
    with pytest.raises(ValueError, match="pass_share"):
        SpeculationCosts.modelled(STEEP, [1], 0.05, -1.0)
    with pytest.raises(ValueError, match="depth 0"):
        SpeculationCosts({1: FLAT})


def test_free_verification_asks_for_the_deepest_and_none_at_no_acceptance():
    costs = SpeculationCosts.modelled(FLAT, range(6), 0.01)
    assert best_table(costs, Acceptance((0.9,)), largest=16, deepest=5).table == DepthTable.constant(5)
    nothing = best_table(costs, Acceptance((0.0,)), largest=16, deepest=5)
    assert nothing.table == DepthTable.constant(0)
    assert "does not pay" in nothing.reason


@settings(deadline=None, max_examples=60)
@given(st.floats(0.2, 0.95), st.floats(0.0, 0.2), st.floats(0.0, 0.1))
def test_the_best_table_is_within_its_threshold_of_the_best_depth_everywhere(rate, draft, least):
    costs, acceptance = SpeculationCosts.modelled(STEEP, range(7), draft), Acceptance((rate,))
    table = best_table(costs, acceptance, largest=64, deepest=6, least_gain=least).table
    for b in range(1, 65):
        best = min(float(costs.seconds_per_token(b, d, acceptance)) for d in range(7))
        assert float(costs.seconds_per_token(b, table(b), acceptance)) <= (1 + least) * best * (1 + 1e-12)


def test_depths_fall_as_batches_grow_and_a_good_table_is_kept():
    costs, acceptance = SpeculationCosts.modelled(STEEP, range(7), 0.05), Acceptance((0.7,))
    choice = best_table(costs, acceptance, largest=256, deepest=6)
    depths = [choice.table(b) for b in range(1, 257)]
    assert depths[0] > depths[-1]
    assert sorted(depths, reverse=True) == depths
    assert choice.speedup[1] > 1.5
    assert choice.rejected[choice.table(1)][1] == pytest.approx(choice.speedup[1])
    kept = best_table(costs, Acceptance((0.7005,)), largest=256, deepest=6, present=choice.table)
    assert kept.table == choice.table
    assert kept.reason.startswith("kept")
    other = best_table(costs, Acceptance((0.3,)), largest=256, deepest=6, present=choice.table)
    assert other.table != choice.table


def test_the_effective_curve_is_step_time_over_acceptance_length():
    costs, acceptance = SpeculationCosts.modelled(STEEP, range(5), 0.05), Acceptance((0.7,))
    table = DepthTable(((1, 4), (5, 1)))
    curve = effective_curve(costs, acceptance, table, 64)
    for b in range(1, 65):
        assert curve(b) == pytest.approx(float(costs.seconds(b, table(b))) / acceptance.length(table(b)))
    assert effective_curve(costs, acceptance, DepthTable.constant(0), 64)(8) == pytest.approx(STEEP(8))
