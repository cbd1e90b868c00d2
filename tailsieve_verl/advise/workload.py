"""The stream of prompt groups that a run with this dump would have gone on to see, second attempts included.

A first attempt is a recorded group as it was. A second attempt (a group that was cut and is generated again) must be
what the same prompt would have answered: as long again if the prompt made the group long, as short as any if chance
did. A dump holds each prompt once as a rule, so that has to be inferred, and both simple ways are wrong: drawing from
the group's own responses makes every chance runaway come back, drawing from all responses makes no prompt long.

Here the dump answers itself. Each response is held out once: the mean of its group's other responses is what one knew,
the response is what then came. A second attempt of a group at level l is a held-out response of the groups whose others
had about the same level, moved by the little that the levels still differ:

    z' = Z_n l + (z_kj - Z_(n-1) l_kj),   P(kj) ~ exp(-(l_kj - l)^2 / 2 h^2),   h = s / sqrt(n)

in normal scores z of all lengths, with l the mean score of a group, l_kj that of its others, Z_k = k icc /
(1 + (k - 1) icc) the credibility of a mean of k, s the spread inside groups. h is the error of a group's level: levels
closer than that are not told apart. The n responses of an attempt share what is not known of their prompt's level, so
their places among the donors correlate by icc / (1 + n icc); drawn apart, the longest of them would be too long.
Regression to the mean, chance runaways at any level and levels that spread differently all follow from the data;
nothing is assumed of the distribution. Against the true workload gain and length bias are within their intervals from
icc 0 to 0.9, with and without runaways (`tests/advise/test_accuracy.py`). Not covered: lengths beyond the longest
recorded one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from tailsieve_verl.advise.fit import WorkloadFit, mean_squares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Held-out responses kept as donors; more tell no more, and each draw looks at its neighbours.
_DONORS = 20_000
#: Donors beyond this many h weigh less than exp(-8) and are not looked at.
_REACH = 4.0


class SecondAttempts:
    """Draws what a recorded group would answer when it is generated again (module docstring)."""

    def __init__(self, fit: WorkloadFit) -> None:
        n = fit.n
        ranks = rankdata(fit.lengths.ravel(), method="average")
        score = ndtri((ranks - 0.5) / ranks.size).reshape(fit.lengths.shape)
        others = _level_of_others(score)
        known = _slope(score, others, fit.step)
        odds = math.inf if known <= 0 else (n - 1) * (1 - known) / known  # chance to prompt, in one response's variance
        order = np.argsort(others, axis=None, kind="stable")
        order = order[:: max(1, order.size // _DONORS)]
        self._n = n
        self._level = _level(score)
        self._credible = n / (n + odds)
        self._common = 1 / (1 + n + odds)
        self._known = others.ravel()[order]
        # One response more is known of the group than of the donor's others; a limit that was hit stays hit.
        nearer = math.sqrt((1 + 1 / (n + odds)) / (1 + 1 / (n - 1 + odds)))
        came = (score - known * others) * np.where(fit.lengths < fit.lengths.max(), nearer, 1.0)
        self._came = came.ravel()[order]
        self._width = max(float(np.sqrt(mean_squares(score, fit.step)[1] / n)), 1e-9)
        self._sorted = np.sort(fit.lengths, axis=None)

    def draw(self, rng: np.random.Generator, group: int) -> Ints:
        """Tokens of the n responses, [n]."""
        level = self._level[group]
        reach = _REACH * self._width
        low, high = np.searchsorted(self._known, (level - reach, level + reach)).tolist()
        if high - low < self._n:  # a group far from all others: its own responses, and the next ones
            low, high = max(low - self._n, 0), high + self._n
        distance = (self._known[low:high] - level) / self._width
        weight = np.exp(-0.5 * (distance**2 - np.min(distance**2)))
        came = self._came[low:high]
        order = np.argsort(came, kind="stable")
        below = np.cumsum(weight[order])
        own = rng.standard_normal(self._n) * np.sqrt(1 - self._common)
        scores = own + rng.standard_normal() * np.sqrt(self._common)
        chosen = order[np.minimum(np.searchsorted(below, ndtr(scores) * below[-1]), order.size - 1)]
        share = ndtr(self._credible * level + came[chosen])
        return self._sorted[np.minimum((share * self._sorted.size).astype(np.int64), self._sorted.size - 1)]


class DumpWorkload:
    """Recorded groups over and over, each pass in another order; a `simulate.workload.Workload`.

    Args:
        seed: of the order and of second attempts.
        held: a second attempt has the lengths of the first: what a split gains by routing alone, without re-rolling.
    """

    def __init__(self, fit: WorkloadFit, *, seed: int = 0, held: bool = False) -> None:
        self.n = fit.n
        self.cap = int(fit.lengths.max()) if fit.cap is None else fit.cap
        self._lengths, self._prompt_tokens = fit.lengths, fit.prompt_tokens
        self._again = None if held else SecondAttempts(fit)
        self._seed = seed
        self._order = np.empty(0, np.int64)  # recorded group of each prompt of the stream so far
        self._drawn: dict[tuple[int, int], Floats] = {}

    def lengths(self, prompts: Sequence[int], attempts: Sequence[int], step: int) -> Floats:
        rows = self._rows(prompts)
        tokens = self._lengths[rows].astype(np.float64)
        if self._again is not None:
            for i, attempt in enumerate(attempts):
                if attempt:
                    tokens[i] = self._second(self._again, int(prompts[i]), int(attempt), int(rows[i]))
        return tokens

    def prompt_tokens(self, prompts: Sequence[int]) -> Floats:
        return self._prompt_tokens[self._rows(prompts)].astype(np.float64)

    def identity(self, prompts: Sequence[int]) -> Ints:
        """Every prompt of the stream is a new one: a recorded group that comes again stands for another prompt."""
        return np.asarray(prompts, dtype=np.int64)

    def _second(self, again: SecondAttempts, prompt: int, attempt: int, row: int) -> Floats:
        """Drawn once: policies that share the stream cut much the same groups."""
        key = (prompt, attempt)
        if key not in self._drawn:
            rng = np.random.default_rng((self._seed, 2, prompt, attempt))
            self._drawn[key] = again.draw(rng, row).astype(np.float64)
        return self._drawn[key]

    def _rows(self, prompts: Sequence[int]) -> Ints:
        serials = np.asarray(prompts, dtype=np.int64)
        groups = self._lengths.shape[0]
        while self._order.size <= serials.max(initial=-1):
            turn = np.random.default_rng((self._seed, 1, self._order.size // groups)).permutation(groups)
            self._order = np.concatenate((self._order, turn))
        return self._order[serials]


def _level(score: Floats) -> Floats:
    """Mean score of each group, [G]; from four responses on without the shortest and the longest one."""
    ordered = np.sort(score, axis=1)
    return ordered[:, 1:-1].mean(axis=1) if score.shape[1] > 3 else ordered.mean(axis=1)


def _level_of_others(score: Floats) -> Floats:
    """`_level` of the responses but one, [G, n]."""
    n = score.shape[1]
    ordered = np.sort(score, axis=1)
    rest = score.sum(axis=1, keepdims=True) - score
    if n < 5:
        return rest / (n - 1)
    place = np.argsort(np.argsort(score, axis=1, kind="stable"), axis=1)
    shortest = np.where(place == 0, ordered[:, 1:2], ordered[:, :1])
    longest = np.where(place == n - 1, ordered[:, -2:-1], ordered[:, -1:])
    return (rest - shortest - longest) / (n - 3)


def _slope(score: Floats, others: Floats, step: Ints) -> float:
    """Regression of a response on the level of its group's others, inside steps; 0..1."""
    _, index = np.unique(step, return_inverse=True)
    size = np.bincount(index) * score.shape[1]
    x, y = (v - (np.bincount(index, v.sum(axis=1)) / size)[index][:, None] for v in (others, score))
    spread = float(np.sum(x * x))
    return min(max(float(np.sum(x * y)) / spread, 0.0), 1.0) if spread > 0 else 0.0
