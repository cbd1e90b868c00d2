import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailsieve_verl.core.accounting import launch_counts
from tailsieve_verl.core.plan import LaunchCounts

# The table of the design, N = 64: (carried, q aimed at, last) -> tail, residual, fresh, needed
TABLE = {
    "first step": (0, 6, False, LaunchCounts(0, 0, 70, 64)),
    "stable": (6, 6, False, LaunchCounts(6, 0, 64, 58)),
    "grows": (6, 9, False, LaunchCounts(6, 0, 67, 58)),
    "shrinks": (6, 2, False, LaunchCounts(2, 4, 60, 58)),
    "to uniform": (6, 0, False, LaunchCounts(0, 6, 58, 58)),
    "uniform": (0, 0, False, LaunchCounts(0, 0, 64, 64)),
    "last": (6, 6, True, LaunchCounts(6, 0, 58, 58)),
    "last, shrinking": (6, 2, True, LaunchCounts(2, 4, 58, 58)),
}


@pytest.mark.parametrize("case", TABLE)
def test_table(case):
    carried, q, last, counts = TABLE[case]
    assert launch_counts(64, carried, q, last=last) == counts


def test_short_stream_launches_what_there_is():
    assert launch_counts(8, 2, 3, stream_left=4) == LaunchCounts(2, 0, 4, 4)
    assert launch_counts(8, 2, 3, stream_left=7) == LaunchCounts(2, 0, 7, 6)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n - 1))))
def test_conservation(case):
    n_groups, carried, q = case
    counts = launch_counts(n_groups, carried, q)
    assert carried + counts.fresh == n_groups + counts.left_over
    assert counts.batch == n_groups
    assert counts.left_over == q
    assert launch_counts(n_groups, carried, q, last=True).left_over == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((0, 0, 0), "n_groups"), ((4, 5, 0), "carried"), ((4, 0, 4), "q must"), ((4, 0, -1), "q must")],
)
def test_bad_input_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        launch_counts(*arguments)
