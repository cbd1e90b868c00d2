"""Settings of the controller: thresholds, and one switch for each deviation from the letter of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerConfig:
    """Settings; every default that differs from the letter of the paper can be set back.

    Attributes:
        q, m: split to start with; (0, 0) is uniform.
        reoptimise_q: compare candidates m at their own best q; False compares them at the present q (paper C.2).
        search_far: also consider the best split more than two replicas away; False stays within two (paper C.2).
        predicted_test: test a change of q by the cost model; False by constant rates (paper C.1).
        guard: act at once when a split is clearly worse than uniform.
        reenter: leave uniform routing again when a split is predicted to gain.
        inner_gain, outer_gain: least predicted gain for a change of q, and of m or to uniform.
        enter_gain: least predicted gain for leaving uniform.
        guard_excess: share by which a split may be worse than uniform before the guard acts.
        noise_margin: standard errors of the predicted gain that are asked for on top.
        switch_limit: changes of the split allowed in 100 steps.
        most_m: replicas that can be in the tail pool, for engines launched in bands of draft depths; ``None``: all.
    """

    q: int = 0
    m: int = 0
    reoptimise_q: bool = True
    search_far: bool = True
    predicted_test: bool = True
    guard: bool = True
    reenter: bool = True
    inner_gain: float = 0.02
    outer_gain: float = 0.03
    enter_gain: float = 0.05
    guard_excess: float = 0.10
    noise_margin: float = 1.0
    switch_limit: int = 10
    most_m: int | None = None

    def __post_init__(self) -> None:
        for name in ("inner_gain", "outer_gain", "enter_gain", "guard_excess", "noise_margin"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
        if self.switch_limit < 1:
            raise ValueError(f"switch_limit must be at least 1, got {self.switch_limit}")
        if self.most_m is not None and self.most_m < 1:
            raise ValueError(f"most_m must be at least 1, got {self.most_m}")
