"""Decode cost model: what a replica needs to generate a set of responses (paper 2.1 and Appendix D).

tau(b) is the time one token takes on a replica that decodes b requests at once. With the lengths on a replica sorted in
descending order, L_1 >= ... >= L_n, L_{n+1} = 0, and every request admitted at time 0, the replica time is

    T = sum_j tau(j) (L_j - L_{j+1})                 intervals with j active requests
      = sum_j L_j (tau(j) - tau(j-1)), tau(0) = 0    marginal cost of the j-th longest request
      = sum_x tau(b(x))                              token positions x with b(x) active requests
      = sum_i sum_{x <= L_i} tau(b(x)) / b(x)        each interval shared evenly by its active requests

Invariants: tau(0) = 0 and tau(b) > 0 for b > 0; `replica_time` is the largest of `finish_times`; neither depends on the
input's order when every request is admitted at once; a limit of at least n requests changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.checks import as_count, as_finite_array, as_lengths

#: A curve whose aggregate throughput b / tau(b) falls below this share of its running maximum is taken for a broken
#: measurement (swapped columns, milliseconds mixed with seconds): real engines saturate, they do not lose half.
MIN_AGGREGATE_SHARE = 0.5


@dataclass(frozen=True)
class DecodeCurve:
    """Seconds per token as a function of the number of requests decoding at once.

    Linear between knots; the last slope (never a negative one) beyond the last knot; tau(0) = 0. Between 0 and the
    first knot tau is the first knot's value: no speed is invented that was not measured, so the curve has its jump at
    zero, where a replica goes from idle to busy.

    Args:
        batch_sizes: knots, [K], positive and strictly increasing.
        seconds_per_token: tau at the knots, [K], positive. Small dips are accepted as measurement noise.

    Raises:
        ValueError: empty, NaN, not positive, unsorted or duplicated knots, lengths that differ, or an aggregate
            throughput b / tau(b) that falls below half of its running maximum.
    """

    batch_sizes: tuple[float, ...]
    seconds_per_token: tuple[float, ...]
    _knots: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _values: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _last_slope: float = field(init=False, repr=False, compare=False)

    def __init__(self, batch_sizes: Iterable[float] | ArrayLike, seconds_per_token: Iterable[float] | ArrayLike):
        knots = as_finite_array(_listed(batch_sizes), "batch_sizes").copy()
        values = as_finite_array(_listed(seconds_per_token), "seconds_per_token").copy()
        _check_curve(knots, values)
        knots.setflags(write=False)
        values.setflags(write=False)
        slope = 0.0
        if knots.size > 1:
            slope = max(0.0, float((values[-1] - values[-2]) / (knots[-1] - knots[-2])))
        set_ = object.__setattr__
        set_(self, "batch_sizes", tuple(knots.tolist()))
        set_(self, "seconds_per_token", tuple(values.tolist()))
        set_(self, "_knots", knots)
        set_(self, "_values", values)
        set_(self, "_last_slope", slope)

    @overload
    def __call__(self, batch: float) -> float: ...
    @overload
    def __call__(self, batch: NDArray[Any]) -> NDArray[np.float64]: ...
    def __call__(self, batch: float | NDArray[Any]) -> float | NDArray[np.float64]:
        """tau at `batch` concurrent requests, in seconds per token; a number for a number, an array for an array.

        Raises:
            ValueError: a negative or non-finite batch size.
        """
        b = np.asarray(batch, dtype=np.float64)
        if b.size and not (np.isfinite(b).all() and b.min() >= 0):
            bad = b[~(np.isfinite(b) & (b >= 0))].flat[0] if b.ndim else float(b)
            raise ValueError(f"batch must be finite and not negative, got {bad}")
        tau = self._evaluate(b)
        return tau if isinstance(batch, np.ndarray) else float(tau)

    def table(self, largest: int) -> NDArray[np.float64]:
        """tau(0), tau(1), ..., tau(largest), [largest + 1] seconds per token."""
        return self._evaluate(np.arange(as_count(largest, "largest", 0) + 1, dtype=np.float64))

    def to_dict(self) -> dict[str, list[float]]:
        """Plain JSON data that `from_dict` reads back to an equal curve."""
        return {"batch_sizes": list(self.batch_sizes), "seconds_per_token": list(self.seconds_per_token)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DecodeCurve:
        """The inverse of `to_dict`.

        Raises:
            ValueError: a missing key, or values that `DecodeCurve` refuses.
        """
        for key in ("batch_sizes", "seconds_per_token"):
            if key not in data:
                raise ValueError(f"curve data lacks {key!r}, got keys {sorted(data)}")
        return cls(data["batch_sizes"], data["seconds_per_token"])

    def _evaluate(self, b: NDArray[np.float64]) -> NDArray[np.float64]:
        tau = np.interp(b, self._knots, self._values)
        tau = tau + self._last_slope * np.maximum(b - self._knots[-1], 0.0)
        return np.where(b > 0, tau, 0.0)


def replica_time(lengths: ArrayLike, curve: DecodeCurve, *, max_num_seqs: int | None = None) -> float:
    """Seconds until the last of `lengths` [n] (tokens) is done on one replica (paper 2.1, all admitted at time 0).

    Args:
        max_num_seqs: at most this many requests decode at once; the rest wait, first come first served in input order.

    Raises:
        ValueError: empty, negative or non-finite lengths; a limit below 1.
    """
    return float(_sorted_finish_times(_virtual_ends(as_lengths(lengths), max_num_seqs), curve, max_num_seqs)[-1])


def finish_times(lengths: ArrayLike, curve: DecodeCurve, *, max_num_seqs: int | None = None) -> NDArray[np.float64]:
    """Seconds at which each of `lengths` [n] (tokens) is done on one replica, [n] in the input's order.

    Arguments and errors as `replica_time`.
    """
    ends = _virtual_ends(as_lengths(lengths), max_num_seqs)
    order = np.argsort(ends, kind="stable")
    finished = np.empty_like(ends)
    finished[order] = _sorted_finish_times(ends, curve, max_num_seqs, order)
    return finished


def replica_times(
    lengths: ArrayLike,
    assignment: ArrayLike,
    replicas: int,
    curve: DecodeCurve,
    *,
    max_num_seqs: int | None = None,
) -> NDArray[np.float64]:
    """`replica_time` of every replica at once, [replicas] seconds; a replica without requests takes 0.

    Args:
        lengths: tokens, any shape (for example [N, n] by prompt group and rollout).
        assignment: replica index of each length, same shape, in [0, replicas).
        max_num_seqs: as in `replica_time`; the queue order on a replica is the flattened input order.

    Raises:
        ValueError: bad lengths, a shape that differs, an index out of range, a limit below 1.
    """
    replicas = as_count(replicas, "replicas", 1)
    where = np.asarray(assignment)
    tokens = as_lengths(lengths, ndim=None)
    if where.shape != tokens.shape:
        raise ValueError(f"assignment must have the shape of lengths {tokens.shape}, got {where.shape}")
    tokens, where = tokens.ravel(), where.ravel()
    if not np.issubdtype(where.dtype, np.integer) or where.min() < 0 or where.max() >= replicas:
        raise ValueError(f"assignment must hold whole numbers in [0, {replicas}), got {where.min()}..{where.max()}")
    counts = np.bincount(where, minlength=replicas)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    compact = where.astype(np.int16) if replicas <= np.iinfo(np.int16).max else where  # radix sort below 2^15
    if max_num_seqs is not None and counts.max() > as_count(max_num_seqs, "max_num_seqs", 1):
        parts = np.split(tokens[np.argsort(compact, kind="stable")], starts[1:])
        return np.array([replica_time(p, curve, max_num_seqs=max_num_seqs) if p.size else 0.0 for p in parts])
    order = np.argsort(tokens)
    order = order[np.argsort(compact[order], kind="stable")]
    tokens = tokens[order]
    gaps = np.diff(tokens, prepend=0.0)
    used = starts[counts > 0]
    gaps[used] = tokens[used]
    active = np.repeat(starts + counts, counts) - np.arange(tokens.size)  # still running there, itself included
    times = np.zeros(replicas)
    times[counts > 0] = np.add.reduceat(gaps * curve.table(int(counts.max()))[active], used)
    return times


def _virtual_ends(lengths: NDArray[np.float64], max_num_seqs: int | None) -> NDArray[np.float64]:
    """Where each request ends on the axis of tokens per active request.

    Every active request advances by one on that axis in the same time, so admission is list scheduling on it: the next
    in the queue starts where the earliest of the `max_num_seqs` active ones ends.
    """
    if max_num_seqs is None or lengths.size <= as_count(max_num_seqs, "max_num_seqs", 1):
        return lengths
    values: list[float] = lengths.tolist()
    ends = values[:max_num_seqs]
    active = ends.copy()
    heapq.heapify(active)
    for length in values[max_num_seqs:]:
        end = active[0] + length
        heapq.heapreplace(active, end)
        ends.append(end)
    return np.array(ends)


def _sorted_finish_times(
    ends: NDArray[np.float64], curve: DecodeCurve, max_num_seqs: int | None, order: NDArray[np.intp] | None = None
) -> NDArray[np.float64]:
    """Seconds of the 1st, 2nd, ... completion: before the i-th, min(limit, n - i + 1) requests are active."""
    n = ends.size
    ascending = np.sort(ends) if order is None else ends[order]
    active = np.arange(n, 0, -1) if max_num_seqs is None else np.minimum(np.arange(n, 0, -1), max_num_seqs)
    return np.cumsum(np.diff(ascending, prepend=0.0) * curve._evaluate(active.astype(np.float64)))


def _listed(values: Iterable[float] | ArrayLike) -> Any:
    return values if isinstance(values, np.ndarray | list | tuple) or np.isscalar(values) else list(values)  # type: ignore[arg-type]


def _check_curve(knots: NDArray[np.float64], values: NDArray[np.float64]) -> None:
    if knots.size != values.size:
        raise ValueError(f"seconds_per_token must have one value per batch size ({knots.size}), got {values.size}")
    if knots.min() <= 0:
        raise ValueError(f"batch_sizes must be positive, got {knots.min()}")
    if values.min() <= 0:
        raise ValueError(f"seconds_per_token must be positive, got {values.min()}")
    steps = np.diff(knots)
    if steps.size and steps.min() <= 0:
        k = int(np.argmax(steps <= 0))
        kind = "duplicated" if steps[k] == 0 else "unsorted"
        raise ValueError(f"batch_sizes must strictly increase, got {kind} {knots[k + 1]} after {knots[k]}")
    throughput = knots / values
    share = throughput / np.maximum.accumulate(throughput)
    if share.min() < MIN_AGGREGATE_SHARE:
        k = int(np.argmin(share))
        raise ValueError(
            f"seconds_per_token {values[k]} at batch size {knots[k]} leaves {share[k]:.0%} of the best aggregate "
            f"throughput at smaller batches; at least {MIN_AGGREGATE_SHARE:.0%} is expected"
        )
