"""Predicted lengths of the prompts of a step: a level with its error from their history, and scenarios drawn from it.

    observe(groups)   the runs of a step -> entries of the prompts, recent deviations, how well levels were predicted
    predict(keys)     level (mean log length) and its standard error, for prompts that are known
    scenarios(...)    S draws of all responses of a step, from levels and recorded deviations

Old levels are corrected for drift, and drawn in where they say little (`level_regression`); what that leaves is the
prediction's own error, and it is in the scenarios.

A response is a prompt's level and a deviation. Deviations are recorded, not assumed: they are drawn from those of
prompts of about the same level, and runaways (far above their prompt's level) apart (`prompt_runaways`). A prompt that
is not known takes the level of a recent one at random.

Right-censored responses count with what they are expected to come to, given that they were longer than what was seen.

Invariants: bounded memory (`RECENT` responses); the same observations and the same seed give the same scenarios;
nothing is drawn that is longer than what was seen lately; a state of plain arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.level_regression import KEEP, LevelRegression, features_of
from tailsieve_verl.core.plan import GroupRecord
from tailsieve_verl.core.prompt_history import Entries, PromptHistory
from tailsieve_verl.core.prompt_runaways import PromptRunaways
from tailsieve_verl.core.spread import medians_of, robust_means

Floats = NDArray[np.float64]

#: Responses whose deviations are kept: some sixteen steps of 64 groups of 8. More would lag behind the policy.
RECENT = 8192
#: Deviations, by rank of their prompts' levels, that a response is drawn from: a sixteenth of them.
WINDOW = RECENT // 16
#: A response this many standard deviations above its prompt's level is a runaway, not the tail of the others.
RUNAWAY_AT = 4.0
#: Deviations are never taken to scatter less than that, even where most responses of a prompt are equally long.
LEAST_SPREAD = 0.1
#: Prompts' levels scatter by about this (log scale) until that is measured; within a prompt by as much.
PRIOR_SPREAD = 0.6
#: A right-censored response says about half as much of its prompt's level as one that ended.
CENSORED_WEIGHT = 0.5
#: What remains of the longest response seen, step by step.
SHORTER = 0.995


@dataclass(frozen=True)
class Forecast:
    """Predicted levels of G prompts.

    Attributes:
        known: whether there is a history, [G].
        level: expected mean log length, [G]; of an unknown prompt the mean of all.
        error: its standard error, [G].
        runaway: chance that a response of it runs away, [G].
        work: expected tokens of a response, [G].
    """

    known: NDArray[np.bool_]
    level: Floats
    error: Floats
    runaway: Floats
    work: Floats

    @property
    def known_share(self) -> float:
        return float(self.known.mean()) if self.known.size else 0.0


class LengthForecast:
    """Learns from runs and predicts (module docstring).

    Args:
        history: entries by prompt; it is kept up to date here.
    """

    def __init__(self, history: PromptHistory | None = None) -> None:
        self.history = history or PromptHistory()
        self._level = np.zeros(0)  # of each recent response's prompt
        self._deviation = np.zeros(0)  # of the response from it
        self._runaways = PromptRunaways()
        self._regression = LevelRegression()
        self._between = PRIOR_SPREAD**2  # variance of levels, and of responses about them
        self._within = PRIOR_SPREAD**2
        self._spread = PRIOR_SPREAD  # of most deviations, runaways or not
        self._mean = math.nan
        self._steps = 0.0
        self._longest = 0.0

    # ---- prediction -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether any response has been seen."""
        return self._level.size > 0

    @property
    def runaway_share(self) -> float:
        """Share of responses that ran away lately."""
        return self._runaways.share

    @property
    def within(self) -> float:
        """Standard deviation of a response about its prompt's level (log)."""
        return math.sqrt(self._within)

    @property
    def error(self) -> float:
        """Standard error of a predicted level beyond that of few responses: drift, and levels of another policy."""
        return self._regression.error

    @property
    def reliability(self) -> float:
        """Of a prompt's distance from the mean as predicted, the part that came true; about 1 if all is well."""
        return 1.0 + float(self._regression.coefficients(self._between)[1])

    def predict(self, keys: Sequence[str], step: int) -> Forecast:
        """Levels of these prompts if they run in ``step``."""
        entries = self.history.look_up(keys)
        level, error = self._raw(entries)
        level = level + self._features(entries, level, step) @ self._regression.coefficients(self._between)
        error = np.sqrt(error**2 + self.error**2)
        known = entries.known
        mean = 0.0 if math.isnan(self._mean) else self._mean
        runaway = self._runaways.chance_of(entries)
        level = np.where(known, level, mean)
        error = np.where(known, error, math.sqrt(self._between))
        work = np.exp(np.minimum(level + (error**2 + self._within) / 2.0, max(self._longest, 0.0)))
        if self._runaways.logs.size:
            work = (1.0 - runaway) * work + runaway * float(np.exp(self._runaways.logs).mean())
        return Forecast(known, level, error, runaway, work)

    def scenarios(self, forecast: Forecast, n: int, count: int, seed: int) -> Floats:
        """Draws of all responses of a step, [count, G, n] tokens.

        Raises:
            ValueError: nothing has been seen yet.
        """
        if not self.ready:
            raise ValueError("no response has been seen yet: there is nothing to draw from")
        rng = np.random.default_rng((seed, count))
        shape = (count, forecast.level.size)
        level = forecast.level + rng.standard_normal(shape) * forecast.error
        unknown = ~forecast.known
        if unknown.any():
            level[:, unknown] = rng.choice(self._level, (count, int(unknown.sum())))
        order = np.argsort(self._level, kind="stable")
        ranked, deviation = self._level[order], self._deviation[order]
        width = min(WINDOW, ranked.size)
        start = np.clip(np.searchsorted(ranked, level) - width // 2, 0, ranked.size - width)
        logs = level[:, :, None] + deviation[start[:, :, None] + rng.integers(0, width, (*shape, n))]
        if self._runaways.logs.size:
            runs = rng.random(logs.shape) < forecast.runaway[:, None]
            logs[runs] = np.maximum(logs[runs], rng.choice(self._runaways.logs, int(runs.sum())))
        return np.asarray(np.exp(np.clip(logs, 0.0, self._longest)))

    def beyond(self, tokens: Floats, complete: NDArray[np.bool_], forecast: Forecast, count: int, seed: int) -> Floats:
        """Lengths with the censored ones drawn beyond what they had reached, [count, G, n] tokens.

        Args:
            tokens, complete: as seen, [G, n].
            forecast: of the groups, [G].
        """
        rng = np.random.default_rng((seed, count))
        lengths = np.repeat(tokens[None], count, axis=0)
        group, response = np.nonzero(~complete)
        if not group.size or not self.ready:
            return lengths
        # The run itself tells of the level as well, the more so where the history is not sure.
        own = robust_means(np.log(np.maximum(tokens, 1.0)), self._spread)
        error = np.maximum(forecast.error**2, 1e-6)
        trust = np.where(forecast.known, 1.0 / (1.0 + error * tokens.shape[1] / self._within), 0.0)
        level = trust * forecast.level + (1.0 - trust) * own
        reached = np.log(np.maximum(tokens[group, response], 1.0))
        deviations = np.sort(self._deviation)
        at = np.searchsorted(deviations, reached - level[group], side="right")
        left = deviations.size - at
        pick = at + (rng.random((count, group.size)) * left).astype(np.int64)
        drawn = level[group] + deviations[np.minimum(pick, deviations.size - 1)]
        further = reached + 0.5 * self.within * rng.standard_exponential(drawn.shape)
        drawn = np.where(left > 0, drawn, further)  # beyond all deviations seen: it may still go on
        # Longer than any that was no runaway, or one of those that ran away from there: it may be one.
        away = np.sort(self._runaways.logs)
        first = np.searchsorted(away, reached, side="right")
        longer = away.size - first
        if away.size:
            share = np.where(left > 0, self.runaway_share * deviations.size / np.maximum(left, 1), 1.0)
            runs = (rng.random(drawn.shape) < share) & (longer > 0)
            taken = np.minimum(first + (rng.random(drawn.shape) * longer).astype(np.int64), away.size - 1)
            drawn = np.where(runs, away[taken], drawn)
        lengths[:, group, response] = np.exp(np.maximum(reached, np.minimum(drawn, max(self._longest, 0.0))))
        return lengths

    # ---- taking in ------------------------------------------------------------------------------------------------

    def observe(self, step: int, groups: Sequence[GroupRecord]) -> None:
        """Take in the runs of a step; failed groups and those without a token say nothing."""
        runs = [g for g in groups if g.status != "failed" and g.key and any(g.tokens)]
        if not runs:
            return
        n = max(len(g.tokens) for g in runs)
        tokens = np.array([_resized(g.tokens, n) for g in runs], dtype=np.float64)
        complete = np.array([_resized(g.complete, n) for g in runs], dtype=np.bool_)
        fresh = np.array([g.route not in ("tail", "residual") for g in runs])
        self.take_in(step, [g.key for g in runs], tokens, complete, fresh)

    def take_in(
        self, step: int, keys: Sequence[str], tokens: Floats, complete: NDArray[np.bool_], fresh: NDArray[np.bool_]
    ) -> None:
        """As :meth:`observe`, from arrays: ``tokens`` and ``complete`` are [G, n], ``fresh`` [G] (a new pass)."""
        seen = complete | (tokens > 0)
        logs = np.log(np.maximum(tokens, 1.0))
        entries = self.history.look_up(keys)
        forecast = self.predict(keys, step)
        logs = self._completed(logs, complete, forecast)
        level = robust_means(logs, self._spread)
        count = np.where(complete, 1.0, CENSORED_WEIGHT * seen).sum(axis=1)
        self._note_misses(step, entries, level, count, fresh)
        runs = self._note_scatter(logs, level, fresh)
        self.history.add(step, keys, level, count, runs, fresh)
        self._longest = max(self._longest + math.log(SHORTER), float(np.log(np.maximum(tokens, 1.0)).max()))
        self._steps += 1.0

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _raw(self, entries: Entries) -> tuple[Floats, Floats]:
        """Levels shrunk towards the mean for the few responses they rest on, and their errors, [G] each."""
        mean = 0.0 if math.isnan(self._mean) else self._mean
        noise = self._within / np.maximum(entries.weight, 0.25)
        share = self._between / (self._between + noise)
        return mean + share * (entries.level - mean), np.sqrt(share * noise)

    def _features(self, entries: Entries, level: Floats, step: int) -> Floats:
        mean = 0.0 if math.isnan(self._mean) else self._mean
        return np.where(entries.known[:, None], features_of(level - mean, step - entries.step), 0.0)

    def _note_misses(self, step: int, entries: Entries, level: Floats, count: Floats, fresh: NDArray[np.bool_]) -> None:
        mine = entries.known & fresh & (count > 0)
        if not mine.any():
            return
        raw, error = self._raw(entries)
        # What few responses explain, of the old level and of the new one, is no fault of the prediction.
        explained = float((error[mine] ** 2 + self._within / count[mine]).sum())
        self._regression.learn(self._features(entries, raw, step), level - raw, mine, explained, self._between)

    def _note_scatter(self, logs: Floats, level: Floats, fresh: NDArray[np.bool_]) -> Floats:
        """Learn deviations and runaways; returns how many of each group's responses ran away, [G]."""
        n = logs.shape[1]
        deviation = (logs - level[:, None]) * math.sqrt(n / max(1, n - 1))
        weight = max(1.0 - KEEP, 1.0 / (self._steps + 1.0))
        if n > 1:
            spread = 1.4826 * float(medians_of(np.abs(deviation).ravel()))  # of those that did not run away
            self._spread += weight * (max(spread, LEAST_SPREAD) - self._spread)
        away = deviation > RUNAWAY_AT * self._spread
        runs = self._runaways.note(logs, away)
        if n > 1:
            self._within += weight * (float((deviation[~away] ** 2).mean()) - self._within)
        if fresh.sum() > 1:
            mean = float(level[fresh].mean())
            self._mean = mean if math.isnan(self._mean) else self._mean + weight * (mean - self._mean)
            between = float(((level[fresh] - self._mean) ** 2).mean()) - self._within / n
            self._between += weight * (max(between, 1e-4) - self._between)
        rows = np.broadcast_to(level[:, None], logs.shape)[~away]
        self._level = np.concatenate((self._level, rows))[-RECENT:]
        self._deviation = np.concatenate((self._deviation, deviation[~away]))[-RECENT:]
        return runs

    def _completed(self, logs: Floats, complete: NDArray[np.bool_], forecast: Forecast) -> Floats:
        """Log lengths with the censored ones as long as they are expected to be, [G, n]."""
        if complete.all():
            return logs
        spread = self.within
        deviations = np.sort(self._deviation) if self._deviation.size else np.linspace(-2.0, 2.0, 64) * spread
        above = np.cumsum(deviations[::-1])[::-1] / np.arange(deviations.size, 0, -1)  # mean of those at least as high
        level = np.where(forecast.known, forecast.level, robust_means(logs, spread))
        for _ in range(2):  # an unknown prompt's level rises with what is imputed
            least = logs - level[:, None]
            at = np.searchsorted(deviations, least, side="right")
            expected = np.where(at < above.size, above[np.minimum(at, above.size - 1)], least)
            filled = np.where(complete, logs, np.maximum(logs, level[:, None] + expected))
            level = np.where(forecast.known, forecast.level, robust_means(filled, spread))
        return filled

    # ---- state ----------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays, to be saved; the history's columns included."""
        return {
            **self.history.arrays(),
            "recent_level": self._level,
            "recent_deviation": self._deviation,
            "runaways": self._runaways.logs,
            "normal": self._regression.normal,
            "target": self._regression.target,
            "scalars": np.array([getattr(owner, name) for owner, name in self._scalars()]),
        }

    def _scalars(self) -> list[tuple[Any, str]]:
        """Owner and name of each single figure, in the order in which they are saved."""
        return [
            *((self, name) for name in ("_between", "_within", "_spread", "_mean", "_steps")),
            *((self._runaways, name) for name in ("count", "responses", "pairs", "chances")),
            (self, "_longest"),
            *((self._regression, name) for name in ("left", "left_groups")),
        ]

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`arrays`.

        Raises:
            ValueError: arrays that are missing or that no forecast has; then nothing has changed.
        """
        shapes = {"normal": (3, 3), "target": (3,), "scalars": (len(self._scalars()),)}
        for name in ("recent_level", "recent_deviation", "runaways", *shapes):
            if name not in arrays:
                raise ValueError(f"a length forecast needs the array {name}")
            if name in shapes and arrays[name].shape != shapes[name]:
                raise ValueError(f"array {name} must have shape {shapes[name]}, got {arrays[name].shape}")
        if arrays["recent_level"].shape != arrays["recent_deviation"].shape:
            raise ValueError("recent levels and deviations must be as many")
        history = PromptHistory(self.history.most_prompts)
        history.load_arrays(arrays)
        self.history = history
        self._level = arrays["recent_level"].astype(np.float64)
        self._deviation = arrays["recent_deviation"].astype(np.float64)
        self._runaways.logs = arrays["runaways"].astype(np.float64)
        self._regression.normal = arrays["normal"].astype(np.float64)
        self._regression.target = arrays["target"].astype(np.float64)
        for (owner, name), value in zip(self._scalars(), arrays["scalars"].tolist(), strict=True):
            setattr(owner, name, value)


def _resized(values: Sequence[Any], n: int) -> Sequence[Any]:
    """n of a group's values, repeated from the start if it has fewer."""
    return values if len(values) == n else [values[i % len(values)] for i in range(n)]
