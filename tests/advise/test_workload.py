"""Second attempts: as long again as the prompt makes them, and no longer."""

import numpy as np
import pytest

from tailsieve_verl.advise.fit import WorkloadFit, describe
from tailsieve_verl.advise.workload import DumpWorkload, SecondAttempts
from tailsieve_verl.traces.synthetic import LengthModel

from .dumps import drawn_fit


def second(fit, groups, draws=40, seed=0):
    """Lengths of second attempts, [groups, draws n]."""
    again, rng = SecondAttempts(fit), np.random.default_rng(seed)
    return np.array([np.concatenate([again.draw(rng, int(g)) for _ in range(draws)]) for g in groups])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.65, 0.9])
def test_the_longest_groups_come_back_as_the_true_model_would_have_it(share):
    """Against the truth: levels are known here, so the same prompts can really be drawn again."""
    model = LengthModel(prompt_share=share)
    ours, true, first = [], [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        levels = model.levels(rng, 256)
        lengths = model.draw(rng, levels, 8)
        fit = WorkloadFit(lengths, np.arange(256), np.repeat([1, 2, 3, 4], 64), np.zeros(256, int), 64, model.cap)
        longest = np.argsort(-lengths.max(axis=1))[:32]
        first.append(lengths[longest].mean())
        true.append(np.mean([model.draw(rng, levels[longest], 8).mean() for _ in range(40)]))
        ours.append(second(fit, longest).mean())
    assert np.mean(ours) == pytest.approx(np.mean(true), rel=0.06)
    assert share > 0.8 or np.mean(ours) < 0.97 * np.mean(first)  # and not as the first attempt was


def test_a_chance_runaway_does_not_come_back():
    fit = drawn_fit(LengthModel(p50=400, p90=600, prompt_share=0.0, runaway=0.005))
    cap = fit.cap
    hit = np.flatnonzero((fit.lengths == cap).any(axis=1))
    assert hit.size >= 4
    assert (second(fit, hit) == cap).mean() == pytest.approx((fit.lengths == cap).mean(), abs=0.004)


def test_prompts_that_always_run_to_the_limit_do():
    fit = drawn_fit(LengthModel(p50=400, p90=600, prompt_share=0.3))
    fit.lengths[::50] = fit.cap
    again = second(fit, np.arange(0, 256, 50))
    assert (again == fit.cap).mean() > 0.9
    assert (second(fit, np.arange(1, 256, 50)) == fit.cap).mean() < 0.02


def test_equal_lengths_stay():
    fit = WorkloadFit(np.full((6, 4), 16), np.arange(6), np.ones(6, int), np.zeros(6, int), 6, 16)
    assert (second(fit, range(6)) == 16).all()


def test_groups_that_do_not_vary_inside_stay_what_they_are():
    lengths = np.repeat(np.array([[5], [50], [500], [900]]), 4, axis=1)
    fit = WorkloadFit(lengths, np.arange(4), np.ones(4, int), np.zeros(4, int), 4, None)
    assert (second(fit, range(4)) == lengths[:, :1]).all()


def test_two_responses_a_group_are_enough():
    fit = drawn_fit(LengthModel(prompt_share=0.65), n=2)
    assert second(fit, [0, 1, 2]).min() >= 1


def test_the_stream_is_the_dump_over_and_over():
    fit = drawn_fit(LengthModel(), steps=1, n_groups=10, n=4)
    load = DumpWorkload(fit, seed=1)
    assert (load.n, load.cap) == (4, fit.cap)
    for turn in (0, 1):
        serials = list(range(10 * turn, 10 * turn + 10))
        got = load.lengths(serials, [0] * 10, 1)
        assert sorted(map(tuple, got.tolist())) == sorted(map(tuple, fit.lengths.astype(float).tolist()))
        assert load.identity(serials).tolist() == serials
    assert not np.array_equal(load.lengths(range(10), [0] * 10, 1), load.lengths(range(10, 20), [0] * 10, 1))


def test_an_attempt_s_lengths_depend_on_seed_serial_and_attempt_alone():
    fit = drawn_fit(LengthModel(prompt_share=0.0), steps=1, n_groups=10)
    load = DumpWorkload(fit, seed=1)
    once = load.lengths([3, 4, 5], [0, 1, 1], 1)
    assert np.array_equal(once[1:], DumpWorkload(fit, seed=1).lengths([5, 4], [1, 1], 9)[::-1])
    assert not np.array_equal(once, DumpWorkload(fit, seed=2).lengths([3, 4, 5], [0, 1, 1], 1))
    held = DumpWorkload(fit, seed=1, held=True)
    assert np.array_equal(held.lengths([3, 4], [1, 1], 1), held.lengths([3, 4], [0, 0], 1))


def test_prompt_lengths_go_with_the_groups():
    fit = drawn_fit(LengthModel(), steps=1, n_groups=10)
    fit.prompt_tokens[:] = fit.lengths[:, 0]
    load = DumpWorkload(fit)
    assert np.array_equal(load.prompt_tokens(range(10)), load.lengths(range(10), [0] * 10, 1)[:, 0])


def test_a_large_dump_keeps_some_donors():
    fit = drawn_fit(LengthModel(), steps=50, n_groups=128)
    assert describe(fit).groups == 6400
    assert second(fit, [0], draws=200).mean() == pytest.approx(second(fit, [0], draws=200, seed=1).mean(), rel=0.1)
