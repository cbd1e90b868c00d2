"""The ledger: which prompt is where, from the stream to the update batch, across steps.

    stream --draw--> in flight --trained--> done
                      |  ^  \\
                 cut  |  |   fail --> retry (front of the stream) --> dropped, after ``max_retries``
                      v  |
                    carried

Invariants, checked whenever a step is closed:
    * every drawn prompt is in exactly one place: drawn = trained + carried + to retry + dropped (nothing in flight);
    * a prompt can be trained only while in flight, and leaves flight by it: so once, ever;
    * a batch has exactly the planned number of groups;
    * a prompt that was cut once is never cut again: on its next launch it is in a set that always finishes.

Prompts are serial numbers in the order they were drawn. The ledger holds no payload and knows no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tailsieve_verl.core.plan import Route, StepPlan


class LedgerError(RuntimeError):
    """An accounting invariant was about to break; the state before the offending call is kept."""


@dataclass(frozen=True)
class Launch:
    """A prompt to launch, and why."""

    prompt: int
    route: Route


class Ledger:
    """Accounts for every prompt of the stream (see the module docstring).

    Args:
        max_retries: how often a failing prompt is launched again before it is dropped.
    """

    def __init__(self, max_retries: int = 2) -> None:
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative, got {max_retries}")
        self.max_retries = max_retries
        self.drawn = 0
        self.trained = 0
        self.dropped = 0
        self._carried: list[int] = []
        self._retry: list[int] = []
        self._failures: dict[int, int] = {}
        self._was_cut: set[int] = set()
        self._flight: dict[int, Route] = {}
        self._plan: StepPlan | None = None

    @property
    def carried(self) -> tuple[int, ...]:
        """Prompts waiting for the next step's tail pool, strongest tail signal first."""
        return tuple(self._carried)

    @property
    def waiting(self) -> tuple[int, ...]:
        """All prompts that a checkpoint must keep: carried ones, and failed ones to launch again."""
        return (*self._carried, *self._retry)

    def to_draw(self, plan: StepPlan) -> int:
        """Prompts the shell must draw from the stream for ``plan``; failed prompts go first."""
        return max(0, plan.counts.fresh + plan.counts.placed - len(self._retry))

    def preview(self, plan: StepPlan, drawn: Sequence[int]) -> list[Launch]:
        """What :meth:`open` would launch, for choosing which of the fresh groups are to be ``placed``."""
        return self._launches(plan, list(drawn), ())[0]

    def open(self, plan: StepPlan, drawn: Sequence[int], placed: Collection[int] = ()) -> list[Launch]:
        """Start a step: carried prompts by tail signal, then failed ones, then ``drawn``.

        Args:
            plan: the step's plan, made for exactly the carried prompts there are.
            drawn: ``to_draw(plan)`` fresh serial numbers.
            placed: those of the fresh prompts that run in the tail pool at once, ``counts.placed`` of them.

        Raises:
            LedgerError: if a step is open, or the plan does not fit what is carried, drawn and placed.
        """
        counts = plan.counts
        if self._plan is not None:
            raise LedgerError(f"step {self._plan.step} is still open, cannot open step {plan.step}")
        if counts.tail + counts.residual != len(self._carried):
            raise LedgerError(
                f"step {plan.step} plans {counts.tail} tail and {counts.residual} residual groups "
                f"for {len(self._carried)} carried ones"
            )
        if len(drawn) != self.to_draw(plan):
            raise LedgerError(f"step {plan.step} needs {self.to_draw(plan)} fresh prompts, got {len(drawn)}")
        launches, retry = self._launches(plan, self._checked_order(drawn), placed)
        if sum(launch.route == "placed" for launch in launches) != counts.placed or len(placed) != counts.placed:
            raise LedgerError(f"step {plan.step} plans {counts.placed} placed groups, got prompts {sorted(placed)}")
        self.drawn += len(drawn)
        self._carried, self._retry = [], retry
        self._plan = plan
        self._flight = {launch.prompt: launch.route for launch in launches}
        return launches

    def _launches(self, plan: StepPlan, drawn: list[int], placed: Collection[int]) -> tuple[list[Launch], list[int]]:
        """Launches of a step, and the failed prompts that wait on."""
        counts = plan.counts
        launches = [Launch(p, "tail") for p in self._carried[: counts.tail]]
        launches += [Launch(p, "residual") for p in self._carried[counts.tail :]]
        room = counts.fresh + counts.placed
        again, retry = self._retry[:room], self._retry[room:]
        # Groups that must finish may not exceed what the batch still needs: the others wait one more step.
        must = [p for p in again if p in self._was_cut][: counts.fresh_needed]
        launches += [Launch(p, "residual") for p in must]
        postponed = [p for p in again if p in self._was_cut and p not in must]
        fresh = [p for p in again if p not in self._was_cut] + drawn
        launches += [Launch(p, "placed" if p in placed else "fresh") for p in fresh]
        return launches, postponed + retry

    def extra(self, count: int, *, must_finish: bool) -> tuple[list[Launch], int]:
        """Replace ``count`` failed groups inside the open step.

        Returns:
            launches of prompts waiting to be retried, and how many more to draw (then pass them to :meth:`draw_extra`).
        """
        if self._plan is None:
            raise LedgerError("no step is open")
        again, self._retry = self._retry[:count], self._retry[count:]
        launches = [Launch(p, "residual" if must_finish or p in self._was_cut else "fresh") for p in again]
        self._flight.update({launch.prompt: launch.route for launch in launches})
        return launches, count - len(launches)

    def draw_extra(self, drawn: Sequence[int], *, must_finish: bool) -> list[Launch]:
        """Put freshly drawn replacements in flight."""
        if self._plan is None:
            raise LedgerError("no step is open")
        launches = [Launch(p, "residual" if must_finish else "fresh") for p in self._note_drawn(drawn)]
        self._flight.update({launch.prompt: launch.route for launch in launches})
        return launches

    def fail(self, prompt: int) -> bool:
        """Take a failed prompt out of flight. Returns whether it will be tried again (else it is dropped)."""
        self._leave_flight(prompt)
        self._failures[prompt] = self._failures.get(prompt, 0) + 1
        if self._failures[prompt] > self.max_retries:
            self.dropped += 1
            self._forget(prompt)
            return False
        self._retry.append(prompt)
        return True

    def close(self, trained: Sequence[int], cut: Sequence[int]) -> None:
        """End the step.

        Args:
            trained: the prompts of the update batch.
            cut: the stragglers, strongest tail signal first.

        Raises:
            LedgerError: if an invariant of the module docstring would break.
        """
        plan = self._plan
        if plan is None:
            raise LedgerError("no step is open")
        if len(trained) != plan.counts.batch or len(set(trained)) != len(trained):
            raise LedgerError(f"step {plan.step} needs {plan.counts.batch} distinct groups, got {len(trained)}")
        twice = [p for p in cut if p in self._was_cut]
        if twice:
            raise LedgerError(f"step {plan.step} cuts prompts {twice} a second time")
        for prompt in trained:
            self._leave_flight(prompt)
            self._forget(prompt)
        for prompt in cut:
            self._leave_flight(prompt)
            self._was_cut.add(prompt)
        if self._flight:
            raise LedgerError(f"step {plan.step} leaves prompts {sorted(self._flight)} unaccounted for")
        self.trained += len(trained)
        self._carried = list(cut)
        self._plan = None
        places = self.trained + len(self._carried) + len(self._retry) + self.dropped
        if self.drawn != places:
            raise LedgerError(f"{self.drawn} prompts were drawn but {places} are accounted for after step {plan.step}")

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON data; only between steps."""
        if self._plan is not None:
            raise LedgerError(f"cannot save while step {self._plan.step} is open")
        return {
            "drawn": self.drawn,
            "trained": self.trained,
            "dropped": self.dropped,
            "carried": list(self._carried),
            "retry": list(self._retry),
            "failures": {str(p): count for p, count in self._failures.items()},
            "was_cut": sorted(self._was_cut),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn, self.trained, self.dropped = state["drawn"], state["trained"], state["dropped"]
        self._carried, self._retry = list(state["carried"]), list(state["retry"])
        self._failures = {int(p): count for p, count in state["failures"].items()}
        self._was_cut = set(state["was_cut"])
        self._flight, self._plan = {}, None

    def _note_drawn(self, drawn: Iterable[int]) -> list[int]:
        prompts = self._checked_order(drawn)
        self.drawn += len(prompts)
        return prompts

    def _checked_order(self, drawn: Iterable[int]) -> list[int]:
        prompts = list(drawn)
        for expected, prompt in enumerate(prompts, start=self.drawn):
            if prompt != expected:
                raise LedgerError(f"prompt {prompt} was drawn out of order, expected {expected}")
        return prompts

    def _leave_flight(self, prompt: int) -> None:
        if self._flight.pop(prompt, None) is None:
            raise LedgerError(f"prompt {prompt} is not in flight: it was trained, cut or failed already")

    def _forget(self, prompt: int) -> None:
        self._failures.pop(prompt, None)
        self._was_cut.discard(prompt)
