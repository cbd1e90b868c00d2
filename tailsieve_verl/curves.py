"""Decode curves in files: JSON (`DecodeCurve.to_dict`) or CSV with the columns batch_size, seconds_per_token."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from pathlib import Path

from tailsieve_verl.core.decode import DecodeCurve

_COLUMNS = ("batch_size", "seconds_per_token")


def load_curve(path: str | os.PathLike[str]) -> DecodeCurve:
    """Read a curve; the format follows the suffix, `.json` or `.csv`. CSV rows may carry further columns.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another suffix, a file that does not parse, a missing column, or values that `DecodeCurve` refuses;
            the message names the file.
    """
    path = Path(path)
    suffix = _suffix(path)
    text = path.read_text(encoding="utf-8-sig")
    try:
        if suffix == ".json":
            data = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError(f"curve data must be an object, got {type(data).__name__}")
            return DecodeCurve.from_dict(data)
        rows = list(csv.DictReader(text.splitlines()))
        for column in _COLUMNS:
            if any(row.get(column) is None for row in rows):
                raise ValueError(f"column {column!r} is missing or short")
        knots, values = ([float(row[column]) for row in rows] for column in _COLUMNS)
        return DecodeCurve(knots, values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def save_curve(path: str | os.PathLike[str], curve: DecodeCurve) -> None:
    """Write a curve that `load_curve` reads back equal; a reader never sees half a file.

    Raises:
        ValueError: a suffix other than `.json` or `.csv`.
    """
    path = Path(path)
    if _suffix(path) == ".json":
        text = json.dumps(curve.to_dict(), indent=2) + "\n"
    else:
        rows = zip(curve.batch_sizes, curve.seconds_per_token, strict=True)
        text = "".join(f"{b!r},{tau!r}\n" for b, tau in rows)
        text = ",".join(_COLUMNS) + "\n" + text
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".csv"):
        raise ValueError(f"path must end in .json or .csv, got {str(path)!r}")
    return suffix
