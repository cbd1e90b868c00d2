"""Runaways: their share, whose they are, and how many lengths are kept."""

import numpy as np
import pytest

from tailsieve_verl.core.prompt_history import PromptHistory
from tailsieve_verl.core.prompt_runaways import RUNAWAY_LENGTHS, PromptRunaways

GROUPS, N = 64, 8


def noted(which, steps=10):
    """Runaways after steps in which those of ``which`` [G, n] ran away, and entries of the prompts."""
    runaways, history, names = PromptRunaways(), PromptHistory(), [f"p{i}" for i in range(GROUPS)]
    for step in range(1, steps + 1):
        runs = runaways.note(np.full((GROUPS, N), 9.0), which)
        everyone = np.ones(GROUPS, bool)
        history.add(step, names, np.full(GROUPS, 7.0), np.full(GROUPS, float(N)), runs, everyone)
    return runaways, history.look_up(names)


def test_nobody_runs_away_before_one_has():
    runaways, entries = noted(np.zeros((GROUPS, N), bool))
    assert runaways.share == 0.0
    assert (runaways.chance_of(entries) == 0.0).all()


def test_whole_groups_that_run_away_are_told_from_chance():
    together, apart = np.zeros((2, GROUPS, N), bool)
    together[:4] = True
    apart[: 4 * N, 0] = True
    (prone, entries), (spread, others) = noted(together), noted(apart)
    assert prone.share == spread.share == pytest.approx(1 / 16)
    assert prone.chance_of(entries)[:4].min() > 0.8
    assert prone.chance_of(entries)[4:].max() < 0.01
    assert np.ptp(spread.chance_of(others)) < 0.01


def test_lengths_are_bounded():
    runaways, _ = noted(np.ones((GROUPS, N), bool), steps=2)
    assert runaways.logs.size == RUNAWAY_LENGTHS
