"""The prompt stream: verl's dataloader, one prompt at a time, each with a serial number and a stable identity.

Invariants
    * The stream is the one plain verl would train on: its dataloader's order, less the remainder of each epoch that
      fills no batch of N and that verl's ``drop_last`` drops.
    * A drawn row is kept until it is trained or dropped, and travels with the checkpoint until then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tailsieve_verl.errors import UserError

Row = dict[str, Any]
"""One dataloader fetch of a single prompt: column -> tensor or array of length 1."""


class EmptyStreamError(RuntimeError):
    """The dataloader yielded nothing in a whole epoch."""


class PromptStream:
    """Draws rows from an iterable dataloader of batch size 1, epoch after epoch.

    Args:
        dataloader: gives a fresh iterator for each epoch.
        n_groups: N; an epoch gives a multiple of N prompts if the dataloader knows its length, else all it yields.
    """

    def __init__(self, dataloader: Iterable[Row], n_groups: int) -> None:
        self._dataloader = dataloader
        self._per_epoch, self._remainder = _epoch(dataloader, n_groups)
        self._iterator: Iterator[Row] | None = None
        self._position = 0
        self._serial = 0
        self.rows: dict[int, Row] = {}

    def draw(self, count: int) -> list[int]:
        """Draw ``count`` prompts; their rows are in :attr:`rows` under the returned serial numbers."""
        serials = []
        for _ in range(count):
            self.rows[self._serial] = self._next_row()
            serials.append(self._serial)
            self._serial += 1
        return serials

    def release(self, keep: Iterable[int]) -> None:
        """Forget all rows but those of ``keep``."""
        self.rows = {serial: self.rows[serial] for serial in keep}

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data; the rows are saved apart (they may hold tensors)."""
        return {"serial": self._serial, "position": self._position}

    def load_state_dict(self, state: dict[str, Any], rows: dict[int, Row]) -> None:
        """Continue after a checkpoint; the dataloader itself is restored by verl."""
        self._serial, self._position = state["serial"], state["position"]
        self.rows = dict(rows)
        self._iterator = None

    def _next_row(self) -> Row:
        if self._position == self._per_epoch:
            # Run the epoch out, so that the dataloader's own state is at its end too.
            iterator = self._iterator or iter(self._dataloader)
            for _ in range(self._remainder + 1):
                next(iterator, None)
            self._iterator, self._position = None, 0
        for _ in range(2):  # after a resume at the end of an epoch the first iterator may be exhausted already
            if self._iterator is None:
                self._iterator = iter(self._dataloader)
            row = next(self._iterator, None)
            if row is not None:
                self._position += 1
                return row
            self._iterator, self._position = None, 0
        raise EmptyStreamError("the training dataloader yields no prompts")


def _epoch(dataloader: Iterable[Row], n_groups: int) -> tuple[int | None, int]:
    """Prompts used and skipped per epoch; ``None`` used means all, where the length is not known."""
    try:
        length = len(dataloader)  # type: ignore[arg-type]
    except TypeError:  # a sampler without a length
        return None, 0
    return length // n_groups * n_groups, length % n_groups


def _stable(value: Any) -> Any:
    """JSON for what chat messages may hold: the content of images and arrays, never their address."""
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        return value.tolist()
    if hasattr(value, "tobytes") or isinstance(value, bytes | bytearray):  # an image, or its file
        data = value.tobytes() if hasattr(value, "tobytes") else value
        return hashlib.blake2b(data, digest_size=12).hexdigest()
    return type(value).__name__


def prompt_key(row: Mapping[str, Any]) -> str:
    """Stable identity of a prompt across epochs, resumes and runs.

    The dataset index where the data has one (``extra_info.index``), else a hash of the chat messages; never verl's uid,
    which is new at every fetch.
    """
    source = str(_first(row, "data_source", ""))
    info = _first(row, "extra_info", None)
    index = info.get("index") if isinstance(info, Mapping) else None
    if index is not None:
        return f"{source}/{info.get('split', '')}/{index}"
    return f"{source}#{content_hash(_first(row, 'raw_prompt', ''))}"


def content_hash(messages: Any) -> str:
    """The content of chat messages in 24 characters, the same in every process."""
    text = json.dumps(messages, sort_keys=True, default=_stable, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def merge(rows: list[Row]) -> Row:
    """One batch of several single-prompt rows, column by column (tensors and arrays of one kind each).

    Raises:
        UserError: rows with other columns than the first; a column that only some have would be lost.
    """
    import numpy as np
    import torch

    for row in rows:
        if other := row.keys() ^ rows[0].keys():
            raise UserError(
                f"the data set gives the column {min(other)} to some prompts only; give every row the same columns."
            )
    merged: Row = {}
    for column in rows[0]:
        parts = [row[column] for row in rows]
        merged[column] = torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts)
    return merged


def sessions_of(row: Mapping[str, Any], default: int) -> int:
    """Responses of a group: verl's per-prompt override, or rollout.n."""
    return int(_first(row, "__rollout_n__", default))


def _first(row: Mapping[str, Any], column: str, default: Any) -> Any:
    return row[column][0] if column in row else default
