"""Response-work history: what whole fresh pools looked like, and what their groups give when they are run again.

    step t    fresh pool runs, its slowest groups are cut      -> pending: lengths, right-censored where cut
    step t+1  the cut groups are regenerated, and always end   -> the pool of step t is complete and is kept

For every group kept there are two sets of n lengths:

    first   as it ran in the fresh pool. Cut responses are imputed: longer than what they had reached, by the level of
            their prompt and the spread of responses about their prompt.
    again   as it would run, or did run, a second time: the tail pool's work. Carried groups were regenerated, so this
            is measured. Groups that were not carried are drawn from their prompt's level, never from their realised
            maximum, which over-predicts (by 4 to 7 %, and up to 4x where rare responses run away by chance).

Why censoring matters: update batches contain no stragglers. A history of consumed lengths only would predict that
uniform routing is fast, and once there the controller would stay for a wrong reason.

A prompt's level is the mean logarithm of its lengths, outliers pulled in, shrunk towards the pool's mean by the usual
ratio of variances: a group that came out long is expected to come out long again, but less so.

Invariants: bounded memory (`MAX_VALUES` lengths of each kind, a sample of the groups if N is large); prompts are known
by `GroupRecord.key`; the same observations give the same history, with random draws seeded by the step; plain JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.plan import GroupRecord, StepObservation
from tailsieve_verl.core.survival import Survival

Floats = NDArray[np.float64]

#: Lengths kept of each kind: 32 pools of 64 groups of 8. More would lag behind the policy that is being trained.
MAX_VALUES = 16_384
#: A pool may take half of that, so that there are always two.
POOLS_AT_LEAST = 2
#: Pools whose mean level is remembered, to see the lengths' trend over training.
LEVELS = 40
#: Levels needed before any trend is believed: the test of significance is worth nothing with fewer.
LEAST_LEVELS = 12
#: Steps after which a level counts half in the trend.
LEVEL_HALF_LIFE = 15.0
#: A trend counts once it is this many standard errors away from none.
TREND_ERRORS = 2.0
#: Responses further from their group's median than this many robust standard deviations are pulled in for its level.
OUTLIER_AT = 2.5
#: Least share of a group's deviation that is taken for its prompt's: some is always expected.
LEAST_PERSISTENCE = 0.05
#: What remains of the longest response seen, step by step: half after some 140 steps without one as long.
SHORTER = 0.995
#: Passes of the imputation: the level of a cut group depends on what is imputed, and that on the level.
PASSES = 4
#: Groups above and below in level from which a group's scatter is taken.
NEIGHBOURS = 6
#: Random draws are seeded with this and the step.
SEED = 20_260_822


class Scenarios(NamedTuple):
    """S pools of F groups of n responses, tokens, [S, F, n], newest first: as they ran fresh, and as they run again."""

    first: Floats
    again: Floats


@dataclass
class _Pending:
    """A fresh pool whose cut groups have not been run again yet. ``keys`` of the groups, empty if not cut."""

    step: int
    tokens: NDArray[np.int64]
    complete: NDArray[np.bool_]
    keys: list[str]


class WorkHistory:
    """Fresh pools of the last steps (module docstring).

    Args:
        n_groups: N.
    """

    def __init__(self, n_groups: int) -> None:
        self.n_groups = n_groups
        self._first = np.zeros((0, 0), dtype=np.int64)
        self._again = np.zeros((0, 0), dtype=np.int64)
        self._steps = np.zeros(0, dtype=np.int64)
        self._levels: list[tuple[int, float]] = []
        self._pending: _Pending | None = None
        self._survival = Survival()
        self._longest = 0.0  # longest response that ended, fading

    @property
    def groups(self) -> int:
        """Groups kept, the pending pool not counted."""
        return int(self._steps.size)

    @property
    def sessions(self) -> int:
        """n, responses in a group; 0 before the first pool."""
        if self._pending is not None:
            return int(self._pending.tokens.shape[1])
        return int(self._first.shape[1])

    def observe(self, observation: StepObservation) -> None:
        """Complete the pool of the step before with what was regenerated, and take in the new fresh pool."""
        fresh = [g for g in observation.groups if g.route == "fresh" and g.status != "failed" and any(g.tokens)]
        if self._pending is not None:
            self._finish(self._regenerated(observation.groups))
        if not fresh:
            return
        n = len(fresh[0].tokens)
        rows = min(len(fresh), self._rows_per_pool(n))
        sample = [fresh[i] for i in np.linspace(0, len(fresh) - 1, rows).round().astype(int).tolist()]
        self._pending = _Pending(
            step=observation.plan.step,
            tokens=np.array([_resized(g.tokens, n) for g in sample], dtype=np.int64),
            complete=np.array([_resized(g.complete, n) for g in sample], dtype=np.bool_),
            keys=[g.key if g.status == "cut" else "" for g in sample],
        )

    def scenarios(self, count: int, now: int) -> Scenarios | None:
        """Up to ``count`` pools of N groups (or of the sample's size), newest first; ``None`` before the first pool.

        Args:
            now: step to predict for; lengths of older pools follow the trend up to it.
        """
        first, again, steps = self._first, self._again, self._steps
        if self._pending is not None and not steps.size:  # the very first pool: all that was cut is imputed
            first, again, _ = self._imputed(self._pending, {})
            steps = np.full(len(first), self._pending.step)
        if not steps.size:
            return None
        size = min(self.n_groups, self._rows_per_pool(first.shape[1]))
        pools = min(count, max(1, steps.size // size))
        index = np.arange(steps.size)[::-1][: pools * size]
        if index.size < size:
            index = np.resize(index, size)
        scale = np.exp(self.trend() * np.maximum(0, now - steps[index]))[:, None]
        shape = (pools, size, first.shape[1])
        return Scenarios((first[index] * scale).reshape(shape), (again[index] * scale).reshape(shape))

    def trend(self) -> float:
        """Change of the mean log length a step, by weighted regression; 0 unless it is significant."""
        if len(self._levels) < LEAST_LEVELS:
            return 0.0
        steps, levels = (np.array(column, dtype=np.float64) for column in zip(*self._levels, strict=True))
        weight = 0.5 ** ((steps[-1] - steps) / LEVEL_HALF_LIFE)
        weight /= weight.sum()
        at, level = steps - weight @ steps, levels - weight @ levels
        spread = float(weight @ at**2)
        if spread <= 0.0:
            return 0.0
        slope = float(weight @ (at * level)) / spread
        error = np.sqrt(float(weight**2 @ (at**2 * (level - slope * at) ** 2))) / spread
        return slope if abs(slope) > TREND_ERRORS * error else 0.0

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _rows_per_pool(self, n: int) -> int:
        return max(1, MAX_VALUES // (POOLS_AT_LEAST * n))

    def _regenerated(self, groups: Iterable[GroupRecord]) -> dict[str, Sequence[int]]:
        assert self._pending is not None
        wanted = set(self._pending.keys) - {""}
        found = (g for g in groups if g.key in wanted and g.route != "fresh" and g.status == "trained")
        return {g.key: g.tokens for g in found}

    def _finish(self, regenerated: Mapping[str, Sequence[int]]) -> None:
        pool = self._pending
        assert pool is not None
        first, again, level = self._imputed(pool, regenerated)
        self._pending = None
        carried = np.array([key in regenerated for key in pool.keys], dtype=np.bool_)
        ratios = np.concatenate(((pool.tokens / level[:, None]).ravel(), (again / level[:, None])[carried].ravel()))
        whole = np.concatenate((pool.complete.ravel(), np.ones(ratios.size - pool.complete.size, dtype=np.bool_)))
        self._survival.observe(ratios, whole)
        self._longest = max(
            SHORTER * self._longest, float(first[pool.complete].max(initial=0)), float(again[carried].max(initial=0))
        )
        n = first.shape[1]
        if self._first.shape[1] != n:
            self._first, self._again = np.zeros((0, n), dtype=np.int64), np.zeros((0, n), dtype=np.int64)
            self._steps = np.zeros(0, dtype=np.int64)
        keep = max(MAX_VALUES // n, len(first))
        self._first = np.concatenate((self._first, first))[-keep:]
        self._again = np.concatenate((self._again, again))[-keep:]
        self._steps = np.concatenate((self._steps, np.full(len(first), pool.step)))[-keep:]
        self._levels = [*self._levels, (pool.step, float(np.log(np.maximum(first, 1)).mean()))][-LEVELS:]

    def _imputed(
        self, pool: _Pending, regenerated: Mapping[str, Sequence[int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Both sets of lengths of a pool, [G, n] each, and the levels of its prompts, tokens, [G]."""
        rng = np.random.default_rng((SEED, pool.step))
        groups, n = pool.tokens.shape
        known = np.full((groups, n), -1, dtype=np.int64)
        for i, key in enumerate(pool.keys):
            if key in regenerated:
                known[i] = _resized(regenerated[key], n)
        measured = known[:, 0] >= 0
        first = np.log(np.maximum(pool.tokens, 1))
        second = np.log(np.maximum(known, 1))
        older = np.log(np.maximum(self._first if self._first.shape[1] == n else np.zeros((0, n)), 1))
        cut_g, cut_s = np.nonzero(~pool.complete)
        reached = first[cut_g, cut_s]
        spread = _Spread(
            np.concatenate((np.where(measured[:, None], second, first), older)), self._survival, self._longest
        )
        for _ in range(PASSES if cut_g.size else 0):
            level, error = spread.levels(first, second, measured)
            level = level + error * rng.normal(size=groups)
            drawn = spread.beyond(level[cut_g], reached, rng)
            first[cut_g, cut_s] = _from_own(np.where(measured[:, None], second, -np.inf)[cut_g], reached, drawn, rng)
        level, error = spread.levels(first, second, measured)
        again = np.where(measured[:, None], known, _whole(spread.again(level, error, rng)))
        return np.where(pool.complete, pool.tokens, _whole(first)), again, np.exp(level)

    # ---- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        pool = self._pending
        return {
            "first": self._first.tolist(),
            "again": self._again.tolist(),
            "steps": self._steps.tolist(),
            "levels": [list(level) for level in self._levels],
            "survival": self._survival.state_dict(),
            "longest": self._longest,
            "pending": pool
            and {
                "step": pool.step,
                "tokens": pool.tokens.tolist(),
                "complete": pool.complete.astype(int).tolist(),
                "keys": pool.keys,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        steps = np.array(state["steps"], dtype=np.int64)
        self._first = np.array(state["first"], dtype=np.int64).reshape(steps.size, -1 if steps.size else 0)
        self._again = np.array(state["again"], dtype=np.int64).reshape(self._first.shape)
        self._steps = steps
        self._levels = [(int(step), float(level)) for step, level in state["levels"]]
        self._survival.load_state_dict(state["survival"])
        self._longest = state["longest"]
        pool = state["pending"]
        self._pending = pool and _Pending(
            step=pool["step"],
            tokens=np.array(pool["tokens"], dtype=np.int64),
            complete=np.array(pool["complete"], dtype=np.bool_),
            keys=list(pool["keys"]),
        )


class _Spread:
    """Log lengths [G, n] taken apart: levels of prompts, and deviations of responses about them, by level.

    Deviations are taken from groups of about the same level, because long answers scatter otherwise than short ones,
    and nothing is drawn that is longer than what was seen: there is a response limit.
    """

    def __init__(self, logs: Floats, survival: Survival, longest: float) -> None:
        groups, n = logs.shape
        self._survival = survival
        means = self._robust(logs)
        order = np.argsort(means, kind="stable")
        self._means = means[order]
        self._noise = (logs - means[:, None])[order] * np.sqrt(n / max(1, n - 1))  # [G, n] by rising level
        self._longest = max(float(logs.max()), float(np.log(max(longest, 1.0))))
        self._mean = float(means.mean())
        self._variance = max(float(means.var()), 1e-12)
        self._reach = min(NEIGHBOURS, (groups - 1) // 2)
        # Squared error of a group's mean, by level: the variance of responses there over n.
        squares = np.cumsum(np.concatenate(([0.0], (self._noise**2).mean(axis=1) / n)))
        window = 2 * self._reach + 1
        self._error = np.clip((squares[window:] - squares[:-window]) / window, 0.0, self._variance)

    def levels(self, first: Floats, second: Floats, measured: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Expected mean log length of each group's next run, and its standard error, [G] each.

        Args:
            first, second: log lengths of the first and of the second run, [G, n].
            measured: groups of which there is a second run, [G]; both runs tell of those prompts, so they shrink less.
        """
        level = self._robust(first)
        if measured.any():
            level[measured] = self._robust(np.concatenate((first[measured], second[measured]), axis=1))
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
        noise = np.sort(self._noise[donors].reshape(level.size, -1), axis=1)
        below = (noise <= (reached - level)[:, None]).sum(axis=1)
        size = noise.shape[1]
        pick = np.minimum(below + (rng.random(level.size) * (size - below)).astype(np.int64), size - 1)
        length = level + noise[np.arange(level.size), pick]
        alone = below >= size  # further than any neighbour: what is known of all responses that came so far
        length[alone] = level[alone] + np.log(self._survival.beyond(np.exp(reached - level)[alone], rng))
        return np.asarray(np.maximum(reached, np.minimum(length, self._longest)))

    def _near(self, level: Floats) -> NDArray[np.int64]:
        """Rank of the group whose level is nearest, away from the ends by the window, [K]."""
        rank = np.searchsorted(self._means, level)
        return np.asarray(np.clip(rank, self._reach, self._means.size - 1 - self._reach))

    @staticmethod
    def _robust(logs: Floats) -> Floats:
        """Mean of each row with outliers pulled in, [G]."""
        median = np.median(logs, axis=1, keepdims=True)
        reach = OUTLIER_AT * 1.4826 * max(float(np.median(np.abs(logs - median))), 1e-6)
        return np.asarray(np.clip(logs, median - reach, median + reach).mean(axis=1))


def _from_own(own: Floats, reached: Floats, otherwise: Floats, rng: np.random.Generator) -> Floats:
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


def _whole(logs: Floats) -> NDArray[np.int64]:
    """Lengths in whole tokens, at least one."""
    return np.maximum(1, np.rint(np.exp(np.minimum(logs, 25.0)))).astype(np.int64)


def _resized(values: Sequence[Any], n: int) -> Sequence[Any]:
    """n of a group's values, repeated from the start if it has fewer."""
    return values if len(values) == n else [values[i % len(values)] for i in range(n)]
