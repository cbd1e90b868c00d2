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

Responses that run away by chance are too rare for either set: their rate is given apart (`runaways`), from the life
table of all responses.

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
from tailsieve_verl.core.runaways import ALL_BUT, FAR, Runaways
from tailsieve_verl.core.spread import Spread, from_own, medians_of
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
#: What remains of the longest response seen, step by step: half after some 140 steps without one as long.
SHORTER = 0.995
#: Passes of the imputation: the level of a cut group depends on what is imputed, and that on the level.
PASSES = 4
#: Random draws are seeded with this and the step.
SEED = 20_260_822


class Scenarios(NamedTuple):
    """S pools of F groups of n responses, tokens, [S, F, n], newest first: as they ran fresh, and as they run again.

    ``runaways`` are the responses that none of these contain, because there are too few of them to be counted.
    """

    first: Floats
    again: Floats
    runaways: Runaways | None = None


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
        self._prompts = np.zeros(0)  # levels of the groups' prompts, tokens
        self._logs, self._medians = np.zeros((0, 0)), np.zeros(0)  # of the first runs, so as not to take them anew
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
        sample = fresh
        if rows < len(fresh):
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
        scaled = [(lengths.take(index, axis=0) * scale).reshape(pools, size, -1) for lengths in (first, again)]
        if self.groups != steps.size:  # the very first pool
            return Scenarios(scaled[0], scaled[1])
        return self._apart(scaled[0], scaled[1], (self._prompts[index][:, None] * scale).reshape(pools, size, 1))

    def _apart(self, first: Floats, again: Floats, level: Floats) -> Scenarios:
        """Scenarios with runaways apart, if any are known; in their place stand responses as long as their prompt's
        level, [S, F, 1]."""
        far = FAR * _all_but(first, ALL_BUT)
        if self._longest <= far:
            return Scenarios(first, again)
        rate = self._survival.reaching(far / level[:, :, 0])
        tokens = self._survival.mean_beyond(far, float(np.exp(np.log(level).mean())), self._longest)
        first, again = (np.where(lengths > far, level, lengths) for lengths in (first, again))
        return Scenarios(first, again, Runaways(rate, tokens))

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
            self._steps, self._prompts = np.zeros(0, dtype=np.int64), np.zeros(0)
            self._logs, self._medians = np.zeros((0, n)), np.zeros(0)
        keep, logs = max(MAX_VALUES // n, len(first)), _log(first)
        self._first = np.concatenate((self._first, first))[-keep:]
        self._again = np.concatenate((self._again, again))[-keep:]
        self._steps = np.concatenate((self._steps, np.full(len(first), pool.step)))[-keep:]
        self._prompts = np.concatenate((self._prompts, level))[-keep:]
        self._logs = np.concatenate((self._logs, logs))[-keep:]
        self._medians = np.concatenate((self._medians, medians_of(logs)))[-keep:]
        self._levels = [*self._levels, (pool.step, float(logs.mean()))][-LEVELS:]

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
        first, second = _log(pool.tokens), _log(known)
        latest = np.where(measured[:, None], second, first)
        logs, medians = latest, medians_of(latest)
        if self._first.shape[1] == n:
            logs, medians = np.concatenate((latest, self._logs)), np.concatenate((medians, self._medians))
        spread = Spread(logs, medians, self._survival, self._longest)
        cut_g, cut_s = np.nonzero(~pool.complete)
        reached = first[cut_g, cut_s]
        own = np.where(measured[:, None], second, -np.inf)[cut_g]
        for _ in range(PASSES if cut_g.size else 0):
            level, error = spread.levels(first, second, measured)
            level = level + error * rng.normal(size=groups)
            drawn = spread.beyond(level[cut_g], reached, rng)
            first[cut_g, cut_s] = from_own(own, reached, drawn, rng)
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
            "prompts": self._prompts.tolist(),
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
        self._logs = _log(self._first)
        prompts = state.get("prompts", np.exp(self._logs.mean(axis=1)) if steps.size else [])  # older states have none
        self._prompts = np.array(prompts, dtype=np.float64)
        self._medians = medians_of(self._logs) if steps.size else np.zeros(0)
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


def _all_but(values: Floats, share: float) -> float:
    """What all values but this share do not exceed."""
    rank = int((1.0 - share) * (values.size - 1))
    return float(np.partition(values, rank, axis=None)[rank])


def _log(lengths: NDArray[np.int64]) -> Floats:
    return np.asarray(np.log(np.maximum(lengths, 1)))


def _whole(logs: Floats) -> NDArray[np.int64]:
    """Lengths in whole tokens, at least one."""
    return np.maximum(1, np.rint(np.exp(np.minimum(logs, 25.0)))).astype(np.int64)


def _resized(values: Sequence[Any], n: int) -> Sequence[Any]:
    """n of a group's values, repeated from the start if it has fewer."""
    return values if len(values) == n else [values[i % len(values)] for i in range(n)]
