"""Engines with drafts: the core's effective curve, a simulation step by step, samples, and depths from text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, finish_times
from tailsieve_verl.core.speculation import Acceptance, DepthTable, effective_curve
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.drafting import Speculation, parse_depth, read_acceptance
from tailsieve_verl.simulate.engine import EngineCosts, simulate_replicas

from .reference import token_by_token

CURVE = DecodeCurve([1, 4, 16], [0.01, 0.012, 0.02])
COSTS = EngineCosts(CURVE)


def one_replica(lengths, drafting, costs=COSTS, **kwargs):
    return simulate_replicas(lengths, np.zeros(len(lengths), int), 1, costs, drafting=[drafting], **kwargs)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60),
    st.lists(st.integers(0, 4), min_size=1, max_size=12).map(lambda depths: sorted(depths, reverse=True)),
    st.floats(0.0, 0.5),  # a table that throws away more than half of a step's yield is no decode curve
)
def test_without_limits_times_are_those_of_the_effective_curve(lengths, depths, rate):
    speculation = Speculation(Acceptance((rate, rate / 2)), CURVE)
    drafting = speculation.drafting(DepthTable.from_list(depths), 64)
    curve = effective_curve(drafting.costs, drafting.acceptance, drafting.table, 64)
    assert np.allclose(one_replica(lengths, drafting).finish, finish_times(lengths, curve), rtol=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=20),
    st.integers(0, 3),
    st.sampled_from([None, 1, 3, 8]),
    st.sampled_from([None, 80, 200]),
    st.sampled_from([0.0, 1e-5]),
    st.floats(0.0, 1.2),
    st.booleans(),
)
def test_with_limits_and_sure_drafts_it_is_the_step_by_step_simulation(
    requests, depth, seats, kv, context_s, share_of_time, sampled
):
    """All drafts accepted: every step gives d + 1 tokens, by the mean and by samples."""
    gain = depth + 1
    lengths, share = [gain * k for k, _ in requests], [name for _, name in requests]
    prompts = [5 * name for name in share]
    costs = EngineCosts(CURVE, context_s, 2e-4, seats, kv)
    drafting = Speculation(Acceptance((1.0,)), CURVE).drafting(DepthTable.constant(depth), 32)
    options = {"prompt_tokens": prompts, "share": share, "sample": 3 if sampled else None}

    def step_s(running):
        return float(drafting.costs.seconds(running, depth))

    finish, _, preemptions = token_by_token(lengths, prompts, share, costs, step_s=step_s, gain=gain)
    outcome = one_replica(lengths, drafting, costs, **options)
    assert np.allclose(outcome.finish, finish, rtol=1e-9)
    assert outcome.preemptions[0] == preemptions
    until = share_of_time * max(finish) + 1e-7  # not on an event: there rounding would decide
    _, reached, _ = token_by_token(lengths, prompts, share, costs, until, step_s, gain)
    assert one_replica(lengths, drafting, costs, until=until, **options).reached == pytest.approx(reached)


def test_sampled_drafts_scatter_around_the_mean():
    drafting = Speculation(Acceptance((0.8, 0.5)), CURVE).drafting(DepthTable.constant(3), 1)
    steps = np.array([one_replica([3000], drafting, sample=s).busy[0] for s in range(40)])
    steps /= float(drafting.costs.seconds(1, 3))
    expected = 3000 / (1 + 0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.5)
    assert steps.mean() == pytest.approx(expected, rel=0.01)
    assert 0 < steps.std() < 0.05 * expected
    assert np.allclose(steps, np.rint(steps))  # whole engine steps


def test_samples_depend_on_the_seed_alone():
    drafting = Speculation(Acceptance((0.6,)), CURVE).drafting("auto", 8)
    lengths = [100, 50, 80, 60]
    once, again, other = (one_replica(lengths, drafting, sample=s).finish for s in (1, 1, 2))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
    until = float(once.max()) / 2
    stopped = one_replica(lengths, drafting, sample=1, until=until)
    assert np.array_equal(stopped.finish, once)
    assert all(r == n if f <= until else r < n for r, n, f in zip(stopped.reached, lengths, once, strict=True))


def test_each_replica_drafts_by_itself():
    known = Speculation(Acceptance((0.7,)), CURVE)
    deep, shallow = known.drafting(DepthTable.constant(4), 8), known.drafting(DepthTable.constant(1), 8)
    lengths = [100, 200, 100, 200, 100, 200]
    where = [0, 0, 1, 1, 2, 2]
    together = simulate_replicas(lengths, where, 3, EngineCosts(CURVE), drafting=[deep, shallow, None]).finish
    for replica, drafting in enumerate((deep, shallow, None)):
        assert np.array_equal(together[2 * replica : 2 * replica + 2], one_replica([100, 200], drafting).finish)
    assert np.array_equal(one_replica([100, 200], None).finish, finish_times([100, 200], CURVE))
    with pytest.raises(ValueError, match="drafting must have one entry for each of 3 replicas"):
        simulate_replicas(lengths, where, 3, EngineCosts(CURVE), drafting=[deep])


@pytest.mark.parametrize("depths", [(0,), (3,), (5, 5, 2, 0), (0, 4)])
def test_no_table_is_faster_than_the_fastest_curve(depths):
    known = Speculation(Acceptance((0.8, 0.6)), CURVE)
    table = DepthTable.from_list(depths)
    drafting = known.drafting(table, 64)
    fastest = known.fastest(64, table.deepest)
    sizes = np.arange(1.0, 65.0)
    seconds, tokens, _ = drafting.steps(64)
    assert (fastest(sizes) <= seconds / tokens * (1 + 1e-12)).all()


def test_the_best_table_deepens_as_a_batch_drains_and_is_all_zero_where_drafts_do_not_pay():
    depths = [Speculation(Acceptance((0.7,)), CURVE).best(64)(b) for b in range(1, 65)]
    assert depths[0] > depths[-1]
    assert sorted(depths, reverse=True) == depths
    assert Speculation(Acceptance((0.02,)), CURVE).best(64) == DepthTable.constant(0)


def test_a_drafter_of_blocks_has_one_cost_for_every_depth():
    known = Speculation(Acceptance((0.7,)), CURVE, draft_share=0.0, pass_share=0.2)
    verified = CURVE(np.array([2.0, 4.0, 6.0]))
    found = [float(known.costs(5).seconds(1, d)) for d in (1, 3, 5)]
    assert found == pytest.approx((verified + 0.2 * CURVE(1.0)).tolist())


def test_depths_from_text():
    assert parse_depth("auto") == "auto"
    assert parse_depth(3) == parse_depth("3") == DepthTable.constant(3)
    assert parse_depth("1:5/8:2") == DepthTable(((1, 5), (8, 2)))


@pytest.mark.parametrize("text", ["deep", "-1", "2:5", "1:5/1:2", "1:5,8:2", ""])
def test_wrong_depths_are_named(text):
    with pytest.raises(UserError, match="must be a number of draft tokens, auto, or a table"):
        parse_depth(text)


def test_depths_beyond_any_drafter_are_refused():
    for make in (lambda: parse_depth(10**9), lambda: parse_depth("1:5/8:65")):
        with pytest.raises(UserError, match="must be at most 64 draft tokens"):
            make()
    with pytest.raises(UserError, match="deepest=65 must be from 1 to 64"):
        Speculation(Acceptance((0.7,)), CURVE, deepest=65)


def test_acceptance_from_numbers_and_from_a_run(tmp_path):
    assert read_acceptance("0.7").rates == (0.7,)
    assert read_acceptance("0.8,0.7,0.6").rates == (0.8, 0.7, 0.6)
    folder = tmp_path / "tailsieve"
    folder.mkdir()
    # 100 drafts of two tokens on each replica: 80 passed the first, 40 both; three drafts went one deeper.
    report = {"drafts": [[2, 0, 20], [2, 1, 40], [2, 2, 40], [3, 3, 1]]}
    lines = [{"kind": "step", "step": s, "drafting": {"0": report, "1": report}} for s in (1, 2, 3)]
    record = folder / "steps.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    for name in (tmp_path, record):
        assert read_acceptance(str(name)).rates == pytest.approx((0.80, 0.50), abs=0.01)  # the third was tried 6 times
    # What requests without a draft say counts as well: every second one had none.
    report = {"drafts": [[2, 2, 100]], "chances": [[2, 0, 100], [2, 2, 100]]}
    record.write_text(json.dumps({"kind": "step", "step": 1, "drafting": {"0": report}}) + "\n")
    assert read_acceptance(str(record)).rates == pytest.approx((0.5, 1.0), abs=0.01)
    record.write_text(json.dumps({"kind": "step", "step": 1}) + "\n")
    with pytest.raises(UserError, match="tells of no drafts"):
        read_acceptance(str(record))


@pytest.mark.parametrize("text", ["1.2", "much", "0.5,-1", "nowhere.jsonl"])
def test_wrong_acceptances_are_named(text):
    with pytest.raises(UserError, match=r"acceptance|nowhere"):
        read_acceptance(text)


@pytest.mark.parametrize(("name", "value"), [("draft_share", -0.1), ("pass_share", float("nan")), ("deepest", 0)])
def test_wrong_costs_are_named(name, value):
    with pytest.raises(UserError, match=name):
        Speculation(Acceptance((0.7,)), CURVE, **{name: value})
