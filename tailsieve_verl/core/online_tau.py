"""The decode curve, learned for free: what completions of a step say about tau(b) (docs/controller.md).

Between two events on a replica (a request starts or ends) its batch size b is constant, and every active request
gains v(b) = 1 / tau(b) tokens a second. So each request, cut ones included, gives one linear equation,

    tokens_i = integral of v(b(t)) dt over its life.

With v linear between the knots of a grid the unknowns are v at the knots, and the equations of a step are summed up in
a normal matrix of grid size. Old steps are forgotten only where a new step has looked (a tail pool says nothing about
large batches, and must not wear out what is known of them); the fit is non-negative and does not rise with b.

Level and shape are learned apart. A whole step that runs slow is mostly noise of the machine: its factor goes into a
slow average, and the equations, freed from it, into the shape, which is then hardly noisy at all.

A change of the engine (another depth of speculation, other hardware) shows as tokens that are systematically more or
fewer than predicted. Cumulative sums of the level and of each range of batch sizes notice it in a few steps, however
noisy the clock is, and what they concern is learned afresh.

Requests that pause between turns look slow here: for multi-turn rollouts prefer a measured curve.

Invariants: memory is a few arrays of grid size; the same tables give the same curve; the state is plain JSON data; the
curve given out is one that `DecodeCurve` accepts.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.equations import GRID, between_completions, equations
from tailsieve_verl.core.sessions import SessionTable

Floats = NDArray[np.float64]

#: Ranges of batch sizes that are watched apart for changes: four knots, two octaves each.
KNOTS_PER_BAND = 4
BANDS = GRID.size // KNOTS_PER_BAND + 1
#: Weight an old step keeps at a knot that a new step fully covers: ten steps, against noise.
MEMORY = 0.9
#: What a knot keeps of the past once the curve has changed there: just what keeps it determined if it is not visited.
MEMORY_AFTER_CHANGE = 0.01
#: Smoothness asked of v, relative to the information of a mean knot: it fills knots that were never visited.
SMOOTHNESS = 1e-4
#: Tokens added to a request's weight 1 / tokens, so that the shortest ones, all start-up, do not dominate.
SHORT_TOKENS = 16.0
#: A knot is known once this many tokens' worth of single requests were decoded there: few enough for a real run of 32
#: responses of 70 tokens on two replicas to be understood in three steps (docs/measurements.md).
VISITED_TOKENS = 25.0
#: After a change the shape forgets fast for some steps, because the first ones still mix old and new.
MEMORY_WHILE_CHANGING, CHANGING_STEPS = 0.5, 3
#: Change detection: deviations beyond one noise level add up, and four of them alarm. With Gaussian noise that is a
#: false alarm in some thousand steps.
DRIFT_ALLOWED, ALARM_AT = 1.0, 4.0
#: Noise that is always allowed for, and the weight of a new step in the estimate of noise and of the level.
LEAST_NOISE, NEW_WEIGHT = 0.02, 0.1
#: A request shorter than this is the clock's mistake, s.
SHORTEST_LIFE_S = 1e-6
#: One step's surprise counts for at most this many noise levels: a single hiccup is no change.
LARGEST_SURPRISE = 3.0
#: Misfit (mean relative error of requests within a step) at which nothing is trusted any more.
WORST_MISFIT = 0.3
#: Confidence needed before predictions are used: reached after one step that fits and drains.
TRUST_AT = 0.5
#: Share of the best aggregate throughput that a fitted curve keeps, just above what `DecodeCurve` insists on.
AGGREGATE_SHARE = 0.51


class Slowness(NamedTuple):
    """By replica: its index, the tokens generated there, and seconds taken over seconds expected; may be empty."""

    replica: NDArray[np.int64]
    tokens: Floats
    ratio: Floats


class OnlineTau:
    """Learns tau from session tables (module docstring)."""

    def __init__(self) -> None:
        size = GRID.size
        self._matrix = np.zeros((size, size))
        self._shape = np.zeros(size)  # v at the knots up to the level, tokens per second
        self._level = 0.0  # logarithm of what the shape is to be multiplied by
        self._level_steps = 0.0  # steps in the level's average
        self._shape_alarms = np.zeros((2, BANDS))  # cumulated surprise, faster and slower, by band of batch sizes
        self._level_alarms = np.zeros(2)
        self._shape_noise = np.full(BANDS, LEAST_NOISE)
        self._level_noise = LEAST_NOISE
        self._changing = 0  # steps for which the shape still forgets fast
        self._misfit = 0.0
        self._steps = 0.0  # effective number of steps remembered
        self.changes = 0
        self.ignored = 0
        self._curve: DecodeCurve | None = None

    # ---- what is known --------------------------------------------------------------------------------------------

    @property
    def curve(self) -> DecodeCurve | None:
        """The curve learned so far; ``None`` before the first useful step."""
        if self._curve is None and self._steps:
            knots = GRID[: self._top() + 1]
            speed = self.speed[: knots.size]
            aggregate = np.maximum.accumulate(knots * speed)
            speed = np.maximum(speed, AGGREGATE_SHARE * aggregate / knots)
            self._curve = DecodeCurve(knots, 1.0 / speed)
        return self._curve

    @property
    def confidence(self) -> float:
        """0..1: steps seen, share of the knots up to the largest batch that were visited, and how well requests fit."""
        if not self._steps:
            return 0.0
        covered = float(np.mean(self._visited()[: self._top() + 1]))
        return float((1.0 - np.exp(-self._steps)) * covered * max(0.0, 1.0 - self._misfit / WORST_MISFIT))

    @property
    def trusted(self) -> bool:
        return self.confidence >= TRUST_AT

    @property
    def noise(self) -> float:
        """Typical relative deviation of a step's speed from the curve."""
        return self._level_noise

    @property
    def speed(self) -> Floats:
        """v at the knots of the grid, tokens per second, [G]; zeros before the first useful step."""
        return self._shape * float(np.exp(self._level))

    # ---- learning -------------------------------------------------------------------------------------------------

    def observe(self, table: SessionTable, curve: DecodeCurve | None = None) -> Slowness:
        """Learn from a step's sessions.

        Args:
            curve: what slowness is measured by; the one learned so far if ``None``.
        """
        self.ignored += table.dropped
        order, rows = equations(table)
        replica, started, ended = table.replica[order], table.started_s[order], table.ended_s[order]
        tokens = table.tokens[order]
        slow = self._slowness(replica, tokens, rows, curve)
        useful, lived = tokens > 0, rows.sum(axis=0) > SHORTEST_LIFE_S
        self.ignored += int((useful & ~lived).sum())
        useful &= lived
        if useful.any():
            rows = rows.compress(useful, axis=1)
            self._learn(rows, tokens[useful], replica[useful], started[useful], ended[useful])
        return slow

    def _slowness(
        self, replica: NDArray[np.int64], tokens: Floats, rows: Floats, curve: DecodeCurve | None
    ) -> Slowness:
        speed = self.speed if curve is None else 1.0 / curve(GRID)
        if not speed.any() or not tokens.size:
            return Slowness(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
        generated = np.bincount(replica, tokens).astype(np.float64)
        expected = np.bincount(replica, speed[: len(rows)] @ rows)
        good = np.flatnonzero((generated > 0) & (expected > 0))
        return Slowness(good, generated[good], expected[good] / generated[good])

    def _learn(self, rows: Floats, tokens: Floats, replica: NDArray[np.int64], started: Floats, ended: Floats) -> None:
        """Take in equations [knots visited, K] of sessions [K], in the order of `equations`."""
        knots = len(rows)
        memory = np.full(GRID.size, MEMORY)
        if self._steps:
            factor = tokens.sum() / max(float((self.speed[:knots] @ rows).sum()), 1e-300)
            tokens = tokens / (factor * np.exp(self._level))  # what the shape alone should give
            between = between_completions(rows, tokens, replica, started, ended)
            memory[:knots][self._shape_changed(*between)] = MEMORY_AFTER_CHANGE
            self._learn_level(float(np.log(factor)))
        weight = 1.0 / (tokens + SHORT_TOKENS)
        new = np.zeros_like(self._matrix)
        new[:knots, :knots] = np.einsum("ji,ki->jk", rows * weight, rows)  # BLAS: its threads would not pay
        steady = np.maximum((1.0 - MEMORY) * self._matrix.diagonal(), 1e-300)
        looked = np.where(memory < MEMORY, 1.0, np.minimum(1.0, new.diagonal() / steady))
        if self._changing:
            self._changing -= 1
            memory = np.minimum(memory, MEMORY_WHILE_CHANGING)
        keep = np.sqrt(memory**looked)
        old = self._matrix * keep[:, None] * keep[None, :]
        target = old @ self._shape
        target[:knots] += rows @ (weight * tokens)
        self._matrix = old + new
        self._steps = MEMORY * self._steps + 1.0
        self._shape = self._solve(target)
        self._curve = None
        misfit = float(np.abs(tokens - self._shape[:knots] @ rows).sum() / tokens.sum())
        self._misfit = misfit if self._steps <= 1.0 else self._misfit + NEW_WEIGHT * (misfit - self._misfit)

    def _learn_level(self, deviation: float) -> None:
        """Average the logarithm of a step's speed over the curve's; a lasting change starts the average again."""
        surprise = min(max(deviation / self._level_noise, -LARGEST_SURPRISE), LARGEST_SURPRISE)
        self._level_alarms = np.maximum(0.0, self._level_alarms + np.array((surprise, -surprise)) - DRIFT_ALLOWED)
        noise = self._level_noise + NEW_WEIGHT * (min(abs(deviation), 1.0) - self._level_noise)
        self._level_noise = max(LEAST_NOISE, noise)
        if (self._level_alarms >= ALARM_AT).any():
            self.changes += 1
            self._level_alarms[:] = 0.0
            self._level_steps = 0.0
        self._level_steps += 1.0
        self._level += max(NEW_WEIGHT, 1.0 / (self._level_steps + 1.0)) * deviation

    def _shape_changed(self, rows: Floats, tokens: Floats) -> NDArray[np.bool_]:
        """Knots to learn afresh because some range of batch sizes has deviated for too long, [knots visited].

        Args:
            rows, tokens: what happened between one completion and the next, `between_completions`.
        """
        knots = len(rows)
        predicted = self._shape[:knots] @ rows
        mean_knot = np.arange(knots) @ rows / rows.sum(axis=0)
        band = np.clip(mean_knot / KNOTS_PER_BAND, 0, BANDS - 1).astype(np.int64)
        seen, should = np.bincount(band, tokens, BANDS), np.bincount(band, predicted, BANDS)
        live = (seen > 0) & (should > 0)
        if not live.any():
            return np.zeros(knots, dtype=np.bool_)
        deviation = np.zeros(BANDS)
        deviation[live] = np.log(seen[live] / should[live])
        surprise = np.clip(deviation / self._shape_noise, -LARGEST_SURPRISE, LARGEST_SURPRISE)
        moved = self._shape_alarms + np.array((surprise, -surprise)) - DRIFT_ALLOWED
        self._shape_alarms = np.where(live, np.maximum(0.0, moved), self._shape_alarms)
        noise = np.maximum(LEAST_NOISE, _averaged(self._shape_noise, np.abs(deviation)))
        self._shape_noise = np.where(live, noise, self._shape_noise)
        if not (self._shape_alarms >= ALARM_AT).any():
            return np.zeros(knots, dtype=np.bool_)
        self.changes += 1
        self._shape_alarms[:] = 0.0
        self._changing = CHANGING_STEPS
        self._level_steps = 0.0
        return np.asarray(rows.sum(axis=1) > 0)  # all that was visited: one engine serves every batch size

    def _solve(self, target: Floats) -> Floats:
        """v at all knots: least squares, non-negative, not rising, smooth where nothing is known, [G]."""
        top = self._top() + 1
        matrix = self._matrix[:top, :top]
        matrix = matrix + SMOOTHNESS * matrix.trace() / top * _bends(top)
        # v is the sum of all later drops d >= 0, and so does not rise: v = U d, U' M U is summed up along both axes.
        drops = nonnegative_quadratic(matrix.cumsum(axis=0).cumsum(axis=1), target[:top].cumsum())
        speed = drops[::-1].cumsum()[::-1]
        positive = speed[speed > 0]
        if not positive.size:
            return self._shape
        speed = np.maximum(speed, positive.min() * 1e-3)
        aggregate = GRID[top - 1] * speed[-1]  # beyond: no further aggregate throughput is assumed
        beyond = np.minimum(speed[-1], aggregate / GRID[top:])
        return np.concatenate((speed, beyond))

    def _visited(self) -> NDArray[np.bool_]:
        return np.asarray(self._matrix.diagonal() * self._shape**2 > VISITED_TOKENS)

    def _top(self) -> int:
        """Index of the largest knot with any information."""
        return int(np.flatnonzero(self._matrix.diagonal() > 0)[-1])

    # ---- state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "matrix": self._matrix.tolist(),
            "shape": self._shape.tolist(),
            "level": [self._level, self._level_steps],
            "alarms": [self._shape_alarms.tolist(), self._level_alarms.tolist()],
            "noise": [self._shape_noise.tolist(), self._level_noise],
            "changing": self._changing,
            "misfit": self._misfit,
            "steps": self._steps,
            "changes": self.changes,
            "ignored": self.ignored,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        matrix = np.array(state["matrix"], dtype=np.float64)
        if matrix.shape != (GRID.size, GRID.size):
            raise ValueError(f"matrix must have the shape {(GRID.size, GRID.size)} of the grid, got {matrix.shape}")
        self._matrix, self._shape = matrix, np.array(state["shape"], dtype=np.float64)
        self._level, self._level_steps = state["level"]
        self._shape_alarms, self._level_alarms = (np.array(a, dtype=np.float64) for a in state["alarms"])
        self._shape_noise, self._level_noise = np.array(state["noise"][0], dtype=np.float64), state["noise"][1]
        self._changing, self._misfit, self._steps = state["changing"], state["misfit"], state["steps"]
        self.changes, self.ignored = state["changes"], state["ignored"]
        self._curve = None


@cache
def _bends(knots: int) -> Floats:
    """Matrix of the squared second differences of a vector, [knots, knots]."""
    bend = np.diff(np.eye(knots), n=2, axis=0) if knots > 2 else np.zeros((0, knots))
    return np.asarray(bend.T @ bend)


def _averaged(noise: Floats, deviation: Floats) -> Floats:
    """A new step's deviation taken into the estimate of noise; an absurd one counts as 100 %."""
    return noise + NEW_WEIGHT * (np.minimum(deviation, 1.0) - noise)


def nonnegative_quadratic(matrix: Floats, target: Floats) -> Floats:
    """The d >= 0 that minimises d' M d / 2 - target' d, by block pivoting; M symmetric and non-negative definite."""
    size = target.size
    matrix = matrix.copy()
    matrix.flat[:: size + 1] += 1e-12 * matrix.trace() / size
    free = np.ones(size, dtype=np.bool_)
    solution = np.zeros(size)
    for _ in range(4 * size):
        solution = np.zeros(size)
        index = np.flatnonzero(free)
        if index.size:
            solution[index] = np.linalg.solve(matrix[index[:, None], index], target[index])
        negative = free & (solution < 0)
        if negative.any():
            free &= ~negative
            continue
        slope = target - matrix @ solution
        slope[free] = 0.0
        best = int(np.argmax(slope))
        if slope[best] <= 1e-9 * np.abs(target).max():
            break
        free[best] = True
    return np.maximum(solution, 0.0)
