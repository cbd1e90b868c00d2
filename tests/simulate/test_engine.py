"""The event engine against the closed form, a token-by-token simulation, and bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.decode import DecodeCurve, finish_times
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.engine import EngineCosts, simulate_replicas

from .reference import token_by_token

CURVE = DecodeCurve([1, 4, 16], [0.01, 0.012, 0.02])


def one_replica(lengths, costs, **kwargs):
    return simulate_replicas(lengths, np.zeros(len(lengths), int), 1, costs, **kwargs)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(1, 6), st.randoms())
def test_without_limits_it_is_the_closed_form(lengths, replicas, random):
    where = np.array([random.randrange(replicas) for _ in lengths])
    outcome = simulate_replicas(lengths, where, replicas, EngineCosts(CURVE))
    for replica in range(replicas):
        mine = where == replica
        if mine.any():
            expected = finish_times(np.array(lengths)[mine], CURVE)
            assert np.allclose(outcome.finish[mine], expected, rtol=1e-9, atol=0)
            assert outcome.busy[replica] == expected.max() or np.isclose(outcome.busy[replica], expected.max(), 1e-9)
        else:
            assert outcome.busy[replica] == 0


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 12))
def test_with_an_admission_limit_it_is_the_core_s_model(lengths, seats):
    outcome = one_replica(lengths, EngineCosts(CURVE, max_num_seqs=seats))
    assert np.allclose(outcome.finish, finish_times(lengths, CURVE, max_num_seqs=seats), rtol=1e-9)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=25),
    st.sampled_from([None, 1, 3, 8]),
    st.sampled_from([None, 60, 90, 200]),
    st.sampled_from([0.0, 1e-5]),
    st.sampled_from([0.0, 2e-4]),
    st.floats(0.0, 1.2),
)
def test_with_limits_it_is_the_token_by_token_simulation(requests, seats, kv, context_s, prefill_s, share_of_time):
    lengths, prompts, share = (list(column) for column in zip(*requests, strict=True))
    prompts = [share[i] * 5 for i in range(len(share))]  # one prompt length per name
    costs = EngineCosts(CURVE, context_s, prefill_s, seats, kv)
    finish, _, preemptions = token_by_token(lengths, prompts, share, costs)
    outcome = one_replica(lengths, costs, prompt_tokens=prompts, share=share)
    assert np.allclose(outcome.finish, finish, rtol=1e-9)
    assert outcome.preemptions[0] == preemptions
    until = share_of_time * max(finish) + 1e-7  # not on an event: there rounding would decide
    _, reached, _ = token_by_token(lengths, prompts, share, costs, until)
    outcome = one_replica(lengths, costs, prompt_tokens=prompts, share=share, until=until)
    assert np.allclose(outcome.finish, finish, rtol=1e-9)
    assert outcome.reached.tolist() == reached


def test_replicas_are_independent_and_keep_the_input_s_order():
    rng = np.random.default_rng(0)
    lengths, where = rng.integers(1, 500, 200), rng.integers(0, 5, 200)
    costs = EngineCosts(CURVE, 1e-6, 1e-5, 6, 2500)
    prompts = rng.integers(1, 50, 200)
    together = simulate_replicas(lengths, where, 5, costs, prompt_tokens=prompts)
    for replica in range(5):
        mine = where == replica
        alone = one_replica(lengths[mine], costs, prompt_tokens=prompts[mine])
        assert np.array_equal(together.finish[mine], alone.finish)
        assert together.preemptions[replica] == alone.preemptions[0]


def test_a_full_cache_preempts_and_costs_time():
    lengths, prompts = [100] * 8, [10] * 8
    roomy = one_replica(lengths, EngineCosts(CURVE, prefill_s=1e-3), prompt_tokens=prompts)
    tight = one_replica(lengths, EngineCosts(CURVE, prefill_s=1e-3, kv_tokens=500), prompt_tokens=prompts)
    assert roomy.preemptions[0] == 0
    assert tight.preemptions[0] > 0
    assert tight.busy[0] > roomy.busy[0]


def test_bad_input_is_named():
    costs = EngineCosts(CURVE, kv_tokens=100)
    with pytest.raises(UserError, match="kv_tokens=100 cannot hold a request of 20 prompt and 90 response tokens"):
        one_replica([90], costs, prompt_tokens=[20])
    with pytest.raises(ValueError, match="positive"):
        one_replica([0], costs)
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        simulate_replicas([5], [1], 1, costs)
    with pytest.raises(UserError, match="context_s=-1"):
        EngineCosts(CURVE, context_s=-1)
    with pytest.raises(UserError, match="max_num_seqs=0"):
        EngineCosts(CURVE, max_num_seqs=0)
