"""Blocks only where they are predicted to gain; the tail pool takes another replica only where that gains."""

import numpy as np

from tailsieve_verl.core.arrangement import LEAST_GAIN, blocks_or_default, deferred
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history_placement import dealt, verl_default
from tailsieve_verl.core.policy import PolicyContext, make_plan

CURVE = DecodeCurve([1, 8, 32, 128], [0.006, 0.007, 0.0115, 0.03])
N, R = 32, 4


def scenarios(between):
    rng = np.random.default_rng(3)
    level = 6.0 + between * rng.standard_normal(N)
    drawn = np.exp(level[None, :, None] + 0.4 * rng.standard_normal((8, N, 4)))
    return drawn, np.median(drawn, axis=(0, 2))


def test_prompts_that_differ_are_placed_in_blocks_and_those_that_do_not_are_dealt():
    drawn, work = scenarios(0.8)
    blocks = blocks_or_default(drawn, work, R, CURVE)
    assert blocks.mean_s < (1 - LEAST_GAIN) * dealt(drawn, R, CURVE).mean_s
    same = np.full_like(drawn, 500.0)
    assert np.array_equal(blocks_or_default(same, same[0, :, 0], R, CURVE).replicas, verl_default(N, 4, R))


def test_the_tail_pool_grows_if_that_gains():
    drawn, work = scenarios(0.8)
    tail = np.zeros(N, bool)
    tail[np.argsort(-work)[:8]] = True  # what the cut left over is a quarter of the step
    context = PolicyContext(N, R)

    def following(step, m):
        plan = make_plan(context, 8, m, step=step, carried=8, last=False, stream_left=None, reason="")
        layout, after = deferred(drawn, work, plan, CURVE, m, tail, np.zeros(N, bool))
        assert layout.tail is not None
        assert layout.replicas[tail].min() >= R - m
        return after

    assert following(1, 2) == 3  # odd steps look at one more
    assert following(2, 2) == 2  # and even steps at one less
    assert following(1, 3) == 3  # the bulk pool keeps one
