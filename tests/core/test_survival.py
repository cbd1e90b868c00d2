import json

import numpy as np

from tailsieve_verl.core.survival import Survival


def test_runaways_are_remembered_after_ordinary_responses_were_cut():
    """One response in ten runs away to 64 times its level, and is cut at 4 times in most steps."""
    rng, survival = np.random.default_rng(0), Survival()
    for step in range(60):
        final = np.where(rng.random(1000) < 0.1, 64.0, np.exp(rng.normal(0, 0.3, 1000)))
        cut = np.where(final > 4, step % 10 > 0, False)
        survival.observe(np.where(cut, 4.0, final), ~cut)
    drawn = survival.beyond(np.full(2000, 4.0), rng)
    assert (drawn > 50).mean() > 0.95
    early = survival.beyond(np.full(4000, 1.0), rng)  # half of the others are beyond their level too
    assert 0.1 < (early > 50).mean() < 0.25


def test_nothing_known_leaves_things_as_they_are():
    survival, reached = Survival(), np.array([0.5, 3.0, 1e9])
    drawn = survival.beyond(reached, np.random.default_rng(0))
    assert (drawn >= reached).all()
    assert (drawn[:2] < 2 * reached[:2]).all()


def test_the_state_restores():
    survival = Survival()
    survival.observe(np.array([1.0, 2.0, 5.0]), np.array([True, True, False]))
    copy = Survival()
    copy.load_state_dict(json.loads(json.dumps(survival.state_dict())))
    draws = [one.beyond(np.full(50, 1.0), np.random.default_rng(1)) for one in (survival, copy)]
    assert np.array_equal(*draws)
