"""How lengths scatter: log lengths [G, n] taken apart into levels of prompts and deviations of responses about them.

Deviations are taken from groups of about the same level, because long answers scatter otherwise than short ones, and
nothing is drawn that is longer than what was seen: there is a response limit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.survival import Survival

Floats = NDArray[np.float64]

#: Responses further from their group's median than this many robust standard deviations are pulled in for its level.
OUTLIER_AT = 2.5
#: Least share of a group's deviation that is taken for its prompt's: some is always expected.
LEAST_PERSISTENCE = 0.05
#: Groups above and below in level from which a group's scatter is taken.
NEIGHBOURS = 6


class Spread:
    """Levels and deviations of groups (module docstring).

    Args:
        logs: log lengths, [G, n].
        medians: of each group, [G].
        survival: what is known of responses further above their level than any here.
        longest: tokens; nothing is drawn that is longer than that, or than any length here.
    """

    def __init__(self, logs: Floats, medians: Floats, survival: Survival, longest: float) -> None:
        groups, n = logs.shape
        self._survival = survival
        means = _robust(logs, medians)
        order = np.argsort(means)
        self._means = means[order]
        if not np.diff(self._means).all():  # ties, as where many groups are as long as is allowed
            order = np.argsort(means, kind="stable")
        self._noise = (logs - means[:, None]).take(order, axis=0)  # [G, n] by rising level
        self._noise *= np.sqrt(n / max(1, n - 1))
        self._longest = max(float(logs.max()), float(np.log(max(longest, 1.0))))
        self._mean = float(means.mean())
        self._variance = max(float(means.var()), 1e-12)
        self._reach = min(NEIGHBOURS, (groups - 1) // 2)
        # Squared error of a group's mean, by level: the variance of responses there over n.
        squares = np.cumsum(np.concatenate(([0.0], np.einsum("gn,gn->g", self._noise, self._noise) / n**2)))
        window = 2 * self._reach + 1
        self._error = np.clip((squares[window:] - squares[:-window]) / window, 0.0, self._variance)

    def levels(self, first: Floats, second: Floats, measured: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Expected mean log length of each group's next run, and its standard error, [G] each.

        Args:
            first, second: log lengths of the first and of the second run, [G, n].
            measured: groups of which there is a second run, [G]; both runs tell of those prompts, so they shrink less.
        """
        level = _robust(first, medians_of(first))
        if measured.any():
            both = np.concatenate((first[measured], second[measured]), axis=1)
            level[measured] = _robust(both, medians_of(both))
        error = self._error[self._near(level) - self._reach] / np.where(measured, 2.0, 1.0)
        persistence = np.maximum(LEAST_PERSISTENCE, 1.0 - error / self._variance)
        return self._mean + persistence * (level - self._mean), np.sqrt(persistence * error)

    def again(self, level: Floats, error: Floats, rng: np.random.Generator) -> Floats:
        """Log lengths of a next run of groups of these levels, [G, n]."""
        n = self._noise.shape[1]
        level = level + rng.normal(size=level.size) * error
        donor = self._near(level)[:, None] + rng.integers(-self._reach, self._reach + 1, size=(level.size, n))
        noise = self._noise[donor, rng.integers(n, size=donor.shape)]
        return np.asarray(np.minimum(level[:, None] + noise, self._longest))

    def beyond(self, level: Floats, reached: Floats, rng: np.random.Generator) -> Floats:
        """Log lengths given that they exceed ``reached``, by their prompts' levels, [K] each."""
        donors = self._near(level)[:, None] + np.arange(-self._reach, self._reach + 1)
        noise = np.sort(self._noise.take(donors, axis=0).reshape(level.size, -1), axis=1)
        below = np.count_nonzero(noise <= (reached - level)[:, None], axis=1)
        size = noise.shape[1]
        pick = np.minimum(below + (rng.random(level.size) * (size - below)).astype(np.int64), size - 1)
        length = level + noise[np.arange(level.size), pick]
        alone = below >= size  # further than any neighbour: what is known of all responses that came so far
        if alone.any():
            length[alone] = level[alone] + np.log(self._survival.beyond(np.exp((reached - level)[alone]), rng))
        return np.asarray(np.maximum(reached, np.minimum(length, self._longest)))

    def _near(self, level: Floats) -> NDArray[np.int64]:
        """Rank of the group whose level is nearest, away from the ends by the window, [K]."""
        rank = np.searchsorted(self._means, level)
        return np.asarray(np.minimum(np.maximum(rank, self._reach), self._means.size - 1 - self._reach))


def _robust(logs: Floats, medians: Floats) -> Floats:
    """Mean of each row with outliers pulled in, [G]."""
    spread = 1.4826 * max(float(medians_of(np.abs(logs - medians[:, None]).ravel())), 1e-6)
    return robust_means(logs, spread, medians)


def robust_means(logs: Floats, spread: float, medians: Floats | None = None) -> Floats:
    """Mean of each row with values far above or below the row's median pulled in, [G].

    Args:
        logs: [G, n].
        spread: standard deviation of a response about its prompt's level.
        medians: of the rows, [G], if they are known.
    """
    median = (medians_of(logs) if medians is None else medians)[:, None]
    reach = OUTLIER_AT * spread
    return np.asarray(np.minimum(np.maximum(logs, median - reach), median + reach).mean(axis=1))


def medians_of(values: Floats) -> Floats:
    """Median along the last axis; `np.median` takes several times as long."""
    middle = values.shape[-1] // 2
    halves = np.partition(values, middle, axis=-1)
    upper = halves[..., middle]
    return np.asarray(upper if values.shape[-1] % 2 else 0.5 * (halves[..., :middle].max(axis=-1) + upper))


def from_own(own: Floats, reached: Floats, otherwise: Floats, rng: np.random.Generator) -> Floats:
    """For each cut response one of its group's second run that is longer, most of the time if there are some, [K].

    They are draws from the very distribution that is wanted, the pile of responses at the response limit included.

    Args:
        own: log lengths of the second run, [K, n]; -inf if there was none.
        reached: log length reached, [K].
        otherwise: what to take else, [K].
    """
    longer = own > reached[:, None]
    count = longer.sum(axis=1)
    pick = np.argmax(np.where(longer, rng.random(own.shape), -1.0), axis=1)
    take = rng.random(reached.size) * (count + 1) < count
    return np.where(take, own[np.arange(reached.size), pick], otherwise)
