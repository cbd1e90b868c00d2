"""How long each prompt's responses were: one small entry per prompt, over passes of the data set.

    a prompt's run: n lengths, some right-censored -> its level (mean log length), the responses that ran away from
                                                      it, and its weight (responses it rests on)
    the same prompt in the next pass               -> what was known counts `DECAY` times as much, then the new run

A run that is cut and the run that generates it again are one pass: both count, neither fades the other. Lengths far
from the others of their group (chance runaways) are pulled in before the mean is taken; the level is the prompt's, not
theirs.

Memory: 24 bytes of arrays for each prompt and a dictionary from an 8-byte hash of its key to its row. At most
``most_prompts`` are kept; when they are too many, the tenth that was seen longest ago goes.

Invariants: a prompt has one entry, however often it is in the data or in a step; the same observations give the same
entries; two keys share an entry only if their 64-bit hashes collide (1e6 prompts: a chance of 3e-8).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: What a pass of a prompt counts once it has been seen again: policies drift, and one run of eight says a lot already.
DECAY = 0.5
#: Prompts kept: the largest data sets in use, in under 200 MB.
MOST_PROMPTS = 1_000_000
#: Share that is dropped when there are too many, so that this is rare.
DROPPED = 0.1
#: Rows to begin with, and by how much the arrays grow.
FIRST_ROWS, GROWTH = 1024, 1.5

_COLUMNS: dict[str, Any] = {
    "key": np.uint64,
    "level": np.float32,
    "weight": np.float32,
    "runs": np.float32,
    "step": np.int32,
}


class Entries(NamedTuple):
    """What is known of some prompts, [G] each; of a prompt that is not known weight is 0 and the rest means nothing.

    Attributes:
        level: mean log length in tokens.
        weight: responses that the level rests on, older passes decayed.
        runs: how many of them ran away.
        step: training step of the last run.
    """

    level: Floats
    weight: Floats
    runs: Floats
    step: NDArray[np.int64]

    @property
    def known(self) -> NDArray[np.bool_]:
        return self.weight > 0


class PromptHistory:
    """Entries by prompt key (module docstring).

    Args:
        most_prompts: how many are kept.
    """

    def __init__(self, most_prompts: int = MOST_PROMPTS) -> None:
        if most_prompts < 1:
            raise ValueError(f"most_prompts must be at least 1, got {most_prompts}")
        self.most_prompts = most_prompts
        self._row: dict[int, int] = {}
        self._columns = _columns(0)

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, key: str) -> bool:
        return hashed(key) in self._row

    def look_up(self, keys: Sequence[str]) -> Entries:
        """What is known of these prompts, in order."""
        rows = np.array([self._row.get(hashed(key), -1) for key in keys], dtype=np.int64)
        known = rows >= 0
        if not self._row:
            nothing = np.zeros(rows.size)
            return Entries(nothing, nothing, nothing, np.zeros(rows.size, dtype=np.int64))
        level, weight, runs, step = (self._columns[name][rows] for name in ("level", "weight", "runs", "step"))
        return Entries(
            np.where(known, level, 0.0).astype(np.float64),
            np.where(known, weight, 0.0).astype(np.float64),
            np.where(known, runs, 0.0).astype(np.float64),
            np.where(known, step, 0).astype(np.int64),
        )

    def add(
        self,
        step: int,
        keys: Sequence[str],
        level: Floats,
        weight: Floats,
        runs: Floats,
        new_pass: NDArray[np.bool_],
    ) -> None:
        """Take in one run of each prompt, in order.

        Args:
            step: training step it ran in; older steps (of an earlier run) may be negative.
            level: mean log length, [G].
            weight: responses that tell it, [G]; a prompt of which nothing was seen has 0 and is left out.
            runs: responses that ran away, [G].
            new_pass: whether the prompt was drawn anew, [G]; False where a cut run is generated again.
        """
        columns = self._columns
        values = zip(level.tolist(), weight.tolist(), runs.tolist(), new_pass.tolist(), strict=True)
        for key, (value, responses, away, anew) in zip(keys, values, strict=True):
            if responses <= 0:
                continue
            code = hashed(key)
            row = self._row.get(code)
            keep = DECAY if anew else 1.0
            if row is None:
                row = self._new_row(code)
                columns = self._columns
            old = keep * float(columns["weight"][row])
            total = old + responses
            columns["level"][row] = (old * float(columns["level"][row]) + responses * value) / total
            columns["weight"][row] = total
            columns["runs"][row] = keep * float(columns["runs"][row]) + away
            columns["step"][row] = step

    def shift_steps(self, by: int) -> None:
        """Move the origin of steps: those of an earlier run lie before this one's first."""
        self._columns["step"][: len(self)] += by

    # ---- state ----------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The entries as columns of equal length, to be saved."""
        return {name: column[: len(self)].copy() for name, column in self._columns.items()}

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of :meth:`arrays`; the newest ``most_prompts`` of what it is given.

        Raises:
            ValueError: a column that is missing, columns of different lengths, or numbers that no history has.
        """
        missing = [name for name in _COLUMNS if name not in arrays]
        if missing:
            raise ValueError(f"a prompt history needs the columns {', '.join(_COLUMNS)}, got none for {missing[0]}")
        size = arrays["key"].size
        for name in _COLUMNS:
            if arrays[name].shape != (size,):
                raise ValueError(f"column {name} must have {size} entries, got shape {arrays[name].shape}")
        level, weight = arrays["level"], arrays["weight"]
        if not (np.isfinite(level).all() and np.isfinite(weight).all() and (weight > 0).all()):
            raise ValueError("levels and weights must be finite, and weights positive")
        keep = np.argsort(arrays["step"], kind="stable")[-self.most_prompts :]
        keys = arrays["key"].astype(np.uint64)[keep]
        if np.unique(keys).size != keys.size:
            raise ValueError("every prompt must have one entry, some have several")
        self._columns = {name: arrays[name].astype(kind)[keep] for name, kind in _COLUMNS.items()}
        self._row = {code: row for row, code in enumerate(keys.tolist())}

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _new_row(self, code: int) -> int:
        if len(self._row) >= self.most_prompts:
            self._drop_oldest()
        row = len(self._row)
        if row == self._columns["key"].size:
            size = min(self.most_prompts, max(FIRST_ROWS, int(GROWTH * row)))
            for name, column in _columns(size).items():
                column[:row] = self._columns[name]
                self._columns[name] = column
        self._columns["key"][row] = code
        for name in ("level", "weight", "runs"):
            self._columns[name][row] = 0.0
        self._row[code] = row
        return row

    def _drop_oldest(self) -> None:
        kept = self.arrays()
        count = max(1, int(DROPPED * self.most_prompts))
        newest = np.sort(np.argsort(kept["step"], kind="stable")[count:])
        self._columns = {name: column[newest] for name, column in kept.items()}
        self._row = {code: row for row, code in enumerate(self._columns["key"].tolist())}


def hashed(key: str) -> int:
    """64 bits that stand for a prompt's key, the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _columns(size: int) -> dict[str, NDArray[Any]]:
    return {name: np.zeros(size, dtype=kind) for name, kind in _COLUMNS.items()}
