"""The stream of prompts of a simulated run: how long each response of each prompt is.

Invariants
    * A response's length depends on the seed, its prompt's place in the stream, and how often the prompt was launched
      before: never on the policy. Policies therefore see the same stream, and a cut prompt is re-rolled as in a run.
    * The stream passes over a data set: the same prompts come again in every epoch, in another order.
    * Lengths are whole tokens in 1..cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.synthetic import LengthModel
from tailsieve_verl.traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 1024  # prompts drawn at once; one random generator each would take longer than the simulation


class Workload(Protocol):
    """What a simulated rollout asks of a load."""

    n: int  # responses in a prompt group
    cap: int  # response limit in tokens

    def lengths(self, prompts: Sequence[int], attempts: Sequence[int], step: int) -> Floats:
        """Tokens of every response, [groups, n].

        Args:
            prompts: serial numbers in the stream, from 0.
            attempts: how often each was launched before.
            step: training step, from 1 (lengths may drift).
        """
        ...

    def prompt_tokens(self, prompts: Sequence[int]) -> Floats:
        """Prompt length of each group, [groups]."""
        ...

    def identity(self, prompts: Sequence[int]) -> Ints:
        """Row in the data set of each group, [groups]: the same in every epoch."""
        ...


class _Blocks:
    """Random rows by (serial, attempt), drawn in blocks and kept."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kept: dict[tuple[int, int], NDArray] = {}

    def take(self, prompts: Sequence[int], attempts: Sequence[int], draw) -> NDArray:  # type: ignore[no-untyped-def]
        """``draw(rng, serials [BLOCK]) -> [BLOCK, ...]`` gives a block; returns the rows asked for."""
        serials, tries = np.asarray(prompts, np.int64), np.asarray(attempts, np.int64)
        which = serials // BLOCK
        rows: NDArray | None = None
        for block, attempt in sorted(set(zip(which.tolist(), tries.tolist(), strict=True))):
            key = (block, attempt)
            if key not in self._kept:
                rng = np.random.default_rng((self._seed, 3, block, attempt))
                self._kept[key] = draw(rng, np.arange(block * BLOCK, (block + 1) * BLOCK))
            found = self._kept[key]
            if rows is None:
                rows = np.empty((serials.size, *found.shape[1:]), found.dtype)
            mine = (which == block) & (tries == attempt)
            rows[mine] = found[serials[mine] - block * BLOCK]
        assert rows is not None
        return rows


