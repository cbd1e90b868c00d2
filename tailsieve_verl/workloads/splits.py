"""The splits of a made-up data set, one parquet file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MakeRows = Callable[[int, int, str], list[dict[str, Any]]]


def write_splits(out: str | Path, make_rows: MakeRows, counts: Mapping[str, int], seed: int) -> dict[str, Path]:
    """Write ``<split>.parquet`` into a folder; returns split -> path.

    Args:
        make_rows: rows in verl's schema, from their number, the seed and the split.
        counts: rows of each split.
    """
    import pandas as pd

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for split, count in counts.items():
        paths[split] = folder / f"{split}.parquet"
        pd.DataFrame(make_rows(count, seed, split)).to_parquet(paths[split])
    return paths
