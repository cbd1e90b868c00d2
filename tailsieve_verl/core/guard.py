"""Whether a split is clearly worse than uniform routing, by prediction or by measurement; the controller then acts.

Invariant: each time that a split was measured to be worse, re-entry is barred for twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tailsieve_verl.core.controller_config import ControllerConfig
from tailsieve_verl.core.predict import Prediction

#: Last steps that are averaged: no longer stretch may be slower than uniform.
EXCESS_STEPS = 15
#: Excess that is asked for after the first step: stragglers it cut have not run again, and uniform, which would have
#: waited for them, was then predicted up to 40 % too fast. A start on a single bulk replica exceeds it by far.
FIRST_EXCESS = 0.6
#: Measured steps under one split before they are believed.
GUARD_STEPS = 3
#: Steps without re-entry after a split was measured to be worse than uniform; doubles each time.
BACK_OFF = 20
LONGEST_BACK_OFF = 320


class Guard:
    """Compares the present split with uniform routing (module docstring).

    Attributes:
        barred_until: step before which no split is entered from uniform.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._excess: list[float] = []  # log of measured over predicted uniform, steps under the present split
        self.barred_until, self._back_off = 0, BACK_OFF

    def restart(self) -> None:
        """What was measured is void."""
        self._excess = []

    def note(self, excess: float) -> None:
        """Log of a step's measured time over the one predicted for uniform routing."""
        self._excess = [*self._excess, excess][-EXCESS_STEPS:]

    def by_prediction(self, present: Prediction, uniform: Prediction, *, known: bool) -> str:
        """Why to act, empty if there is no reason; ``known``: whether cut groups have run again."""
        least = self._config.guard_excess
        excess, error = present.mean_s / uniform.mean_s - 1.0, uniform.gain_over(present, prior_pools=0)[1]
        doubt = self._config.noise_margin * error * present.mean_s / uniform.mean_s
        if excess - doubt > (least if known else max(least, FIRST_EXCESS)):
            return f"guard: predicted {present.mean_s:.2f} s, {excess:.0%} worse than uniform ({uniform.mean_s:.2f} s)"
        return ""

    def by_measurement(self, step: int, uniform: Prediction) -> str:
        """Why to go to uniform routing, which then lasts for a while; empty if there is no reason."""
        seen = len(self._excess)
        if seen < GUARD_STEPS:
            return ""
        level, spread = float(np.mean(self._excess)), float(np.std(self._excess)) / math.sqrt(seen)
        if level - spread <= math.log1p(self._config.guard_excess):
            return ""
        self.barred_until = step + self._back_off
        self._back_off = min(2 * self._back_off, LONGEST_BACK_OFF)
        return f"guard: measured {math.expm1(level):.0%} worse than predicted uniform ({uniform.mean_s:.2f} s)"

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"excess": list(self._excess), "barred": [self.barred_until, self._back_off]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._excess = list(state["excess"])
        self.barred_until, self._back_off = state["barred"]
