"""Rows of a data set as verl's parquet: the same input and options give the same rows, and so the same checksum.

    read -> skip what has no problem or answer -> shuffle (if asked) -> limit -> reserve the last batch -> write

The index of a row in its source is its identity (``extra_info.index``): it survives shuffling, limits and resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.errors import UserError
from tailsieve_verl.workloads.sources import Item, Record, SkippedError, Source

Row = dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """Rows ready to be written.

    Attributes:
        train: rows in their order.
        reserved: rows of the warm-up batch, which ``train`` does not hold.
        skipped: reason -> rows of the source that could not be used.
    """

    train: list[Row]
    reserved: list[Row]
    skipped: dict[str, int]


def prepare(
    source: Source,
    records: Sequence[Record],
    split: str,
    *,
    where: str,
    seed: int | None = None,
    limit: int | None = None,
    reserve: int = 0,
) -> Prepared:
    """verl rows of a data set's records.

    Args:
        seed: shuffles the rows; ``None`` keeps the source's order.
        limit: rows to keep, after shuffling.
        reserve: rows set aside from the end: the last batch of a loader that does not shuffle (Appendix A.3).
        where: names the records in errors.

    Raises:
        UserError: columns are missing, nothing is left, or the reserve takes everything.
    """
    source.check_columns([str(name) for name in records[0]] if records else [], where)
    skipped: Counter[str] = Counter()
    rows = []
    for index, record in enumerate(records):
        try:
            rows.append(_row(source, source.read(record), index, split))
        except SkippedError as reason:
            skipped[str(reason)] += 1
    if not rows:
        raise UserError(f"{where} has no row that can be used: {_reasons(skipped)}.")
    if seed is not None:
        rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    rows = rows[:limit]
    if reserve >= len(rows):
        raise UserError(f"A warm-up batch of {reserve} leaves nothing of {len(rows)} rows; reserve fewer or keep more.")
    cut = len(rows) - reserve
    return Prepared(rows[:cut], rows[cut:], dict(skipped))


def checksum(rows: Sequence[Row]) -> str:
    """SHA-256 of the rows' content, whatever library writes the file."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def write(path: str | Path, rows: Sequence[Row]) -> None:
    """Write rows as parquet."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def _row(source: Source, item: Item, index: int, split: str) -> Row:
    row = {
        "data_source": source.repo,
        "prompt": item.messages,
        "ability": source.task,
        "reward_model": {"style": "rule", "ground_truth": item.ground_truth},
        "extra_info": {"split": split, "index": index, "task": source.task, **item.facts},
    }
    try:
        checksum([row])
    except UnicodeEncodeError:  # half of a character, as JSON can write it: no file of ours can
        raise SkippedError("text that is no Unicode") from None
    return row


def _reasons(skipped: Counter[str]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in skipped.most_common())
