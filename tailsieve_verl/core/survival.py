"""How much longer a response is likely to get than it is, by how far it is beyond its prompt's level already.

The history of a split knows little of responses that run away: in the bulk pool they are cut, in the tail pool they are
rare. So every response is counted in bins of its ratio to its prompt's level, as reaching a bin and as ending in it (a
life table), and old counts fade slowly. Their ratio, which is all that is used, fades not at all.

A cut response counts half for the bin it was cut in, as actuaries count: with none there, those that end before the
cut weigh too much, and half as many responses seem to run away as do.

Invariants: memory of two short arrays; a right-censored response ends nowhere; plain JSON state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Bins a factor of 2^(1/4) wide, of ratios from 2^-8 to 2^12: fine enough for times, few enough to fill.
PER_OCTAVE, LOWEST, BINS = 4, -8, 80
#: What a step's counts keep from one step to the next: fifty steps of memory, longer than the pools are kept.
KEEP = 0.98
#: Counts below this are taken for nothing.
LEAST_COUNT = 1e-3


class Survival:
    """Life table of ratios of response lengths to their prompts' levels (module docstring)."""

    def __init__(self) -> None:
        self._ended = np.zeros(BINS)
        self._reached = np.zeros(BINS)

    def observe(self, ratios: Floats, complete: NDArray[np.bool_]) -> None:
        """Count a step's responses, flat arrays [K]."""
        bins = _bin(ratios)
        ended = np.bincount(bins[complete], minlength=BINS)
        cut = np.bincount(bins[~complete], minlength=BINS)
        self._ended = KEEP * self._ended + ended
        self._reached = KEEP * self._reached + np.cumsum((ended + cut)[::-1])[::-1] - 0.5 * cut

    def beyond(self, ratios: Floats, rng: np.random.Generator) -> Floats:
        """Final ratios given that they exceed these, [K] each; the same again if nothing is known of so high ones."""
        survival, start = self._survival(), _bin(ratios)
        # It ends in the first bin at whose upper edge survival is down to a random part of that at the start.
        end = np.searchsorted(-survival, -rng.random(ratios.size) * survival[start], side="left") - 1
        seen = np.flatnonzero(self._ended > LEAST_COUNT)
        end = np.maximum(start, np.minimum(end, int(seen[-1]) if seen.size else 0))
        return np.asarray(np.maximum(ratios, 2.0 ** (LOWEST + (end + rng.random(ratios.size)) / PER_OCTAVE)))

    def reaching(self, ratios: Floats) -> Floats:
        """Chance of a response to reach these ratios, of their shape."""
        return np.asarray(self._survival()[_bin(ratios)])

    def mean_beyond(self, tokens: float, level: float, longest: float) -> float:
        """Mean length of responses longer than ``tokens``, by a prompt's level; none is longer than ``longest``."""
        survival = self._survival()
        lengths = np.clip(level * 2.0 ** (LOWEST + (np.arange(BINS) + 0.5) / PER_OCTAVE), tokens, longest)
        start = int(_bin(np.array([tokens / level]))[0])
        # Who outlives all that is known is taken to be as long as any.
        ending = np.append(survival[start:-1] - survival[start + 1 :], survival[-1])
        if not ending.sum():
            return longest
        return float(ending @ np.append(lengths[start:], longest) / ending.sum())

    def _survival(self) -> Floats:
        """Chance to reach the lower edge of each bin, and to outlive the last, [BINS + 1]."""
        known = self._reached > LEAST_COUNT
        hazard = np.where(known, self._ended / np.where(known, self._reached, 1.0), 0.0)
        return np.concatenate(([1.0], np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0))))

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self._ended.tolist(), "reached": self._reached.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ended, self._reached = np.array(state["ended"]), np.array(state["reached"])


def _bin(ratios: Floats) -> NDArray[np.int64]:
    octaves = np.log2(np.maximum(ratios, 2.0**LOWEST)) - LOWEST
    return np.clip((octaves * PER_OCTAVE).astype(np.int64), 0, BINS - 1)
