"""Rows of a data set, from a local file or from the hub."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tailsieve_verl.errors import UserError
from tailsieve_verl.workloads.sources import Source

FORMATS = (".parquet", ".jsonl", ".json", ".csv")
#: Seconds that one request to the hub may take; its client tries a few times.
HUB_TIMEOUT_S = "20"


def read_file(path: Path) -> list[dict[str, Any]]:
    """Rows of a .parquet, .jsonl, .json (a list of rows) or .csv file; the last three also as .gz.

    Raises:
        UserError: no such file, an unknown kind, or one that cannot be read as its kind.
    """
    if not path.is_file():
        raise UserError(f"{path} {'is no file' if path.exists() else 'does not exist'}; give the data set's file.")
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in FORMATS or (kind == ".parquet" and path.suffix == ".gz"):
        raise UserError(f"{path} is of no kind that can be read; give a {', '.join(FORMATS)} file.")
    try:
        rows = _read(path, kind)
    # pyarrow, json and Unicode errors are ValueErrors too; EOFError: a cut .gz; RecursionError: JSON of no end.
    except (OSError, ValueError, EOFError, RecursionError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as {kind.lstrip('.')}: {said.rstrip('.')}.") from None
    if not rows:
        raise UserError(f"{path} holds no rows.")
    return rows


def read_hub(source: Source, split: str, revision: str | None) -> list[dict[str, Any]]:
    """Rows of a data set on the hub.

    Raises:
        UserError: no library to load it with, no network, or no such data set, split or revision.
    """
    import os

    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", HUB_TIMEOUT_S)
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", HUB_TIMEOUT_S)
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError("The package datasets is not installed; pip install datasets, or give --from FILE.") from None
    rows: list[dict[str, Any]] = []
    for config in source.configs or (None,):
        try:
            part = load_dataset(source.repo, config, split=split, revision=revision)
        except Exception as error:  # the hub's client raises errors of many libraries
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"{source.repo} ({split}) cannot be loaded from the hub: {said.rstrip('.')}; check the network, or "
                f"give a copy with --from FILE."
            ) from None
        rows += [dict(row) for row in part]
    if not rows:
        raise UserError(f"{source.repo} ({split}) holds no rows.")
    return rows


def _read(path: Path, kind: str) -> list[dict[str, Any]]:
    if kind == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    with _open(path) as file:
        if kind == ".csv":
            import pandas

            # As text: 033 is an answer, NA may be one.
            return pandas.read_csv(file, dtype=str, keep_default_na=False).to_dict("records")
        if kind == ".jsonl":
            return list(_lines(file))
        data = json.load(file)
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise ValueError("it must hold one list of objects")
    return data


def _open(path: Path) -> IO[str]:
    # A byte order mark, which spreadsheets put in front, is no part of the first column's name.
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _lines(file: IO[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} holds no object")
        yield row
