"""Predicted makespan of a split (q, m): the bulk pool as it runs, the tail pool on what it would regenerate.

    T(q, m) = mean over scenarios of max(T_tail, T_bulk)

    T_bulk   F = N fresh groups dealt over R - m replicas; the time at which N - q groups are complete (the cut).
    T_tail   the q groups that are last in that pool, as they run again, dealt over m replicas; until the last is done.
    uniform  N fresh groups over all R replicas, until the last is done. No cut.

Scenarios are whole pools of the history and are the same for every candidate (common random numbers), so that
differences between candidates are far less noisy than their values. The tail set of one pool runs beside the fresh
pool of the next, as in the real thing. One pass over the bulk pool gives T_bulk for every q at once, because the cut is
an order statistic; T_tail does not fall with q and T_bulk does not rise, so the best q is found by a search for the q
at which they meet, and an m of which no q can be good is known by a single one.

Large steps are predicted in miniature: at most as many groups as the history keeps, on as many replicas as give about
the true number of requests each, the remaining fraction as a weight on the batch size. The factor to the
maximum over all replicas is taken from the spread among those simulated.

Invariants: the same arguments give the same prediction; with N groups in the history nothing is scaled or added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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

    @cached_property
    def mean_s(self) -> float:
        return _mean(self.step)

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
class _Pools:
    """The scenarios under one m: what does not depend on q.

    Attributes:
        latest: when the groups of the bulk pool are complete, latest first, [S, F] seconds.
        bulk_mean: T_bulk by the number of groups that are cut, mean over scenarios, [F] seconds.
        again: second runs of the groups of the pool before in that order, [S, F, n] tokens.
    """

    latest: Floats
    bulk_mean: Floats
    again: Floats


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
    _pools: dict[int, _Pools] = field(default_factory=dict)
    _tails: dict[tuple[int, int], tuple[Floats, float]] = field(default_factory=dict)
    _splits: dict[tuple[int, int], Prediction] = field(default_factory=dict)
    _best: dict[tuple[int, int, int], Prediction] = field(default_factory=dict)
    _balance: dict[int, int] = field(default_factory=dict)

    def uniform(self) -> Prediction:
        """All replicas serve one pool and nothing is cut."""
        if (0, 0) not in self._splits:
            seconds = self._until_done(self.scenarios.first, self.n_groups, self.replicas, self.bulk_placement)
            self._splits[0, 0] = Prediction(0, 0, seconds * math.sqrt(self.slow_tail * self.slow_bulk))
        return self._splits[0, 0]

    def split(self, q: int, m: int) -> Prediction:
        """Prediction of (q, m); (0, 0) is uniform.

        Raises:
            ValueError: q or m out of range.
        """
        if q == 0 and m == 0:
            return self.uniform()
        if (q, m) not in self._splits:
            if not (1 <= q < self.n_groups and 1 <= m < self.replicas):
                raise ValueError(f"(q, m) must be a split of {self.n_groups} groups on {self.replicas}, got ({q}, {m})")
            tail, bulk = self.tail(q, m), self.bulk(q, m)
            self._splits[q, m] = Prediction(q, m, np.maximum(tail, bulk), tail, bulk)
        return self._splits[q, m]

    def bulk(self, q: int, m: int) -> Floats:
        """T_bulk of each scenario, [S] seconds."""
        return self._under(m).latest[:, self._in_miniature(q)] * self.slow_bulk

    def bulk_done(self, m: int, deadline_s: float) -> float:
        """Groups of the bulk pool that are complete by a deadline, mean over scenarios, of N."""
        latest = self._under(m).latest
        return float(np.count_nonzero(latest * self.slow_bulk <= deadline_s)) / latest.size * self.n_groups

    def tail(self, q: int, m: int) -> Floats:
        """T_tail of each scenario, [S] seconds."""
        return self._tail(q, m)[0]

    def best_q(self, m: int, low: int = 1, high: int | None = None) -> Prediction:
        """The q in [low, high] (default [1, N/2]) with the least predicted makespan under m."""
        high = max(1, self.n_groups // 2) if high is None else high
        low, high = max(1, low), max(1, high)
        if (m, low, high) in self._best:
            return self._best[m, low, high]
        bulk, unit = self._under(m).bulk_mean, self._unit
        left, right = self._between(low, high, m, lambda q: self._tail(q, m)[1] < bulk[self._in_miniature(q)], unit)
        self._balance[m] = left
        best = min((self.split(q, m) for q in (left, right)), key=lambda p: p.mean_s)
        for direction in (-unit, unit):
            while low <= best.q + direction <= high:
                beside = self.split(best.q + direction, m)
                if beside.mean_s >= best.mean_s:
                    break
                best = beside
        self._best[m, low, high] = best
        return best

    def slower(self, m: int, seconds: float) -> bool:
        """Whether m replicas take longer than that with every q up to N/2.

        T_bulk alone takes longer with q groups and fewer, T_tail with q + 1 and more: one value of it tells.
        """
        most, bulk = max(1, self.n_groups // 2), self._under(m).bulk_mean
        more = self._between(0, most + 1, m, lambda q: bulk[self._in_miniature(q)] > seconds)[1]
        return more > most or self._tail(more, m)[1] > seconds

    def most_tail(self, m: int, deadline_s: float) -> int:
        """The most tail groups that m replicas finish by a deadline in the mean, 0 if not even one; at most N/2."""
        most = max(1, self.n_groups // 2)
        return self._between(0, most + 1, m, lambda q: self._tail(q, m)[1] <= deadline_s)[0]

    def _between(self, low: int, high: int, m: int, holds: Callable[[int], bool], apart: int = 1) -> tuple[int, int]:
        """The q in [low, high] between which something ceases to hold; it is not asked at low and high themselves.

        Bisection, but if every q counts it starts where T_tail and T_bulk meet for this m, or for another one: what is
        looked for is near. From there steps double until they lead too far.
        """
        left, right, step = low, max(low, high), 1
        middle = self._balance.get(m, next(reversed(self._balance.values()), low))
        while right - left > apart:
            if self._unit > 1 or (low < left and right < high):
                middle = (left + right) // 2
            middle = min(max(middle, left + 1), right - 1)
            if holds(middle):
                left, middle = middle, middle + step
            else:
                right, middle = middle, middle - step
            step *= 2
        return left, right

    def _tail(self, q: int, m: int) -> tuple[Floats, float]:
        """T_tail of each scenario and its mean, seconds."""
        if (q, m) in self._tails:
            return self._tails[q, m]
        last = self._under(m).again[:, : max(1, self._in_miniature(q))]
        tail = self._until_done(last, q, m, self.tail_placement) * self.slow_tail
        self._tails[q, m] = tail, _mean(tail)
        return self._tails[q, m]

    def _until_done(self, lengths: Floats, groups: int, replicas: int, placement: Granularity) -> Floats:
        """Seconds until so many groups on so many replicas are all done, [S]; ``lengths`` are theirs or a sample."""
        lanes = self._lanes(replicas)
        work = _dealt(lengths, lanes, placement)
        work.sort(axis=2)
        tau = self._tau(work.shape[2], (groups / replicas) / (lengths.shape[1] / lanes))
        ends = work @ (tau[1:] - tau[:-1])[::-1]  # what each request adds, the shortest first
        return np.asarray(ends.max(axis=1) * _missing_maximum(ends, replicas))

    def _lanes(self, replicas: int) -> int:
        """Replicas that serve as many requests each in miniature."""
        return max(1, min(replicas, round(replicas * self.scenarios.first.shape[1] / self.n_groups)))

    def _under(self, m: int) -> _Pools:
        """The scenarios with m replicas in the tail pool."""
        if m in self._pools:
            return self._pools[m]
        first, again = self.scenarios
        pools, groups, n = first.shape
        replicas = self.replicas - m
        lanes = self._lanes(replicas)
        weight = (self.n_groups / replicas) / (groups / lanes)
        finish, ends = _ends(self._numbered, lanes, self.bulk_placement, lambda size: self._tau(size, weight))
        # Groups of all scenarios by number, latest first: bits turned round sort the other way round.
        bits, number = _number_bits(finish.size), np.arange(finish.size).reshape(finish.shape)
        order = np.sort(~finish.view(np.int64) & ~bits | number, axis=1) & bits
        latest = finish.take(order)
        if lanes < replicas:
            latest[:, 0] *= _missing_maximum(ends, replicas)
        # The tail set of one pool runs beside the fresh pool of the next.
        beside = again.reshape(-1, n).take(order.take(np.arange(-1, pools - 1), axis=0), axis=0)
        self._pools[m] = _Pools(latest, latest.sum(axis=0) * (self.slow_bulk / pools), beside)
        return self._pools[m]

    @cached_property
    def _numbered(self) -> NDArray[np.int64]:
        return _numbered(self.scenarios.first)

    def _tau(self, size: int, weight: float) -> Floats:
        """tau of 0, 1, ..., ``size`` requests that each stand for ``weight``, [size + 1]."""
        return self._whole_tau[: size + 1] if weight == 1.0 else _tau(self.curve, size, weight)

    @cached_property
    def _whole_tau(self) -> Floats:
        return _tau(self.curve, self.scenarios.first[0].size)

    @cached_property
    def _unit(self) -> int:
        """Groups that each one of the scenarios stands for."""
        return max(1, round(self.n_groups / self.scenarios.first.shape[1]))

    def _in_miniature(self, q: int) -> int:
        groups = self.scenarios.first.shape[1]
        return q if groups == self.n_groups else min(groups - 1, round(q * groups / self.n_groups))


def pool_ends(
    lengths: Floats, lanes: int, placement: Granularity, curve: DecodeCurve, weight: float = 1.0
) -> tuple[Floats, Floats]:
    """Seconds until the groups of a pool are complete, [S, G], and until its replicas are done, [S, lanes].

    Args:
        lengths: tokens, [S, G, n], groups in the order they are dealt round robin.
        lanes: replicas of the pool.
        weight: requests that each one here stands for.
    """
    return _ends(_numbered(lengths), lanes, placement, lambda size: _tau(curve, size, weight))


def _tau(curve: DecodeCurve, size: int, weight: float = 1.0) -> Floats:
    return curve(weight * np.arange(size + 1, dtype=np.float64))


def _numbered(lengths: Floats) -> NDArray[np.int64]:
    """Lengths with the number of the response in their last bits: to sort these takes a third of an `argsort`.

    The order of floats that are not negative is that of their bits. Eleven digits of a length remain, all of a whole
    number.
    """
    # A pool's first responses come first, then the second ones: that makes the maxima over a group's responses fast.
    pools, groups, n = lengths.shape
    number = np.arange(lengths.size).reshape(pools, n, groups).transpose(0, 2, 1)
    return np.asarray(lengths, dtype=np.float64).view(np.int64) & ~_number_bits(lengths.size) | number


def _number_bits(responses: int) -> int:
    """The bits for the number of a response; ``responses`` itself stands for none."""
    return (1 << responses.bit_length()) - 1


def _ends(
    numbered: NDArray[np.int64], lanes: int, placement: Granularity, tau: Callable[[int], Floats]
) -> tuple[Floats, Floats]:
    """`pool_ends` of numbered lengths; ``tau`` up to a batch size, [size + 1] seconds per token."""
    pools, groups, n = numbered.shape
    bits = _number_bits(numbered.size)
    dealt = _dealt(numbered, lanes, placement, numbered.size)
    dealt.sort(axis=2)
    number = (dealt & bits).ravel()
    dealt &= ~bits
    lengths = dealt.view(np.float64)
    times = np.empty_like(lengths)
    np.subtract(lengths.ravel()[1:], lengths.ravel()[:-1], out=times.ravel()[1:])
    times[:, :, 0] = lengths[:, :, 0]
    times *= tau(times.shape[2])[:0:-1]  # from all requests down to one
    np.cumsum(times, axis=2, out=times)
    finish = np.empty(numbered.size + 1)
    finish[number] = times.ravel()
    return finish[:-1].reshape(pools, n, groups).max(axis=1), times[:, :, -1]


def _dealt(values: NDArray[Any], lanes: int, placement: Granularity, empty: int = 0) -> NDArray[Any]:
    """A copy of values [S, G, n] by replica, [S, lanes, most on a replica]; ``empty`` fills the places left over."""
    pools, groups, n = values.shape
    unit = n if placement == "group" else 1
    rows = -(-groups * n // (lanes * unit))
    places = rows * lanes * unit
    if places > groups * n:
        padded = np.empty((pools, places), dtype=values.dtype)
        padded[:, : groups * n] = values.reshape(pools, -1)
        padded[:, groups * n :] = empty
        values = padded
    by_replica = values.reshape(pools, rows, lanes, unit).transpose(0, 2, 1, 3)
    return np.array(by_replica, order="C").reshape(pools, lanes, rows * unit)


def _mean(values: Floats) -> float:
    return float(np.add.reduce(values)) / values.size


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
