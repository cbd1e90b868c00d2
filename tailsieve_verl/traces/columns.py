"""Columns of a trace file as labels, whole numbers and flags; what is wrong is said with its file, line and column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tailsieve_verl.errors import UserError

_TRUE, _FALSE = ("1", "true", "1.0"), ("0", "false", "0.0")
#: Largest whole number that a float holds exactly; no length comes near it.
_LARGEST = 2**53


def text(table: pd.DataFrame, column: str, missing: str) -> list[str]:
    """A column as text, [K]; `missing` in every row where there is no such column."""
    return table[column].astype(str).tolist() if column in table else [missing] * len(table)


def labels(path: Path, table: pd.DataFrame, column: str) -> tuple[str, ...]:
    """The labels of a column in order of appearance.

    Raises:
        UserError: no such column.
    """
    _require(path, table, column)
    return tuple(table[column].astype(str).unique())


def pick(path: Path, column: str, choices: Sequence[str], wanted: str, several: bool = True) -> tuple[str, ...]:
    """The label `wanted`; or, where several may be read, the labels it joins by commas.

    Raises:
        UserError: a label that is none of the choices.
    """
    picked = (wanted,) if wanted in choices or not several else tuple(part.strip() for part in wanted.split(","))
    for label in picked:
        if label not in choices:
            raise UserError(f"{path} has no {column} {label!r}: choose of {', '.join(choices)}.")
    return tuple(dict.fromkeys(picked))


def numbers(path: Path, table: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column of finite numbers, [K].

    Raises:
        UserError: no such column, or an entry that is no finite number.
    """
    _require(path, table, column)
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float64)
    _refuse(path, table, column, ~np.isfinite(values), "is no number")
    return values


def counts(path: Path, table: pd.DataFrame, column: str) -> NDArray[np.int64]:
    """A column of whole numbers of 0 or more, [K].

    Raises:
        UserError: no such column, or an entry that is no such number.
    """
    _require(path, table, column)
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=np.float64)
    wrong = ~np.isfinite(values) | (values < 0) | (values != np.rint(values)) | (values > _LARGEST)
    _refuse(path, table, column, wrong, "is no whole number of 0 or more")
    return values.astype(np.int64)


def flags(path: Path, table: pd.DataFrame, column: str, otherwise: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A column of 0/1 or true/false, [K]; `otherwise` where it is blank or missing.

    Raises:
        UserError: an entry that is neither.
    """
    if column not in table:
        return otherwise
    values = pd.Series(text(table, column, "")).str.strip().str.lower()
    yes, no, blank = (values.isin(kind).to_numpy() for kind in (_TRUE, _FALSE, ("",)))
    _refuse(path, table, column, ~(yes | no | blank), "is neither 0 nor 1")
    return np.where(blank, otherwise, yes)


def _require(path: Path, table: pd.DataFrame, column: str) -> None:
    if column not in table:
        raise UserError(f"{path} has no column {column!r}: it has {', '.join(map(str, table.columns))}.")


def _refuse(path: Path, table: pd.DataFrame, column: str, wrong: NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        value = table[column].iloc[row]
        raise UserError(f"{path} line {table.index[row]}, column {column}: {str(value)!r} {reason}.")
