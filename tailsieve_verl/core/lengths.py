"""Lengths seen over the last steps: what was consumed, and what whole fresh pools would have given.

Bounded: it keeps the last ``window`` responses of each kind, which is what a bias figure needs to be current.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from tailsieve_verl.core.bias import LengthBias, length_bias
from tailsieve_verl.core.plan import StepObservation

# 99th percentiles need some ten thousand responses to be steady to a few percent; more would lag behind the policy.
DEFAULT_WINDOW = 20_000


class LengthMonitor:
    """Feeds :func:`~tailsieve_verl.core.bias.length_bias` from step observations."""

    def __init__(self, max_tokens: int | None = None, window: int = DEFAULT_WINDOW) -> None:
        self._max_tokens = max_tokens
        self._consumed: deque[int] = deque(maxlen=window)
        self._fresh: deque[tuple[int, bool]] = deque(maxlen=window)

    def add(self, observation: StepObservation) -> None:
        """Count a step: its batch, and its fresh pool with stragglers right-censored."""
        for group in observation.groups:
            if group.status == "trained":
                self._consumed.extend(group.tokens)
            if group.route == "fresh" and group.status != "failed":
                self._fresh.extend(zip(group.tokens, group.complete, strict=True))

    def bias(self) -> LengthBias | None:
        """The bias over the window; ``None`` before the first fresh pool."""
        if not self._consumed or not self._fresh:
            return None
        lengths, complete = zip(*self._fresh, strict=True)
        return length_bias(list(self._consumed), lengths, complete, self._max_tokens)

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": list(self._consumed), "fresh": [[length, bool(done)] for length, done in self._fresh]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._consumed.clear()
        self._consumed.extend(state["consumed"])
        self._fresh.clear()
        self._fresh.extend(_pairs(state["fresh"]))


def _pairs(rows: Iterable[Any]) -> Iterable[tuple[int, bool]]:
    return ((int(length), bool(done)) for length, done in rows)
