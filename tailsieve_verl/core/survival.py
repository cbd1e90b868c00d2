"""How much longer a response is likely to get than it is, by how far it is beyond its prompt's level already.

The history of a split knows little of responses that run away: in the bulk pool they are cut, in the tail pool they are
rare. So every response is counted in bins of its ratio to its prompt's level, as reaching a bin and as ending in it (a
life table), and old counts fade slowly. Their ratio, which is all that is used, fades not at all.

Invariants: memory of two short arrays; a right-censored response counts as reaching the bins before the one it was cut
in, and as ending nowhere; plain JSON state.
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
        until = ended + np.bincount(np.maximum(bins[~complete] - 1, 0), minlength=BINS)
        self._ended = KEEP * self._ended + ended
        self._reached = KEEP * self._reached + np.cumsum(until[::-1])[::-1]

    def beyond(self, ratios: Floats, rng: np.random.Generator) -> Floats:
        """Final ratios given that they exceed these, [K] each; the same again if nothing is known of so high ones."""
        known = self._reached > LEAST_COUNT
        hazard = np.where(known, self._ended / np.where(known, self._reached, 1.0), 0.0)
        survival = np.concatenate(([1.0], np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0))))  # at the lower edge of a bin
        start = _bin(ratios)
        # It ends in the first bin at whose upper edge survival is down to a random part of that at the start.
        end = np.searchsorted(-survival, -rng.random(ratios.size) * survival[start], side="left") - 1
        seen = np.flatnonzero(self._ended > LEAST_COUNT)
        end = np.maximum(start, np.minimum(end, int(seen[-1]) if seen.size else 0))
        return np.asarray(np.maximum(ratios, 2.0 ** (LOWEST + (end + rng.random(ratios.size)) / PER_OCTAVE)))

    def state_dict(self) -> dict[str, Any]:
        return {"ended": self._ended.tolist(), "reached": self._reached.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ended, self._reached = np.array(state["ended"]), np.array(state["reached"])


def _bin(ratios: Floats) -> NDArray[np.int64]:
    octaves = np.log2(np.maximum(ratios, 2.0**LOWEST)) - LOWEST
    return np.clip((octaves * PER_OCTAVE).astype(np.int64), 0, BINS - 1)
