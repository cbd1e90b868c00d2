"""Predicted makespan of a split (q, m): the bulk pool as it runs, the tail pool on what it would regenerate.

    T(q, m) = mean over scenarios of max(T_tail, T_bulk)

    T_bulk   F = N fresh groups dealt over R - m replicas; the time at which N - q groups are complete (the cut).
    T_tail   the q groups that are last in that pool, as they run again, dealt over m replicas; until the last is done.
    uniform  N fresh groups over all R replicas, until the last is done. No cut.

Scenarios are whole pools of the history and are the same for every candidate (common random numbers), so that
differences between candidates are far less noisy than their values. The tail set of one pool runs beside the fresh
pool of the next, as in the real thing. One pass over the bulk pool gives T_bulk for every q at once, because the cut is
an order statistic; T_tail does not fall with q and T_bulk does not rise, so the best q is found by bisection.

Large steps are predicted in miniature: at most as many groups as the history keeps, on as many replicas as give about
the true number of requests each, the remaining fraction as a weight on the batch size. The factor to the
maximum over all replicas is taken from the spread among those simulated.

Invariants: the same arguments give the same prediction; with N groups in the history nothing is scaled or added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history import Scenarios
from tailsieve_verl.core.plan import Granularity

Floats = NDArray[np.float64]

#: Spread of a gain from pool to pool as long as few pools tell, and for how many of them it counts.
PRIOR_SPREAD, PRIOR_POOLS = 0.15, 3


@dataclass(frozen=True)
class Prediction:
    """Seconds of each scenario, [S]; tail and bulk are ``None`` for uniform routing."""

    q: int
    m: int
    step: Floats
    tail: Floats | None = None
    bulk: Floats | None = None

    @property
    def mean_s(self) -> float:
        return float(self.step.mean())

    def gain_over(self, other: Prediction, prior_pools: int = PRIOR_POOLS) -> tuple[float, float]:
        """Relative gain of this split over another, and its standard error over the scenarios.

        Few scenarios say little about their own spread, so a prior spread counts like ``prior_pools`` of them.
        """
        gains = (other.step - self.step) / other.mean_s
        weight = prior_pools + gains.size - 1
        if not weight:
            return float(gains.mean()), 0.0
        variance = (prior_pools * PRIOR_SPREAD**2 + float(((gains - gains.mean()) ** 2).sum())) / weight
        return float(gains.mean()), math.sqrt(variance / gains.size)


@dataclass(frozen=True)
class _Bulk:
    """A bulk pool: group finish times, latest first, and the groups in that order, [S, F]."""

    latest: Floats
    order: NDArray[np.intp]


@dataclass
class Predictor:
    """Predictions for one step (module docstring).

    Attributes:
        scenarios: pools of the history.
        curve: seconds per token by batch size.
        n_groups, replicas: N and R.
        tail_placement, bulk_placement: how the pools deal their work.
        slow_tail, slow_bulk: measured over predicted time of each pool, as a factor.
    """

    scenarios: Scenarios
    curve: DecodeCurve
    n_groups: int
    replicas: int
    tail_placement: Granularity = "request"
    bulk_placement: Granularity = "request"
    slow_tail: float = 1.0
    slow_bulk: float = 1.0
    _bulks: dict[int, _Bulk] = field(default_factory=dict)
    _splits: dict[tuple[int, int], Prediction] = field(default_factory=dict)

    def uniform(self) -> Prediction:
        """All replicas serve one pool and nothing is cut."""
        if (0, 0) not in self._splits:
            bulk = self._bulk(self.replicas)
            slow = math.sqrt(self.slow_tail * self.slow_bulk)
            self._splits[0, 0] = Prediction(0, 0, bulk.latest[:, 0] * slow)
        return self._splits[0, 0]

    def split(self, q: int, m: int) -> Prediction:
        """Prediction of (q, m); (0, 0) is uniform.

        Raises:
            ValueError: q or m out of range.
        """
        if q == 0 and m == 0:
            return self.uniform()
        if not (1 <= q < self.n_groups and 1 <= m < self.replicas):
            raise ValueError(f"(q, m) must be a split of {self.n_groups} groups on {self.replicas}, got ({q}, {m})")
        if (q, m) not in self._splits:
            bulk = self.bulk(q, m)
            tail = self.tail(q, m)
            self._splits[q, m] = Prediction(q, m, np.maximum(tail, bulk), tail, bulk)
        return self._splits[q, m]

    def bulk(self, q: int, m: int) -> Floats:
        """T_bulk of each scenario, [S] seconds."""
        pool = self._bulk(self.replicas - m)
        return pool.latest[:, self._in_miniature(q)] * self.slow_bulk

    def bulk_done(self, m: int, deadline_s: float) -> float:
        """Groups of the bulk pool that are complete by a deadline, mean over scenarios, of N."""
        done = (self._bulk(self.replicas - m).latest * self.slow_bulk <= deadline_s).mean()
        return float(done) * self.n_groups

    def tail(self, q: int, m: int) -> Floats:
        """T_tail of each scenario, [S] seconds."""
        again = self.scenarios.again
        size = max(1, self._in_miniature(q))
        last = self._bulk(self.replicas - m).order[:, :size]
        lengths = np.roll(np.take_along_axis(again, last[:, :, None], axis=1), 1, axis=0)
        lanes = max(1, min(m, round(m * again.shape[1] / self.n_groups)))
        weight = (q / m) / (size / lanes)
        ends = pool_ends(lengths, lanes, self.tail_placement, self.curve, weight)[1]
        return np.asarray(ends.max(axis=1) * _missing_maximum(ends, m) * self.slow_tail)

    def best_q(self, m: int, low: int = 1, high: int | None = None) -> Prediction:
        """The q in [low, high] (default [1, N/2]) with the least predicted makespan under m."""
        high = max(1, self.n_groups // 2) if high is None else high
        low, high = max(1, low), max(1, high)
        unit = max(1, round(self.n_groups / self.scenarios.again.shape[1]))
        left, right = low, max(low, high)
        while right - left > unit:
            middle = (left + right) // 2
            here = self.split(middle, m)
            assert here.tail is not None
            assert here.bulk is not None
            if here.tail.mean() < here.bulk.mean():
                left = middle
            else:
                right = middle
        best = min((self.split(q, m) for q in (left, right)), key=lambda p: p.mean_s)
        for direction in (-unit, unit):
            while low <= best.q + direction <= high:
                beside = self.split(best.q + direction, m)
                if beside.mean_s >= best.mean_s:
                    break
                best = beside
        return best

    def most_tail(self, m: int, deadline_s: float) -> int:
        """The most tail groups that m replicas finish by a deadline in the mean, 0 if not even one; at most N/2."""
        low, high = 0, max(1, self.n_groups // 2)
        while low < high:
            middle = (low + high + 1) // 2
            if self.split(middle, m).tail.mean() <= deadline_s:  # type: ignore[union-attr]
                low = middle
            else:
                high = middle - 1
        return low

    def _bulk(self, replicas: int) -> _Bulk:
        if replicas not in self._bulks:
            first = self.scenarios.first
            groups = first.shape[1]
            lanes = max(1, min(replicas, round(replicas * groups / self.n_groups)))
            weight = (self.n_groups / replicas) / (groups / lanes)
            finish, ends = pool_ends(first, lanes, self.bulk_placement, self.curve, weight)
            order = np.argsort(-finish, axis=1, kind="stable")
            latest = np.take_along_axis(finish, order, axis=1)
            if lanes < replicas:
                latest[:, 0] *= _missing_maximum(ends, replicas)
            self._bulks[replicas] = _Bulk(latest, order)
        return self._bulks[replicas]

    def _in_miniature(self, q: int) -> int:
        groups = self.scenarios.first.shape[1]
        return q if groups == self.n_groups else min(groups - 1, round(q * groups / self.n_groups))


def pool_ends(
    lengths: Floats, lanes: int, placement: Granularity, curve: DecodeCurve, weight: float = 1.0
) -> tuple[Floats, Floats]:
    """When the groups of a pool are complete, and when its replicas are done.

    Args:
        lengths: tokens, [S, G, n], groups in the order they are dealt round robin.
        lanes: replicas of the pool.
        weight: requests that each one here stands for.

    Returns:
        seconds by group [S, G] and by replica [S, lanes].
    """
    scenarios, groups, n = lengths.shape
    if placement == "group":
        rows = -(-groups // lanes)
        padded = np.zeros((scenarios, rows * lanes, n))
        padded[:, :groups] = lengths
        by_lane = padded.reshape(scenarios, rows, lanes, n).transpose(0, 2, 1, 3).reshape(scenarios, lanes, rows * n)
    else:
        rows = -(-groups * n // lanes)
        padded = np.zeros((scenarios, rows * lanes))
        padded[:, : groups * n] = lengths.reshape(scenarios, -1)
        by_lane = padded.reshape(scenarios, rows, lanes).transpose(0, 2, 1)
    order = np.argsort(by_lane, axis=2)
    ascending = np.take_along_axis(by_lane, order, axis=2)
    size = by_lane.shape[2]
    tau = curve(weight * np.arange(size, 0, -1, dtype=np.float64))
    times = np.cumsum(np.diff(ascending, axis=2, prepend=0.0) * tau, axis=2)
    finish = np.empty_like(times)
    np.put_along_axis(finish, order, times, axis=2)
    if placement == "group":
        by_group = finish.reshape(scenarios, lanes, rows, n).transpose(0, 2, 1, 3).reshape(scenarios, -1, n)
        return by_group[:, :groups].max(axis=2), times[:, :, -1]
    flat = finish.transpose(0, 2, 1).reshape(scenarios, -1)[:, : groups * n]
    return flat.reshape(scenarios, groups, n).max(axis=2), times[:, :, -1]


def _missing_maximum(ends: Floats, replicas: int) -> float:
    """Factor by which the latest of ``replicas`` is expected to end after the latest simulated (log-normal)."""
    lanes = ends.shape[1]
    if lanes >= replicas or ends.size < 2 or ends.min() <= 0:
        return 1.0
    return math.exp(float(np.log(ends).std()) * (_normal_maximum(replicas) - _normal_maximum(lanes)))


def _normal_maximum(count: int) -> float:
    """Expected maximum of ``count`` standard normal values, within 0.05 (extreme-value expansion)."""
    if count < 2:
        return 0.0
    root = math.sqrt(2.0 * math.log(count))
    return root - (math.log(math.log(count)) + math.log(4.0 * math.pi) - 2.0 * 0.5772) / (2.0 * root)
