"""Response lengths in memory: which prompt, which checkpoint, how many tokens.

Invariants of a `Trace`: at least one response; every length is 1 or more and no longer than the cap; the indices of
`prompt` and `checkpoint` run from 0 without gaps; the order of the responses is the order they were recorded in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.tails import scale_tail
from tailsieve_verl.errors import UserError


class Cells(NamedTuple):
    """The prompts of a trace at the checkpoints they have responses at, [M] each, by prompt and then checkpoint."""

    prompt: NDArray[np.int64]
    checkpoint: NDArray[np.int64]
    samples: NDArray[np.int64]
    mean: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace:
    """Response lengths, one entry per response.

    Attributes:
        tokens: response length in tokens, [K], each 1 or more.
        prompt: index of the response's prompt, [K], dense 0..I-1.
        checkpoint: index of the checkpoint that generated it, [K], dense 0..C-1 in order of training; all 0 when there
            is one.
        truncated: whether the response ran into its limit, [K].
        prompt_ids: label of each prompt, [I].
        checkpoints: label of each checkpoint, [C].
        prompt_tokens: prompt length in tokens, [K], 0 or more; None if unknown.
        cap: response limit in tokens, if known.
        name: what to call it in a table or a plot.
        step: training step of each response, [K]; only where the source says (a verl dump).
        remarks: what a reader of the numbers should know, a sentence each.

    Raises:
        ValueError: arrays that break an invariant above.
    """

    tokens: NDArray[np.int64]
    prompt: NDArray[np.int64]
    checkpoint: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    prompt_ids: tuple[str, ...]
    checkpoints: tuple[str, ...]
    prompt_tokens: NDArray[np.int64] | None = None
    cap: int | None = None
    name: str = ""
    step: NDArray[np.int64] | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("tokens", "prompt", "checkpoint", "prompt_tokens", "step"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, _integers(getattr(self, field), field))
        object.__setattr__(self, "truncated", np.asarray(self.truncated, dtype=np.bool_))
        object.__setattr__(self, "prompt_ids", tuple(self.prompt_ids))
        object.__setattr__(self, "checkpoints", tuple(self.checkpoints))
        if self.tokens.size == 0:
            raise ValueError("a trace must have at least one response, got none")
        for field in ("prompt", "checkpoint", "truncated", "prompt_tokens", "step"):
            array = getattr(self, field)
            if array is not None and array.shape != self.tokens.shape:
                raise ValueError(f"{field} must have one entry per response {self.tokens.shape}, got {array.shape}")
        if self.tokens.min() < 1:
            raise ValueError(f"tokens must be at least 1, got {self.tokens.min()}")
        if self.cap is not None and self.tokens.max() > self.cap:
            raise ValueError(f"tokens must not exceed the cap {self.cap}, got {self.tokens.max()}")
        if self.prompt_tokens is not None and self.prompt_tokens.min() < 0:
            raise ValueError(f"prompt_tokens must not be negative, got {self.prompt_tokens.min()}")
        for field, labels in (("prompt", self.prompt_ids), ("checkpoint", self.checkpoints)):
            index = getattr(self, field)
            used = np.bincount(index, minlength=len(labels)) if index.min() >= 0 else np.zeros(0)
            if used.size != len(labels) or not used.all():
                raise ValueError(f"{field} must use every index from 0 to {len(labels) - 1}, one per label")

    def __len__(self) -> int:
        return int(self.tokens.size)

    @property
    def prompts(self) -> int:
        """Number of prompts, I."""
        return len(self.prompt_ids)

    def select(self, mask: ArrayLike) -> Trace:
        """The responses where `mask` [K] holds, in the same order; prompts and checkpoints left without one go.

        Raises:
            ValueError: a mask of another shape, or one that keeps nothing.
        """
        keep = np.asarray(mask, dtype=np.bool_)
        if keep.shape != self.tokens.shape or not keep.any():
            raise ValueError(f"mask must be one bool per response {self.tokens.shape} and keep at least one")
        prompt, prompt_ids = _dense(self.prompt[keep], self.prompt_ids)
        checkpoint, checkpoints = _dense(self.checkpoint[keep], self.checkpoints)
        return replace(
            self,
            tokens=self.tokens[keep],
            prompt=prompt,
            checkpoint=checkpoint,
            truncated=self.truncated[keep],
            prompt_ids=prompt_ids,
            checkpoints=checkpoints,
            prompt_tokens=None if self.prompt_tokens is None else self.prompt_tokens[keep],
            step=None if self.step is None else self.step[keep],
        )

    def for_checkpoint(self, checkpoint: int) -> Trace:
        """The responses of one checkpoint (an index, negative from the end); prompts are numbered anew.

        Raises:
            IndexError: no such checkpoint.
        """
        index = range(len(self.checkpoints))[checkpoint]
        return self.select(self.checkpoint == index)

    def grouped(self, min_samples: int = 1, checkpoint: int | None = None) -> list[NDArray[np.int64]]:
        """The lengths of each prompt that has at least `min_samples`, in tokens, prompts in order of their index.

        Args:
            checkpoint: only this checkpoint (an index, negative from the end); None: all of them together.
        """
        chosen = np.ones(len(self), dtype=np.bool_)
        if checkpoint is not None:
            chosen = self.checkpoint == range(len(self.checkpoints))[checkpoint]
        tokens, prompt = self.tokens[chosen], self.prompt[chosen]
        order = np.argsort(prompt, kind="stable")
        counts = np.bincount(prompt, minlength=self.prompts)
        groups = np.split(tokens[order], np.cumsum(counts)[:-1])
        return [group for group, count in zip(groups, counts, strict=True) if count >= max(min_samples, 1)]

    def cells(self) -> Cells:
        """Number and mean of the responses of each prompt at each checkpoint that it has any at."""
        cell, count = np.unique(self._cell(), return_counts=True)
        total = np.bincount(np.searchsorted(cell, self._cell()), weights=self.tokens)
        prompt, checkpoint = np.divmod(cell, len(self.checkpoints))
        return Cells(prompt, checkpoint, count.astype(np.int64), total / count)

    def cube(self, repeats: int) -> NDArray[np.int64]:
        """Lengths in tokens, [I', S, R], for `core.tails.variance_shares`: the first `repeats` of each cell.

        I' are the prompts with at least `repeats` samples at every checkpoint, in order; the others are left out.

        Raises:
            UserError: no prompt has that many, or `repeats` is under 1.
        """
        cells, states = self.cells(), len(self.checkpoints)
        full = np.bincount(cells.prompt[cells.samples >= repeats], minlength=self.prompts) == states
        if repeats < 1 or not full.any():
            raise UserError(
                f"no prompt of trace {self.name!r} has {repeats} samples at each of its {states} checkpoints: "
                "choose fewer repeats or fewer checkpoints."
            )
        order = np.argsort(self._cell(), kind="stable")
        starts = (np.cumsum(cells.samples) - cells.samples)[full[cells.prompt]].reshape(-1, states)
        return self.tokens[order[starts[:, :, None] + np.arange(repeats)]]

    def with_tail(self, ratio: float) -> Trace:
        """The same responses with the lengths above the median stretched so that P90 / P50 is `ratio` (paper A.5).

        Lengths are rounded to whole tokens. The cap moves as a length does. The paper's weak, real and strong tails
        are 1.5, 3.547 and 6.

        Raises:
            UserError: a ratio that is not above 1, or lengths without a tail.
        """
        tokens: NDArray[np.float64] = self.tokens.astype(np.float64)
        try:
            scaled = scale_tail(tokens, ratio)
        except ValueError as error:
            raise UserError(f"the tail of trace {self.name!r} cannot be scaled: {error}.") from None
        cap = self.cap
        if cap is not None:
            median, p90 = np.percentile(tokens, [50, 90])
            stretched = median + (ratio - 1) * median / (p90 - median) * (cap - median)
            cap = max(int(np.rint(stretched if cap > median else cap)), int(np.rint(scaled.max())))
        return replace(self, tokens=np.rint(scaled).astype(np.int64), cap=cap)

    def _cell(self) -> NDArray[np.int64]:
        return self.prompt * len(self.checkpoints) + self.checkpoint


def make_trace(
    tokens: ArrayLike,
    prompt: Sequence[str] | None = None,
    checkpoint: Sequence[str] | None = None,
    *,
    order: Sequence[str] | None = None,
    truncated: ArrayLike | None = None,
    prompt_tokens: ArrayLike | None = None,
    cap: int | None = None,
    name: str = "",
    step: ArrayLike | None = None,
    remarks: tuple[str, ...] = (),
) -> Trace:
    """A trace from labels: prompts numbered by first appearance, checkpoints by `training_order`.

    Args:
        tokens: response lengths, [K]; an empty response counts as 1, its end token.
        prompt: label of each response's prompt, [K]; None: every response is a prompt of its own.
        checkpoint: label of each response's checkpoint, [K]; None: there is one.
        order: the checkpoints in order of training; None: by `training_order`.
        truncated: [K] bool; None: where the length is the cap, if there is one.
    """
    lengths = np.maximum(_integers(tokens, "tokens"), 1)
    if prompt is None:
        index, prompt_ids = np.arange(lengths.size), tuple(str(i) for i in range(lengths.size))
    else:
        index, prompt_ids = _label(prompt, tuple(dict.fromkeys(prompt)))
    checkpoints: tuple[str, ...]
    if checkpoint is None:
        state, checkpoints = np.zeros(lengths.size, dtype=np.int64), ("",)
    else:
        state, checkpoints = _label(checkpoint, training_order(dict.fromkeys(checkpoint)) if order is None else order)
    if truncated is None:
        truncated = lengths >= cap if cap is not None else np.zeros(lengths.size, dtype=np.bool_)
    return Trace(
        tokens=lengths,
        prompt=index,
        checkpoint=state,
        truncated=np.asarray(truncated, dtype=np.bool_),
        prompt_ids=prompt_ids,
        checkpoints=checkpoints,
        prompt_tokens=None if prompt_tokens is None else _integers(prompt_tokens, "prompt_tokens"),
        cap=cap,
        name=name,
        step=None if step is None else _integers(step, "step"),
        remarks=remarks,
    )


def training_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Checkpoint labels in order of training: by the last whole number in each, those without one last.

    "step_0" comes before "games_step_500", "checkpoint-21" before "checkpoint-105", and "final" after all; labels with
    the same number stay in the order given.
    """

    def key(label: str) -> tuple[bool, int]:
        numbers = re.findall(r"\d+", label)
        return (not numbers, int(numbers[-1]) if numbers else 0)

    return tuple(sorted(labels, key=key))


def _integers(values: ArrayLike, field: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{field} must be whole numbers with one axis, got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64, copy=False)


def _dense(index: NDArray[np.int64], labels: tuple[str, ...]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    used, dense = np.unique(index, return_inverse=True)
    return dense.astype(np.int64), tuple(labels[i] for i in used)


def _label(values: Sequence[str], labels: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    number = {label: i for i, label in enumerate(labels)}
    return np.array([number[value] for value in values], dtype=np.int64), tuple(labels)
