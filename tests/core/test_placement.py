"""Placements on examples worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailsieve_verl.core.placement import (
    PLACEMENTS,
    SeerOracle,
    StreamRLOracle,
    TailSieve,
    UniformGroup,
    UniformOracle,
    VerlDefault,
    pool_slot,
)

LENGTHS = np.array([[5, 1], [2, 2], [9, 3], [4, 4]])  # totals 6, 4, 12, 8


def test_uniform_group():
    assert UniformGroup().place(LENGTHS, 3).tolist() == [[0, 0], [1, 1], [2, 2], [0, 0]]


def test_verl_default():
    assert VerlDefault().place(LENGTHS, 3).tolist() == [[0, 1], [2, 0], [1, 2], [0, 1]]


def test_uniform_oracle():
    # 12 to 0; 8 to 1; 6 to 1 (8 < 12); 4 to 0 (12 < 14).
    assert UniformOracle().place(LENGTHS, 2).tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]


def test_uniform_oracle_ties_go_to_the_earlier_group_and_the_lowest_replica():
    assert UniformOracle().place([[3], [3], [3], [3]], 3).tolist() == [[0], [1], [2], [0]]


def test_seer_oracle():
    # 9 to 0; 5 to 1; 4 to 1; at 9 : 9 the other 4 to 0; 3 to 1; 2 to 1 (12 < 13); 2 to 0 (13 < 14); 1 to 1 (14 < 15).
    assert SeerOracle().place(LENGTHS, 2).tolist() == [[1, 1], [1, 0], [0, 1], [1, 0]]


def test_streamrl_oracle():
    # 0.2 * 8 = 1.6: the longest two (9 and 5) on the tail replica 2; the others in order over replicas 0 and 1.
    assert StreamRLOracle(m=1).place(LENGTHS, 3).tolist() == [[2, 0], [1, 0], [2, 1], [0, 1]]


def test_streamrl_oracle_deals_the_tail_in_falling_order():
    lengths = np.arange(10).reshape(5, 2)  # tail: 9 to the first tail replica, 8 to the second
    where = StreamRLOracle(m=2).place(lengths, 3)
    assert where.tolist() == [[0, 0], [0, 0], [0, 0], [0, 0], [2, 1]]


def test_tailsieve_by_request():
    # R = 4, m = 2: tail replicas 2 and 3, bulk 0 and 1. Tail groups 2 then 0, bulk 1 and 3; three rollouts a group.
    lengths = np.ones((4, 3))
    where = TailSieve((2, 0), m=2).place(lengths, 4)
    assert where.tolist() == [[3, 2, 3], [0, 1, 0], [2, 3, 2], [1, 0, 1]]


def test_tailsieve_by_group():
    where = TailSieve((2, 0), m=2, tail_granularity="group", bulk_granularity="group").place(np.ones((4, 3)), 4)
    assert where.tolist() == [[3, 3, 3], [0, 0, 0], [2, 2, 2], [1, 1, 1]]


def test_tailsieve_without_a_tail_is_uniform():
    assert (TailSieve((), 0).place(LENGTHS, 3) == VerlDefault().place(LENGTHS, 3)).all()
    assert (TailSieve((), 0, bulk_granularity="group").place(LENGTHS, 3) == UniformGroup().place(LENGTHS, 3)).all()
    assert set(TailSieve((), 1).place(LENGTHS, 3).flat) == {0, 1}


@given(st.integers(1, 9), st.integers(1, 4), st.integers(2, 5), st.data())
def test_tailsieve_is_the_round_robin_of_the_router(n_groups, n, replicas, data):
    tail = data.draw(st.permutations(range(n_groups)))[: data.draw(st.integers(1, n_groups))]
    m = data.draw(st.integers(1, replicas - 1))
    granularity = data.draw(st.sampled_from(["group", "request"]))
    where = TailSieve(tuple(tail), m, granularity, granularity).place(np.ones((n_groups, n)), replicas)
    bulk = [g for g in range(n_groups) if g not in tail]
    for s in range(n):
        for k, g in enumerate(tail):
            assert where[g, s] == replicas - m + pool_slot(k, s, n, m, granularity)
        for k, g in enumerate(bulk):
            assert where[g, s] == pool_slot(k, s, n, replicas - m, granularity)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 6), st.integers(0, 1000))
def test_every_placement_is_in_range_and_repeats_itself(n_groups, n, replicas, seed):
    lengths = np.random.default_rng(seed).integers(0, 50, (n_groups, n))
    arguments = {"streamrl_oracle": (1,), "tailsieve": ((0,), 1)}
    for name, make in PLACEMENTS.items():
        placement = make(*arguments.get(name, ()))
        where = placement.place(lengths, replicas)
        assert placement.name == name
        assert where.shape == (n_groups, n)
        assert where.dtype.kind == "i"
        assert 0 <= where.min() <= where.max() < replicas
        assert (where == placement.place(lengths, replicas)).all()


def test_registry():
    assert sorted(PLACEMENTS) == [
        "seer_oracle",
        "streamrl_oracle",
        "tailsieve",
        "uniform_group",
        "uniform_oracle",
        "verl_default",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformGroup().place([], 2), "lengths must have 2 axes"),
        (lambda: UniformGroup().place(np.ones((0, 2)), 2), "lengths must not be empty"),
        (lambda: SeerOracle().place([[1, -2]], 2), r"lengths must not be negative, got -2.0 at index \(0, 1\)"),
        (lambda: SeerOracle().place([[float("nan")]], 2), "lengths must be finite, got nan"),
        (lambda: VerlDefault().place([[1]], 0), "replicas must be a whole number at least 1, got 0"),
        (lambda: StreamRLOracle(0), "m must be a whole number at least 1, got 0"),
        (lambda: StreamRLOracle(2).place([[1]], 2), r"m must be a whole number in \[1, 1\], got 2"),
        (lambda: TailSieve((0,), 0), "m must be a whole number at least 1, got 0"),
        (lambda: TailSieve((0, 0), 1), r"tail_groups must not repeat a group, got \(0, 0\)"),
        (lambda: TailSieve((-1,), 1), "tail_groups must be a whole number at least 0, got -1"),
        (lambda: TailSieve((5,), 1).place(LENGTHS, 3), r"tail_groups must be in \[0, 4\), got 5"),
        (lambda: TailSieve((0,), 3).place(LENGTHS, 3), r"m must be a whole number in \[0, 2\], got 3"),
        (lambda: TailSieve((0,), 1, "token"), "tail_granularity must be 'group' or 'request', got 'token'"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
