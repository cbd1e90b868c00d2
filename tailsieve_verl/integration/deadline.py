"""Deadlines for calls that verl makes without one: a run ends with a named error instead of hanging in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class RolloutStalledError(TimeoutError):
    """Something that a step waits for did not come before its deadline; the message says what and how long."""


class ReplicaDiedError(RuntimeError):
    """A rollout replica or its engine is gone; the message names it."""


def within(seconds: float, what: str, call: Callable[[], T]) -> T:
    """Run ``call``; raise :class:`RolloutStalledError` if it has not returned after ``seconds``.

    The call runs in a daemon thread that is abandoned at the deadline: the process is about to end with the error.
    """
    result: list[T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as exc:  # handed over to the caller
            error.append(exc)

    thread = threading.Thread(target=run, name=f"tailsieve {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise RolloutStalledError(f"{what} did not finish within {seconds:g} s")
    if error:
        raise error[0]
    return result[0]
