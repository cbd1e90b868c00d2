"""Calls the hooks of a run's callbacks, and keeps the run safe from them.

Invariants
    * Whatever a hook does, the run goes on: one that raises, or does not return before the deadline, is named in a
      warning, and its callback is switched off for the rest of the process. Its pins end with it, for nobody could take
      them back. With ``strict`` the run ends instead, with :class:`CallbackError`.
    * A callback that was switched off can ask for nothing any more, also from a thread that it left behind.
    * Nonsense is refused by a sentence and changes nothing: a request out of range, a return value, a state that is no
      JSON. The callback stays on.
    * A hook that is not overridden costs nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from tailsieve_verl.callbacks.base import Callback
from tailsieve_verl.core.plan import Decision
from tailsieve_verl.core.steering import Kind, Request
from tailsieve_verl.integration.deadline import RolloutStalledError, within

logger = logging.getLogger(__name__)


class CallbackError(RuntimeError):
    """A callback failed and ``callbacks_strict`` is set; the message names it."""


class Steering(Protocol):
    """Where requests go: the policy (:class:`~tailsieve_verl.core.steering.SteeredPolicy`)."""

    def request(self, request: Request) -> None: ...
    def release(self, by: str) -> bool: ...


def names_of(callbacks: Sequence[Callback]) -> list[str]:
    """Names by class; the second of a class is called ``Name#2``."""
    names: list[str] = []
    for callback in callbacks:
        name = type(callback).__name__
        earlier = sum(known.split("#")[0] == name for known in names)
        names.append(f"{name}#{earlier + 1}" if earlier else name)
    return names


