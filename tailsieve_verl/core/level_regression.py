"""What corrects predicted levels of prompts: a regression of observed on predicted levels, newest steps counting most.

    observed - predicted = offset + slope * (predicted - mean) + drift * age

Offset and drift follow the policy. The slope draws in a history that ranks no better than chance, as another model's
may, until all prompts look alike. What the regression leaves is the prediction's own error.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What a step's part in the regression keeps from step to step: ten steps of memory.
KEEP = 0.9
#: Strength of the prior that levels are right as they are, in groups: a step or two of 64 overrule it.
PRIOR_GROUPS = 32.0
#: Steps that count as one unit of age in the regression, so that its numbers are of one size.
AGE_UNIT = 100.0


class LevelRegression:
    """Sums of the regression, the old ones faded (module docstring).

    Attributes:
        normal, target: normal equations, [3, 3] and [3].
        left, left_groups: squared misses that the regression leaves, and of how many groups.
    """

    def __init__(self) -> None:
        self.normal: Floats = np.zeros((3, 3))
        self.target: Floats = np.zeros(3)
        self.left = self.left_groups = 0.0

    @property
    def error(self) -> float:
        """Standard deviation of what is left, log scale."""
        return math.sqrt(self.left / self.left_groups) if self.left_groups >= 1.0 else 0.0

    def coefficients(self, between: float) -> Floats:
        """Offset, slope and drift, [3]; the prior says none.

        Args:
            between: variance of levels.
        """
        prior = np.diag([PRIOR_GROUPS / 8, PRIOR_GROUPS * between, PRIOR_GROUPS])
        return np.asarray(np.linalg.solve(self.normal + prior, self.target))

    def learn(
        self, features: Floats, missed: Floats, mine: NDArray[np.bool_], explained: float, between: float
    ) -> None:
        """Take in a step.

        Args:
            features: see `features_of`, [G, 3].
            missed: observed less predicted levels, [G].
            mine: groups that count, [G].
            explained: part of the squared misses that is not the prediction's.
            between: variance of levels.
        """
        left = (missed - features @ self.coefficients(between))[mine]
        self.left = max(0.0, KEEP * self.left + float(left @ left) - explained)
        self.left_groups = KEEP * self.left_groups + float(mine.sum())
        self.normal = KEEP * self.normal + features[mine].T @ features[mine]
        self.target = KEEP * self.target + features[mine].T @ missed[mine]


def features_of(distance: Floats, age: NDArray[np.int64]) -> Floats:
    """What the regression goes by, [G, 3], from levels' distance from the mean, [G], and their age in steps, [G]."""
    age_units = np.clip(age, 0, 10 * AGE_UNIT) / AGE_UNIT
    return np.stack((np.ones(distance.size), distance, age_units), axis=1)
