"""Lengths over the last steps: what was consumed, and what whole fresh pools would have given.

    fresh pool of step t --complete responses----------------> reference
                         --cut at c tokens--> open --step t+1--> reference, completed

Invariants
    * Every response of a fresh pool enters the reference once, with weight one; one that was cut enters when its group
      has been regenerated, so that consumed and reference cover the same prompts.
    * A response cut at c tokens is completed by lengths above c: those of its own prompt's regeneration if there are
      any (long because of the prompt), else those of all recent responses (long by chance), else c itself.

Completing by the regenerated group as it is would call chance runaways unbiased although they were re-rolled away; a
survival curve over all responses would put the longest lengths at c, because the cut takes just the longest groups.
On simulated chance runaways this reports three quarters of the true shortening, on persistent loads about none.
Bounded: it keeps the last ``window`` responses of each kind. Of steps so large that fewer than four would fit, every
k-th prompt of the stream is looked at, the same ones on both sides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from tailsieve_verl.core.bias import LengthBias, length_bias
from tailsieve_verl.core.plan import StepObservation

# 99th percentiles need some ten thousand responses to be steady to a few percent; more would lag behind the policy.
DEFAULT_WINDOW = 20_000
# Steps that must fit into the window: a reference needs the step that cut a response and the one that completed it.
STEPS_IN_WINDOW = 4
# Values that stand for the pooled lengths above c: evenly spaced quantiles, enough for a mean and a 99th percentile.
POOLED_VALUES = 16


class LengthMonitor:
    """Feeds :func:`~tailsieve_verl.core.bias.length_bias` from step observations (module docstring)."""

    def __init__(self, max_tokens: int | None = None, window: int = DEFAULT_WINDOW) -> None:
        self._max_tokens = max_tokens
        self._consumed: deque[int] = deque(maxlen=window)
        self._reference: deque[tuple[float, float]] = deque(maxlen=window)  # length, weight
        self._open: list[tuple[int, int]] = []  # prompt, tokens reached

    def add(self, observation: StepObservation) -> None:
        """Count a step: its batch, the stragglers it regenerated, and its fresh pool."""
        every = self._every(observation)
        groups = [group for group in observation.groups if group.prompt % every == 0]
        regenerated: dict[int, list[int]] = {}
        for group in groups:
            if group.status == "trained":
                self._consumed.extend(group.tokens)
                if group.route in ("tail", "residual"):
                    regenerated[group.prompt] = list(group.tokens)
        if self._open:
            pooled = np.sort(np.fromiter(self._consumed, dtype=np.float64))
            for prompt, reached in self._open:
                self._complete(reached, regenerated.get(prompt, ()), pooled)
        self._open = []
        for group in groups:
            if group.route not in ("fresh", "placed") or group.status == "failed":
                continue
            for tokens, complete in zip(group.tokens, group.complete, strict=True):
                if complete:
                    self._reference.append((float(tokens), 1.0))
                else:
                    self._open.append((group.prompt, tokens))

    def _every(self, observation: StepObservation) -> int:
        """k, so that the batches of four steps fit into the window."""
        window = self._consumed.maxlen or DEFAULT_WINDOW
        responses = sum(len(group.tokens) for group in observation.groups if group.status == "trained")
        return max(1, -(-responses * STEPS_IN_WINDOW // window))

    def bias(self) -> LengthBias | None:
        """The bias over the window; ``None`` before the first complete responses."""
        if not self._consumed or not self._reference:
            return None
        lengths, weights = zip(*self._reference, strict=True)
        return length_bias(list(self._consumed), lengths, weights, self._max_tokens)

    def state_dict(self) -> dict[str, Any]:
        return {
            "consumed": list(self._consumed),
            "reference": [[length, round(weight, 6)] for length, weight in self._reference],
            "open": [list(entry) for entry in self._open],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._consumed.clear()
        self._consumed.extend(state["consumed"])
        self._reference.clear()
        self._reference.extend((length, weight) for length, weight in state["reference"])
        self._open = [(prompt, reached) for prompt, reached in state["open"]]

    def _complete(self, reached: int, own: Sequence[int], pooled: np.ndarray) -> None:
        values: Sequence[float] = [tokens for tokens in own if tokens > reached]
        if not values:
            above = pooled[np.searchsorted(pooled, reached, side="right") :]
            if above.size > POOLED_VALUES:
                above = np.quantile(above, (np.arange(POOLED_VALUES) + 0.5) / POOLED_VALUES)
            values = above.tolist() or [float(reached)]
        self._reference.extend((float(value), 1.0 / len(values)) for value in values)
