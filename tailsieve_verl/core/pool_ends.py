"""When a pool's groups and replicas are done, for many pools at once: [S, G, n] tokens dealt round robin.

A replica's time is that of `decode.replica_time`; these are its batched forms, which a decision can afford.

Invariants: a response keeps its place in the input; the order of dealing is that of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.plan import Granularity

Floats = NDArray[np.float64]


def pool_ends(
    lengths: Floats, lanes: int, placement: Granularity, curve: DecodeCurve, weight: float = 1.0
) -> tuple[Floats, Floats]:
    """Seconds until the groups of a pool are complete, [S, G], and until its replicas are done, [S, lanes].

    Args:
        lengths: tokens, [S, G, n], groups in the order they are dealt round robin.
        lanes: replicas of the pool.
        weight: requests that each one here stands for.
    """
    return ends_of(numbered(lengths), lanes, placement, lambda size: tau_up_to(curve, size, weight))


def tau_up_to(curve: DecodeCurve, size: int, weight: float = 1.0) -> Floats:
    return curve(weight * np.arange(size + 1, dtype=np.float64))


def numbered(lengths: Floats) -> NDArray[np.int64]:
    """Lengths with the number of the response in their last bits: to sort these takes a third of an `argsort`.

    The order of floats that are not negative is that of their bits. Eleven digits of a length remain, all of a whole
    number.
    """
    # A pool's first responses come first, then the second ones: that makes the maxima over a group's responses fast.
    pools, groups, n = lengths.shape
    number = np.arange(lengths.size).reshape(pools, n, groups).transpose(0, 2, 1)
    return np.asarray(lengths, dtype=np.float64).view(np.int64) & ~number_bits(lengths.size) | number


def number_bits(responses: int) -> int:
    """The bits for the number of a response; ``responses`` itself stands for none."""
    return (1 << responses.bit_length()) - 1


def ends_of(
    numbered: NDArray[np.int64], lanes: int, placement: Granularity, tau: Callable[[int], Floats]
) -> tuple[Floats, Floats]:
    """`pool_ends` of numbered lengths; ``tau`` up to a batch size, [size + 1] seconds per token."""
    pools, groups, n = numbered.shape
    bits = number_bits(numbered.size)
    dealt = dealt_out(numbered, lanes, placement, numbered.size)
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


def dealt_out(values: NDArray[Any], lanes: int, placement: Granularity, empty: int = 0) -> NDArray[Any]:
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


def missing_maximum(ends: Floats, replicas: int) -> float:
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
