from collections import Counter

import pytest

from tailsieve_verl.core.dispatch import Dispatcher, LeastLoaded, pool_slot


def dispatcher(replicas=4, groups=4, n=4, pool=(0, 1), granularity="request", planned=True):
    d = Dispatcher(replicas)
    d.add([f"g{i}" for i in range(groups)], [n] * groups, pool, granularity, planned=planned)
    return d


def test_groups_stay_together_round_robin():
    d = dispatcher(granularity="group")
    placed = {g: {d.acquire("", f"g{g}", s) for s in range(4)} for g in range(4)}
    assert placed == {0: {0}, 1: {1}, 2: {0}, 3: {1}}


def test_requests_are_dealt_one_by_one_whatever_the_order_of_arrival():
    order = [(g, s) for g in range(4) for s in range(4)]
    forward, backward = dispatcher(), dispatcher()
    a = {key: forward.acquire("", f"g{key[0]}", key[1]) for key in order}
    b = {key: backward.acquire("", f"g{key[0]}", key[1]) for key in reversed(order)}
    assert a == b
    assert Counter(a.values()) == {0: 8, 1: 8}
    assert a[1, 3] == pool_slot(1, 3, 4, 2, "request")


def test_a_closed_or_unknown_group_is_refused():
    d = dispatcher()
    d.close(["g0"])
    assert d.acquire("", "g0", 0) is None
    assert d.acquire("", "nobody", 0) is None
    assert d.in_flight(range(4)) == 0


def test_later_turns_stay_and_bend_only_inside_the_pool():
    d = dispatcher(groups=20, n=1, pool=(2, 3), granularity="group")
    first = d.acquire("", "g0", 0)
    d.release(first)
    for g in range(2, 20, 2):  # pile work on the same replica; 0 and 1 stay idle
        d.acquire("", f"g{g}", 0)
    assert first == 2
    assert d.acquire("", "g0", 0) == 3


def test_a_light_imbalance_moves_nobody():
    d = dispatcher(groups=6, n=1, pool=(0, 1), granularity="group")
    first = d.acquire("", "g0", 0)
    d.release(first)
    for g in (2, 4):
        d.acquire("", f"g{g}", 0)
    assert d.acquire("", "g0", 0) == first


def test_replacements_go_to_the_least_loaded_of_the_pool():
    d = dispatcher(groups=1, n=3, pool=(0, 1))
    for s in range(3):
        d.acquire("", "g0", s)
    d.add(["extra"], [1], (0, 1), "request", planned=False)
    assert d.acquire("", "extra", 0) == 1


def test_unrouted_requests_use_all_replicas_and_stick():
    d = dispatcher()
    placed = [d.acquire(f"r{i}") for i in range(8)]
    assert Counter(placed) == {0: 2, 1: 2, 2: 2, 3: 2}
    for replica in placed:
        d.release(replica)
    assert [d.acquire(f"r{i}") for i in range(8)] == placed


def test_no_session_of_100_000_moves():
    d = Dispatcher(8)
    first = [d.acquire(f"s{i}") for i in range(100_000)]
    for replica in first:
        d.release(replica)
    assert [d.acquire(f"s{i}") for i in range(100_000)] == first


def test_least_loaded_agrees_with_a_scan():
    import random

    rng, loads = random.Random(0), LeastLoaded(range(5))
    for _ in range(2000):
        replica = rng.randrange(5)
        loads.change(replica, rng.choice([1, -1]) if loads.load[replica] else 1)
        assert loads.load[loads.pick()] == min(loads.load.values()) == loads.least


def test_what_was_never_released_is_forgotten_at_the_next_step():
    d = dispatcher()
    for s in range(3):
        d.acquire("", "g0", s)
    d.acquire("validation")
    d.open()
    assert d.in_flight(range(4)) == 0
    assert d.loads.least == 0
    assert sorted(d.acquire(f"v{i}") for i in range(4)) == [0, 1, 2, 3]


def test_an_empty_pool_is_named():
    with pytest.raises(ValueError, match="at least one replica"):
        dispatcher(pool=())


def test_slots_of_one_s_own_place_first_turns_and_nothing_else():
    dispatch = Dispatcher(6)
    dispatch.add(["a", "b"], [2, 2], range(2, 6), "group", slots=[(3, 0), None])
    assert [dispatch.acquire("r", "a", s) for s in (0, 1)] == [5, 2]
    assert [dispatch.acquire("r", "b", s) for s in (0, 1)] == [3, 3]  # without: round robin by its order
    assert dispatch.acquire("r", "a", 0) == 5  # later turns stay
