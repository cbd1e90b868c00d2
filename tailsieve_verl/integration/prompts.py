"""The prompt stream: verl's dataloader, one prompt at a time, each with a serial number and a stable identity.

Invariants
    * The stream is the one plain verl would train on: per epoch the first ``steps_per_epoch * N`` prompts of the
      dataloader, in its order; the remainder that verl's ``drop_last`` drops is dropped here too.
    * A drawn row is kept until it is trained or dropped, and travels with the checkpoint until then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]
"""One dataloader fetch of a single prompt: column -> tensor or array of length 1."""


class EmptyStreamError(RuntimeError):
    """The dataloader yielded nothing in a whole epoch."""


class PromptStream:
    """Draws rows from an iterable dataloader of batch size 1, epoch after epoch.

    Args:
        dataloader: gives a fresh iterator for each epoch.
        prompts_per_epoch: prompts used of each epoch; the rest of an epoch is skipped.
    """

    def __init__(self, dataloader: Iterable[Row], prompts_per_epoch: int) -> None:
        self._dataloader = dataloader
        self._per_epoch = prompts_per_epoch
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
            for _ in self._iterator or iter(self._dataloader):
                pass  # run the epoch out, so that the dataloader's own state is at its end too
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
    messages = json.dumps(_first(row, "raw_prompt", ""), sort_keys=True, default=str, ensure_ascii=False)
    return f"{source}#{hashlib.blake2b(messages.encode(), digest_size=12).hexdigest()}"


def sessions_of(row: Mapping[str, Any], default: int) -> int:
    """Responses of a group: verl's per-prompt override, or rollout.n."""
    return int(_first(row, "__rollout_n__", default))


def _first(row: Mapping[str, Any], column: str, default: Any) -> Any:
    return row[column][0] if column in row else default