class CallbackRunner:
    """The callbacks of a run (module docstring).

    Args:
        callbacks: in the order of the configuration.
        steering: takes their requests.
        deadline_s: longest that a hook may take.
        strict: a failure ends the run.
    """

    def __init__(
        self, callbacks: Sequence[Callback], steering: Steering, *, deadline_s: float = 10.0, strict: bool = False
    ) -> None:
        self._entries = [
            _Entry(name, callback, steering, strict)
            for name, callback in zip(names_of(callbacks), callbacks, strict=True)
        ]
        self._in_order = sorted(self._entries, key=lambda entry: entry.callback.observer)  # stable
        self._steering, self._deadline_s, self._strict = steering, deadline_s, strict
        self._states: dict[str, Any] = {}
        self._where = "before the first step"
        self._started = False
        self.seconds = 0.0

    def has(self, kind: type[Callback]) -> bool:
        """Whether a callback of a class is at work."""
        return any(isinstance(entry.callback, kind) and not entry.off for entry in self._entries)

    def at_step(self, step: int) -> None:
        """The step that messages are to name; restarts the count of ``seconds`` spent in hooks."""
        self._where, self.seconds = f"in step {step}", 0.0

    def emit(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every callback; its arguments are made read-only."""
        given = tuple(_read_only(argument) for argument in arguments)
        for entry in self._in_order:
            self._call(entry, hook, *given)

    def emit_decision(self, decision: Decision, amend: Callable[..., Decision]) -> Decision:
        """Call ``on_decision``; after each callback that asks for something the decision is amended.

        Args:
            amend: returns it with all requests so far, see
                :meth:`~tailsieve_verl.integration.guarded.GuardedPolicy.amend`.
        """
        steering = [entry for entry in self._in_order if not entry.callback.observer]
        for entry in steering:
            entry.asked = False
            self._call(entry, "on_decision", _read_only(decision))
            if entry.asked:
                decision = amend(decision, end=False)
        decision = amend(decision) if steering else decision
        for entry in self._in_order[len(steering) :]:
            self._call(entry, "on_decision", _read_only(decision))
        return decision

    def start(self, info: Any) -> None:
        """The run begins: ``on_run_start``, then ``on_load`` with what a checkpoint held."""
        self._started = True
        self.emit("on_run_start", info)
        for entry in self._in_order:
            if entry.name in self._states:
                self._call(entry, "on_load", _read_only(self._states[entry.name]))
        gone = set(self._states) - {entry.name for entry in self._entries}
        if gone:
            logger.warning(
                "tailsieve: the checkpoint holds state of callbacks that are not configured: %s", _list(gone)
            )

    def end(self, failure: str | None) -> None:
        """The run is over, if it had begun; a failure of its own is not to be hidden by one of a callback."""
        if not self._started:
            return
        try:
            self.emit("on_run_end", failure)
        except CallbackError:
            if failure is None:
                raise
            logger.warning("tailsieve: a callback failed at the end of a run that failed", exc_info=True)

    def state_dict(self) -> dict[str, Any]:
        """State by name, of those that have any."""
        states = {}
        for entry in self._in_order:
            state = self._call(entry, "on_save")
            if state is None:
                continue
            try:
                if not isinstance(state, Mapping):
                    raise TypeError(f"a {type(state).__name__} is no mapping")
                states[entry.name] = json.loads(json.dumps(dict(state), allow_nan=False))
            except (TypeError, ValueError) as error:
                self._refuse(entry, f"what on_save returned is not plain JSON data ({error}) and is not saved")
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Keep saved states until :meth:`start`."""
        self._states = dict(states)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _call(self, entry: _Entry, hook: str, *arguments: Any) -> Any:
        method = getattr(entry.callback, hook)
        if entry.off or getattr(type(entry.callback), hook) is getattr(Callback, hook):
            return None
        start = time.monotonic()
        try:
            value, error = within(self._deadline_s, hook, lambda: _outcome(method, arguments))
        except RolloutStalledError:
            self._fail(entry, hook, f"it had not returned after {self._deadline_s:g} s (callback_deadline_s)", None)
            return None
        finally:
            self.seconds += time.monotonic() - start
        if entry.refused is not None:
            raise entry.refused
        if error is not None:
            self._fail(entry, hook, f"{type(error).__name__}: {error}", error)
            return None
        if value is not None and hook != "on_save" and hook not in entry.told:
            entry.told.add(hook)
            kind = type(value).__name__
            self._refuse(entry, f"{hook} returned a {kind}, which is ignored; ask for changes through self.run")
        return value

    def _fail(self, entry: _Entry, hook: str, what: str, error: BaseException | None) -> None:
        entry.off = True
        message = f"callback {entry.name} failed in {hook} {self._where}: {what}"
        if self._strict:
            raise CallbackError(f"{message}.") from error
        held = " and its pin ends" if self._steering.release(entry.name) else ""
        logger.warning("tailsieve: %s; it is switched off%s", message, held, exc_info=error)

    def _refuse(self, entry: _Entry, what: str) -> None:
        if self._strict:
            raise CallbackError(f"callback {entry.name} {self._where}: {what}.")
        logger.warning("tailsieve: callback %s %s: %s", entry.name, self._where, what)


class _Entry:
    """A callback with its name and its handle (:class:`~tailsieve_verl.callbacks.base.RunHandle`)."""

    def __init__(self, name: str, callback: Callback, steering: Steering, strict: bool) -> None:
        self.name, self.callback = name, callback
        self._steering, self._strict = steering, strict
        self.off = self.asked = False
        self.refused: CallbackError | None = None
        self.told: set[str] = set()
        callback.run = self

    def pin(self, *, q: int | None = None, m: int | None = None, why: str) -> bool:
        return self._ask("pin", why, q, m)

    def uniform(self, *, why: str) -> bool:
        return self._ask("uniform", why)

    def unpin(self) -> bool:
        return self._ask("unpin", "")

    def veto(self, *, why: str) -> bool:
        return self._ask("veto", why)

    def _ask(self, kind: Kind, why: str, q: int | None = None, m: int | None = None) -> bool:
        if self.off:
            return False
        try:
            if self.callback.observer:
                raise ValueError("an observer only watches; set observer = False to ask for changes")
            self._steering.request(Request(self.name, kind, str(why), q, m))
        except ValueError as error:
            message = f"callback {self.name} asks for a {kind}, which is refused: {error}"
            if self._strict:
                self.refused = CallbackError(f"{message}.")
                raise self.refused from None
            logger.warning("tailsieve: %s", message)
            return False
        self.asked = True
        return True


def _outcome(method: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """What a hook returned or raised; also SystemExit, for a callback has no say in when a run ends."""
    try:
        return method(*arguments), None
    except BaseException as error:
        return None, error


def _read_only(value: Any) -> Any:
    """Plans, observations and tuples are frozen; mappings, and the one inside a decision, are wrapped."""
    if isinstance(value, Decision):
        extra: Any = MappingProxyType(dict(value.extra))
        return replace(value, extra=extra)
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
