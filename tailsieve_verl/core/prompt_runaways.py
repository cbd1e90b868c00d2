"""Runaways, responses far above their prompt's level: how many there are, whose they are, and how long.

Their share of all responses is learned over about as many of them as long as they are rare. A prompt's chance of them
is between what it had itself and the share of all, by how far runaways come together in groups.

Invariants: bounded memory (`RUNAWAY_LENGTHS` lengths and four counts); nobody is said to run away before one has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.prompt_history import Entries

Floats = NDArray[np.float64]

#: Runaways are rare: their share is learned over about so many of them, within these bounds in responses.
RUNAWAYS, RUNAWAY_MEMORY = 32.0, (2_000.0, 200_000.0)
#: Lengths of runaways that are kept.
RUNAWAY_LENGTHS = 256
#: Runaways that count for the belief that all prompts have the same chance of them.
LIKE_CHANCE = 2.0


class PromptRunaways:
    """Counts of runaways, the old ones faded (module docstring).

    Attributes:
        logs: log lengths of the latest, [K].
        count, responses: runaways, and all responses.
        pairs, chances: pairs of responses of a prompt that both ran away, and all pairs.
    """

    def __init__(self) -> None:
        self.logs: Floats = np.zeros(0)
        self.count = self.responses = 0.0
        self.pairs = self.chances = 0.0

    @property
    def share(self) -> float:
        """Share of responses that ran away lately."""
        return self.count / self.responses if self.responses else 0.0

    def chance_of(self, entries: Entries) -> Floats:
        """Chance that a response of these prompts runs away, [G]."""
        if not self.share:
            return np.zeros(entries.known.size)
        # A prompt that ran away before does it again, as far as runaways come together in groups (beta-binomial).
        prior = 1.0 / max(self._alike, 1e-6) - 1.0
        return np.asarray((entries.runs + prior * self.share) / (entries.weight + prior))

    def note(self, logs: Floats, away: NDArray[np.bool_]) -> Floats:
        """Take in a step's responses; returns how many of each group's ran away, [G].

        Args:
            logs: log lengths, [G, n].
            away: which of them are runaways, [G, n].
        """
        runs = away.sum(axis=1).astype(np.float64)
        memory = np.clip(RUNAWAYS / max(self.share, 1e-6), *RUNAWAY_MEMORY)
        keep = max(0.0, 1.0 - logs.size / float(memory))
        groups, n = logs.shape
        self.count = keep * self.count + float(runs.sum())
        self.responses = keep * self.responses + float(logs.size)
        self.pairs = keep * self.pairs + float((runs * (runs - 1.0)).sum())
        self.chances = keep * self.chances + float(groups * n * (n - 1))
        self.logs = np.concatenate((self.logs, logs[away]))[-RUNAWAY_LENGTHS:]
        return runs

    @property
    def _alike(self) -> float:
        """Correlation of running away between two responses of a prompt; 0 if it is chance alone."""
        share = self.share
        if not self.chances or not share:
            return 0.0
        both = self.pairs / self.chances
        found = max(0.0, (both - share**2) / (share - share**2))
        return found * self.count / (self.count + LIKE_CHANCE)
