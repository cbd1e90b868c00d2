import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core import evidence
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import replica_times
from tailsieve_verl.core.evidence import Evidence
from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.core.policy import PolicyContext, make_plan

from .closed_loop import DENSE
from .test_bounds import any_curve, least_makespan, some_lengths
from .test_history import group


def lower_bound(lengths, replicas, curve):
    """Of a step that trained one group with these lengths."""
    context = PolicyContext(4, replicas)
    plan = make_plan(context, 0, 0, step=1, carried=0, last=False, stream_left=None, reason="")
    step = StepObservation(plan, None, 1.0, None, 0.0, (group(0, lengths),))
    return Evidence(4, replicas, "request", "request", curve).lower_bound(step)


@given(some_lengths, st.integers(1, 3), any_curve(), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_no_placement_beats_the_lower_bound(lengths, replicas, curve, looked_at):
    best = least_makespan(lengths, replicas, curve)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "BOUND_REQUESTS", looked_at)
        assert 0 <= lower_bound(lengths, replicas, curve) <= best * (1 + 1e-9)


@pytest.mark.parametrize("replicas", [2, 8])
@pytest.mark.parametrize("spread", [0.4, 1.0])
def test_the_lower_bound_is_about_as_close_as_the_thorough_one(spread, replicas):
    lengths = np.random.default_rng(0).lognormal(7, spread, 512)
    bound = lower_bound(lengths.tolist(), replicas, DENSE)
    assert bound >= 0.9 * makespan_lower_bound(lengths, replicas, DENSE)
    assert bound <= replica_times(lengths, np.arange(512) % replicas, replicas, DENSE).max()
