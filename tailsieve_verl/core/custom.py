"""What a user may put in the place of our own choices, beside a whole policy: where a pool deals its work, and in which
order the cut groups are carried. Each is asked for a choice that is checked before it is used.

Invariants
    * A placement chooses replicas inside the pool; which groups are in the pool is not its business.
    * A selector orders the groups that were cut, all of them. Which groups are cut follows from who has finished: a
      group that ends must be trained now, and one that has not cannot be, or a batch would miss its N complete groups.
      Carried groups beyond q are drained in the bulk pool, so the order decides who is isolated when q shrinks, and who
      shares a replica with whom.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tailsieve_verl.core.checks import as_count
from tailsieve_verl.core.plan import Decision, Granularity, GroupRecord, StepObservation
from tailsieve_verl.core.policy import OwnSplit, PolicyContext, check_split


@dataclass(frozen=True)
class PlacedGroup:
    """A prompt group to be placed: identity of its prompt across epochs, and n, its responses."""

    key: str
    sessions: int


class PoolPlacement(ABC):
    """Where each response of a pool first runs. The same groups must give the same slots in every process.

    Attributes:
        like: what predictions take it for, ``request`` (evenly dealt) or ``group`` (a group stays together).
    """

    like: ClassVar[Granularity] = "request"

    @abstractmethod
    def slots(self, groups: Sequence[PlacedGroup], replicas: int) -> Sequence[Sequence[int]]:
        """Replica inside the pool, 0..replicas-1, of every response: one row a group, one entry a response.

        Args:
            groups: the pool's groups; tail groups by falling tail signal, fresh ones in order of the stream.
            replicas: size of the pool, at least 1.
        """


class TailSelector(ABC):
    """In which order the groups that were cut are carried into the next step."""

    @abstractmethod
    def order(self, cut: Sequence[GroupRecord]) -> Sequence[int]:
        """Indices into ``cut``, each once: the first q of them are isolated in the next step's tail pool."""


class SplitPolicy(OwnSplit, ABC):
    """Base of a policy of the user's own: it only says which split comes next.

    Args:
        context: N, R and how the pools deal their work.
        q, m: split of the first step; (0, 0) is uniform.

    Raises:
        ValueError: (q, m) is no split of N groups on R replicas.
    """

    def __init__(self, context: PolicyContext, q: int = 0, m: int = 0) -> None:
        check_split(q, m, context.n_groups, context.replicas)
        self.context = context
        self.q, self.m = q, m
        self._reason = "start"

    @abstractmethod
    def decide(self, observation: StepObservation) -> tuple[int, int, str]:
        """The next step's q and m, and why in words.

        ``observation.plan`` is the plan that ran. It may be of another split than this policy's own: a change of q
        takes a step to arrive, and a callback may have overruled it.
        """

    def observe(self, observation: StepObservation) -> Decision:
        q, m, self._reason = self.decide(observation)
        q, m = as_count(q, "q", 0), as_count(m, "m", 0)  # numpy's whole numbers are no JSON
        check_split(q, m, self.context.n_groups, self.context.replicas)
        switched = (q, m) != (self.q, self.m)
        self.q, self.m = q, m
        return Decision(observation.plan.step, q, m, settled=True, switched=switched, reason=self._reason)

    def state_dict(self) -> dict[str, object]:
        """Plain JSON data; extend it with what ``decide`` remembers."""
        return {"q": self.q, "m": self.m, "reason": self._reason}

    def load_state_dict(self, state: dict[str, object]) -> None:
        q, m = state["q"], state["m"]
        assert isinstance(q, int)
        assert isinstance(m, int)
        check_split(q, m, self.context.n_groups, self.context.replicas)
        self.q, self.m, self._reason = q, m, str(state["reason"])


def checked_slots(placement: PoolPlacement, groups: Sequence[PlacedGroup], replicas: int) -> list[tuple[int, ...]]:
    """What a placement says, one row a group.

    Raises:
        ValueError: another number of rows or entries, or an entry outside of the pool.
    """
    rows = list(placement.slots(groups, replicas))
    if len(rows) != len(groups):
        raise ValueError(f"slots has {len(rows)} rows for {len(groups)} groups")
    checked = []
    for i, (row, group) in enumerate(zip(rows, groups, strict=True)):
        slots = tuple(as_count(slot, f"slots of group {i}", 0, replicas - 1) for slot in row)
        if len(slots) != group.sessions:
            raise ValueError(f"slots of group {i} has {len(slots)} entries for {group.sessions} responses")
        checked.append(slots)
    return checked


def checked_order(selector: TailSelector, cut: Sequence[GroupRecord]) -> list[int]:
    """What a selector says.

    Raises:
        ValueError: not every index of ``cut`` once.
    """
    order = [as_count(i, "order", 0, len(cut) - 1) for i in selector.order(cut)] if cut else []
    if sorted(order) != list(range(len(cut))):
        raise ValueError(f"order must hold every index of the {len(cut)} cut groups once, got {order[:20]}")
    return order
