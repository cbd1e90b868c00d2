"""Predicted makespan of a split (q, m): the bulk pool as it runs, the tail pool on what it would regenerate.

    T(q, m) = mean over scenarios of max(T_tail, T_bulk)

    T_bulk   F = N fresh groups dealt over R - m replicas; the time at which N - q groups are complete (the cut).
    T_tail   the q groups that are last in that pool, as they run again, dealt over m replicas; until the last is done.
    uniform  N fresh groups over all R replicas, until the last is done. No cut.

What a runaway adds to either pool, and with what chance, is known in closed form (`runaways`); T is then the expected
maximum.

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

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history import Scenarios
from tailsieve_verl.core.plan import Granularity
from tailsieve_verl.core.pool_ends import dealt_out, ends_of, missing_maximum, number_bits, numbered, tau_up_to
from tailsieve_verl.core.runaways import PoolTime, cut_around, number_of_runaways

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
        latest: T_bulk by the number of groups that are cut, unless it waits for a runaway, [S, F] seconds.
        late: T_bulk if it does, [S] seconds.
        risk: chance that it does by the number of groups that are cut, [F].
        bulk_mean: T_bulk by the number of groups that are cut, mean over scenarios, [F] seconds.
        again: second runs of the groups of the pool before, latest first, [S, F, n] tokens.
        hits: expected runaways among the first 1, 2, ... of these groups, [S, F].
    """

    latest: Floats
    late: Floats
    risk: Floats | None
    bulk_mean: Floats
    again: Floats
    hits: Floats | None


