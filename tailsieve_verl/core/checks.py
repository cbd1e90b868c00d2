"""Input checks shared by the core: every failure is a ValueError that names the argument and the offending value."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_finite_array(values: ArrayLike, name: str, ndim: int | None = 1) -> NDArray[np.float64]:
    """Return `values` as a float64 array with `ndim` axes (None: any number), non-empty and finite.

    Raises:
        ValueError: not numeric, wrong number of axes, empty, NaN or infinite; the message names `name` and the value.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numeric, got {values!r}") from error
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at index {_index(where)}")
    return array


def as_lengths(values: ArrayLike, name: str = "lengths", ndim: int | None = 1) -> NDArray[np.float64]:
    """Return response lengths in tokens (real-valued allowed) as float64; as `as_finite_array`, and never negative."""
    array = as_finite_array(values, name, ndim)
    if array.min() < 0:
        where = tuple(int(i) for i in np.argwhere(array < 0)[0])
        raise ValueError(f"{name} must not be negative, got {array[where]} at index {_index(where)}")
    return array


def as_count(value: int, name: str, low: int, high: int | None = None) -> int:
    """Return `value` as a Python int in [low, high].

    Raises:
        ValueError: not a whole number, or out of range; the message names `name` and the value.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)
    if not whole or value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"in [{low}, {high}]"
        raise ValueError(f"{name} must be a whole number {bounds}, got {value!r}")
    return int(value)


def _index(where: tuple[int, ...]) -> int | tuple[int, ...]:
    return where[0] if len(where) == 1 else where
