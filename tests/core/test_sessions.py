import numpy as np

from tailsieve_verl.core.plan import GroupRecord
from tailsieve_verl.core.sessions import session_table


def record(prompt, replicas, started=None, finished=None, tokens=None, status="trained"):
    n = len(replicas)
    return GroupRecord(
        prompt=prompt,
        key=str(prompt),
        route="fresh",
        status=status,
        replicas=tuple(replicas),
        started_s=tuple(started or [0.0] * n),
        finished_s=tuple(finished or [1.0] * n),
        tokens=tuple(tokens or [10] * n),
        complete=(True,) * n,
        generated_s=None,
    )


def test_every_session_that_was_dispatched_is_in_the_table():
    table = session_table([record(0, [0, 1, -1]), record(1, [2], finished=[4.0], tokens=[7])])
    assert table.replica.tolist() == [0, 1, 2]
    assert table.ended_s.tolist() == [1.0, 1.0, 4.0]
    assert table.tokens.tolist() == [10, 10, 7]


def test_a_replica_with_a_senseless_session_is_left_out_as_a_whole():
    groups = [record(0, [0, 1, 2]), record(1, [0, 1, 2], started=[0.0, 3.0, 0.0], finished=[1.0, 2.0, None])]
    table = session_table(groups)
    assert table.replica.tolist() == [0, 0]
    assert table.dropped == 4


def test_large_steps_are_sampled_by_whole_replicas_from_both_ends_of_the_ranks():
    groups = [record(g, [(8 * g + s) % 64 for s in range(8)]) for g in range(800)]
    table = session_table(groups, max_sessions=500)
    replicas, counts = np.unique(table.replica, return_counts=True)
    assert set(counts) == {100}
    assert {0, 63} <= set(replicas)
    assert len(replicas) == 5


def test_nothing_is_an_empty_table():
    assert session_table([]).tokens.size == session_table([record(0, [-1])]).tokens.size == 0