@dataclass
class Predictor:
    """Predictions for one step (module docstring).

    Attributes:
        scenarios: pools of the history.
        curve: seconds per token by batch size, of the bulk pool and under uniform routing.
        n_groups, replicas: N and R.
        tail_placement, bulk_placement: how the pools deal their work.
        slow_tail, slow_bulk: measured over predicted time of each pool, as a factor.
        tail_curve: of the tail pool, if it drafts otherwise.
        most_m: most replicas that may be in the tail pool; R - 1 if left out.
    """

    scenarios: Scenarios
    curve: DecodeCurve
    n_groups: int
    replicas: int
    tail_placement: Granularity = "request"
    bulk_placement: Granularity = "request"
    slow_tail: float = 1.0
    slow_bulk: float = 1.0
    tail_curve: DecodeCurve | None = None
    most_m: int | None = None
    _pools: dict[int, _Pools] = field(default_factory=dict)
    _tails: dict[tuple[int, int], tuple[PoolTime, float]] = field(default_factory=dict)
    _splits: dict[tuple[int, int], Prediction] = field(default_factory=dict)
    _best: dict[tuple[int, int, int], Prediction] = field(default_factory=dict)
    _balance: dict[int, int] = field(default_factory=dict)

    def uniform(self) -> Prediction:
        """All replicas serve one pool and nothing is cut."""
        if (0, 0) not in self._splits:
            usual = self._until_done(self.scenarios.first, self.n_groups, self.replicas, self.bulk_placement)
            risk: float | Floats = 0.0
            if self.scenarios.runaways is not None:
                risk = np.full(usual.shape, -math.expm1(-self._runaway_groups * self.n_groups / self._first[1]))
            pool = PoolTime(usual, usual + self._outlasting(self._longest), risk)
            # With the same curve both pools tell how slow the replicas are; under uniform routing all draft as in bulk.
            slow = math.sqrt(self.slow_tail * self.slow_bulk) if self.tail_curve is None else self.slow_bulk
            self._splits[0, 0] = Prediction(0, 0, pool.expected * slow)
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
            tail, bulk = self._tail(q, m)[0], self._bulk(q, m)
            self._splits[q, m] = Prediction(q, m, tail.both(bulk), tail.expected, bulk.expected)
        return self._splits[q, m]

    def bulk(self, q: int, m: int) -> Floats:
        """T_bulk of each scenario, [S] seconds."""
        return self._bulk(q, m).expected

    def bulk_done(self, m: int, deadline_s: float) -> float:
        """Groups of the bulk pool that are complete by a deadline, mean over scenarios, of N."""
        latest = self._under(m).latest
        return float(np.count_nonzero(latest * self.slow_bulk <= deadline_s)) / latest.size * self.n_groups

    def tail(self, q: int, m: int) -> Floats:
        """T_tail of each scenario, [S] seconds."""
        return self._tail(q, m)[0].expected

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

    def _bulk(self, q: int, m: int) -> PoolTime:
        under, cut = self._under(m), self._in_miniature(q)
        usual = under.latest[:, cut] * self.slow_bulk
        if under.risk is None:
            return PoolTime(usual, usual)
        return PoolTime(usual, under.late * self.slow_bulk, np.full(usual.shape, under.risk[cut]))

    def _tail(self, q: int, m: int) -> tuple[PoolTime, float]:
        """T_tail of each scenario and its mean, seconds."""
        if (q, m) in self._tails:
            return self._tails[q, m]
        under, groups = self._under(m), max(1, self._in_miniature(q))
        last = under.again[:, :groups]
        usual = self._until_done(last, q, m, self.tail_placement, self.tail_curve) * self.slow_tail
        tail = PoolTime(usual, usual)
        if under.hits is not None:
            late = usual + self._outlasting(last.max(axis=(1, 2)), self.tail_curve) * self.slow_tail
            tail = PoolTime(usual, late, -np.expm1(-under.hits[:, groups - 1] * (q / groups)))
        self._tails[q, m] = tail, _mean(tail.expected)
        return self._tails[q, m]

    def _outlasting(self, longest: Floats, curve: DecodeCurve | None = None) -> Floats:
        """Seconds that a runaway decodes alone after everything else of such a length at most, [S]."""
        runaways = self.scenarios.runaways
        if runaways is None:
            return np.zeros_like(longest)
        return np.asarray(np.maximum(0.0, runaways.tokens - longest) * (curve or self.curve)(1.0))

    def _until_done(
        self,
        lengths: Floats,
        groups: int,
        replicas: int,
        placement: Granularity,
        curve: DecodeCurve | None = None,
    ) -> Floats:
        """Seconds until so many groups on so many replicas are all done, [S]; ``lengths`` are theirs or a sample."""
        lanes = self._lanes(replicas)
        work = dealt_out(lengths, lanes, placement)
        work.sort(axis=2)
        tau = self._tau(work.shape[2], (groups / replicas) / (lengths.shape[1] / lanes), curve)
        ends = work @ (tau[1:] - tau[:-1])[::-1]  # what each request adds, the shortest first
        return np.asarray(ends.max(axis=1) * missing_maximum(ends, replicas))

    def _lanes(self, replicas: int) -> int:
        """Replicas that serve as many requests each in miniature."""
        return max(1, min(replicas, round(replicas * self.scenarios.first.shape[1] / self.n_groups)))

    def _under(self, m: int) -> _Pools:
        """The scenarios with m replicas in the tail pool."""
        if m in self._pools:
            return self._pools[m]
        first, again, runaways = self.scenarios
        pools, groups, n = first.shape
        replicas = self.replicas - m
        lanes = self._lanes(replicas)
        weight = (self.n_groups / replicas) / (groups / lanes)
        finish, ends = ends_of(self._numbered, lanes, self.bulk_placement, lambda size: self._tau(size, weight))
        # Groups of all scenarios by number, latest first: bits turned round sort the other way round.
        bits, number = number_bits(finish.size), np.arange(finish.size).reshape(finish.shape)
        order = np.sort(~finish.view(np.int64) & ~bits | number, axis=1) & bits
        latest = finish.take(order)
        if lanes < replicas:
            latest[:, 0] *= missing_maximum(ends, replicas)
        # The tail set of one pool runs beside the fresh pool of the next.
        before = order.take(np.arange(-1, pools - 1), axis=0)
        beside = again.reshape(-1, n).take(before, axis=0)
        late, risk, hits = latest[:, 0], None, None
        mean = latest.sum(axis=0) * (self.slow_bulk / pools)
        if runaways is not None:
            late = late + self._outlasting(self._longest)
            latest, risk = cut_around(latest, number_of_runaways(self._runaway_groups, groups))
            mean = (latest.sum(axis=0) * (1.0 - risk) + late.sum() * risk) * (self.slow_bulk / pools)
            hits = np.cumsum(-n * np.log1p(-np.minimum(runaways.rate, 0.999)).take(before), axis=1)
        self._pools[m] = _Pools(latest, late, risk, mean, beside, hits)
        return self._pools[m]

    @property
    def _first(self) -> tuple[int, ...]:
        return self.scenarios.first.shape

    @cached_property
    def _longest(self) -> Floats:
        return np.asarray(self.scenarios.first.max(axis=(1, 2)))

    @cached_property
    def _runaway_groups(self) -> float:
        """Expected groups with a runaway in one of the scenarios."""
        runaways = self.scenarios.runaways
        assert runaways is not None
        return float((1.0 - (1.0 - runaways.rate) ** self._first[2]).sum(axis=1).mean())

    @cached_property
    def _numbered(self) -> NDArray[np.int64]:
        return numbered(self.scenarios.first)

    @property
    def largest_m(self) -> int:
        """Most replicas that the tail pool may have."""
        return self.replicas - 1 if self.most_m is None else min(self.most_m, self.replicas - 1)

    def _tau(self, size: int, weight: float, curve: DecodeCurve | None = None) -> Floats:
        """tau of 0, 1, ..., ``size`` requests that each stand for ``weight``, [size + 1]."""
        if curve is not None:
            return (self._whole_tail if weight == 1.0 else tau_up_to(curve, size, weight))[: size + 1]
        return self._whole_tau[: size + 1] if weight == 1.0 else tau_up_to(self.curve, size, weight)

    @cached_property
    def _whole_tau(self) -> Floats:
        return tau_up_to(self.curve, self.scenarios.first[0].size)

    @cached_property
    def _whole_tail(self) -> Floats:
        assert self.tail_curve is not None
        return tau_up_to(self.tail_curve, self.scenarios.first[0].size)

    @cached_property
    def _unit(self) -> int:
        """Groups that each one of the scenarios stands for."""
        return max(1, round(self.n_groups / self.scenarios.first.shape[1]))

    def _in_miniature(self, q: int) -> int:
        groups = self.scenarios.first.shape[1]
        return q if groups == self.n_groups else min(groups - 1, round(q * groups / self.n_groups))


def _mean(values: Floats) -> float:
    return float(np.add.reduce(values)) / values.size
