"""Rows as markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows of one shape; empty without rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([str(row[c]) for c in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