class _DataSet:
    """Rows of the data set by serial number: a permutation of its own for each epoch."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed
        self._orders: dict[int, Ints] = {}

    def rows(self, prompts: Sequence[int] | Ints) -> Ints:
        serials = np.asarray(prompts, np.int64)
        epochs, places = np.divmod(serials, self.size)
        rows = np.empty_like(serials)
        for epoch in np.unique(epochs).tolist():
            if epoch not in self._orders:
                self._orders[epoch] = np.random.default_rng((self._seed, 1, epoch)).permutation(self.size)
            mine = epochs == epoch
            rows[mine] = self._orders[epoch][places[mine]]
        return rows


class SyntheticWorkload:
    """Lengths drawn from a `LengthModel`.

    Args:
        model: distribution of lengths and the prompt's share in it.
        n: responses in a group.
        data_set: prompts in the data set; a pass over it is an epoch.
        drift: relative change of all lengths in a step, for example 0.01.
        prompt_length: tokens of every prompt.
    """

    def __init__(
        self,
        model: LengthModel,
        n: int = 8,
        *,
        seed: int = 0,
        data_set: int = 100_000,
        drift: float = 0.0,
        prompt_length: int = 0,
    ) -> None:
        if not -1 < drift < 1:
            raise UserError(f"drift={drift} is the relative change of lengths in a step; give for example 0.01.")
        if data_set < 1 or n < 1:
            raise UserError(f"a workload needs at least one prompt and one response, got {data_set} and {n}.")
        self.n, self.cap = n, model.cap
        self._model, self._drift, self._prompt_length = model, drift, prompt_length
        self._data = _DataSet(data_set, seed)
        self._levels = model.levels(np.random.default_rng((seed, 2)), data_set)
        self._lengths = _Blocks(seed)

    def lengths(self, prompts: Sequence[int], attempts: Sequence[int], step: int) -> Floats:
        tokens = self._lengths.take(prompts, attempts, self._draw)
        if self._drift:
            tokens = np.clip(np.rint(tokens * (1.0 + self._drift) ** (step - 1)), 1, self.cap)
        return tokens.astype(np.float64)

    def prompt_tokens(self, prompts: Sequence[int]) -> Floats:
        return np.full(len(prompts), float(self._prompt_length))

    def identity(self, prompts: Sequence[int]) -> Ints:
        return self._data.rows(prompts)

    def _draw(self, rng: np.random.Generator, serials: Ints) -> Ints:
        return self._model.draw(rng, self._levels[self._data.rows(serials)], self.n)


class TraceWorkload:
    """Lengths drawn from a trace: a group takes n of its prompt's recorded responses, without repeats if there are n.

    With several checkpoints the run passes through them in order, one after `steps_per_checkpoint` steps.

    Raises:
        UserError: a checkpoint at which some prompt has no response.
    """

    def __init__(
        self, trace: Trace, n: int = 8, *, seed: int = 0, steps_per_checkpoint: int | None = None, scale: float = 1.0
    ) -> None:
        self.n = n
        largest = int(trace.tokens.max())
        self.cap = max(1, round((trace.cap or largest) * scale))
        self._steps = steps_per_checkpoint
        samples = []
        count = len(trace.checkpoints) if steps_per_checkpoint else 1
        for checkpoint in range(count):
            mine = trace.checkpoint == checkpoint if steps_per_checkpoint else np.ones(trace.tokens.size, bool)
            samples.append(_padded(trace.prompt[mine], trace.tokens[mine] * scale, trace.prompt_ids))
        self._samples = samples
        self._data = _DataSet(len(trace.prompt_ids), seed)
        self._chosen = _Blocks(seed)
        self._prompt_tokens = np.zeros(len(trace.prompt_ids))
        if trace.prompt_tokens is not None:
            self._prompt_tokens[trace.prompt] = trace.prompt_tokens

    def lengths(self, prompts: Sequence[int], attempts: Sequence[int], step: int) -> Floats:
        at = min((step - 1) // self._steps, len(self._samples) - 1) if self._steps else 0
        values, counts = self._samples[at]
        rows = self._data.rows(prompts)
        chances = self._chosen.take(prompts, attempts, lambda rng, s: rng.random((s.size, 2, max(self.n, _WIDE))))
        return np.maximum(np.rint(values[rows[:, None], _pick(chances, counts[rows], self.n)]), 1.0)

    def prompt_tokens(self, prompts: Sequence[int]) -> Floats:
        return self._prompt_tokens[self._data.rows(prompts)]

    def identity(self, prompts: Sequence[int]) -> Ints:
        return self._data.rows(prompts)


_WIDE = 64  # recorded responses of a prompt among which a group draws without repeats


def _padded(prompt: Ints, tokens: Floats, labels: Sequence[str]) -> tuple[Floats, Ints]:
    """[prompts, most samples] lengths and [prompts] how many there are."""
    counts = np.bincount(prompt, minlength=len(labels))
    if counts.min() == 0:
        raise UserError(
            f"prompt {labels[int(np.argmin(counts))]} has no response at one of the checkpoints; "
            "choose one checkpoint, or leave out such prompts."
        )
    values = np.zeros((counts.size, int(counts.max())))
    order = np.argsort(prompt, kind="stable")
    values[prompt[order], np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)] = tokens[order]
    return values, counts


def _pick(chances: Floats, counts: Ints, n: int) -> Ints:
    """n sample numbers below `counts` for each group: distinct ones where there are n (a random order of the first 64
    after a random start), else with repeats."""
    again = (chances[:, 0, :n] * counts[:, None]).astype(np.int64)
    width = np.minimum(counts, chances.shape[2])
    order = chances[:, 1, :].copy()
    order[np.arange(order.shape[1])[None, :] >= width[:, None]] = np.inf
    start = (chances[:, 0, -1] * counts).astype(np.int64)
    distinct = (np.argsort(order, axis=1)[:, :n] + start[:, None]) % counts[:, None]
    return np.where((counts >= n)[:, None], distinct, again)
