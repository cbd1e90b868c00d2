"""One rollout step as the router sees it: who has finished, when to cut, what is missing.

    launched --generated--> generated --stored--> stored        (selected groups: the update batch)
        |  \\
       cut   failed

Invariants
    * Groups on the tail, residual and placed routes are never cut.
    * The cut selects the earliest generated fresh groups, exactly as many as the batch lacks, and cuts all the others.
    * The cut waits for every residual group: they share replicas with the stragglers that will be aborted.
    * After the cut the selection changes only by failure, and then more groups are called for.

The tracker is pure: times are passed in. It serves the live router and the simulator alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tailsieve_verl.core.plan import TAIL_ROUTES, Route

Action = Literal["wait", "cut", "launch", "done"]


@dataclass(frozen=True)
class Verdict:
    """What the shell has to do next; ``launch`` comes with the number of replacement groups."""

    action: Action
    launch: int = 0
    waiting_for: str = ""


@dataclass
class TrackedGroup:
    """A launched group; ``generated_s`` and ``stored`` are set as it proceeds."""

    uid: str
    route: Route
    generated_s: float | None = None
    stored: bool = False
    failed: bool = False
    cut: bool = False


class StepTracker:
    """Follows a step from launch to a complete batch of ``batch`` groups."""

    def __init__(self, batch: int, groups: Iterable[tuple[str, Route]]) -> None:
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self.batch = batch
        self.groups: dict[str, TrackedGroup] = {}
        self.cut_s: float | None = None
        self._order: list[TrackedGroup] = []  # fresh groups in order of generation
        self._must_pending = {"tail": 0, "residual": 0, "placed": 0}
        self._must_alive = 0
        self._fresh_alive = 0
        self._unstored = 0  # selected groups not stored yet; kept only after the cut
        self.add(groups)

    def add(self, groups: Iterable[tuple[str, Route]]) -> None:
        """Launch groups. After the cut only groups that must finish may join."""
        for uid, route in groups:
            if uid in self.groups:
                raise ValueError(f"group {uid} is launched twice")
            if self.cut_s is not None and route == "fresh":
                raise ValueError(f"group {uid} is launched as fresh after the cut")
            self.groups[uid] = TrackedGroup(uid, route)
            if route == "fresh":
                self._fresh_alive += 1
            else:
                self._must_alive += 1
                self._must_pending[route] += 1
                self._unstored += self.cut_s is not None

    def generated(self, uid: str, now_s: float) -> None:
        """All responses of a group have been generated. Ignored for groups cut or failed already."""
        group = self.groups[uid]
        if group.cut or group.failed or group.generated_s is not None:
            return
        group.generated_s = now_s
        if group.route == "fresh":
            self._order.append(group)
        else:
            self._must_pending[group.route] -= 1

    def stored(self, uid: str) -> None:
        """A group's trajectories and rewards have been stored."""
        group = self.groups[uid]
        if group.cut or group.failed or group.stored:
            return
        group.stored = True
        if self.cut_s is not None:
            self._unstored -= 1

    def fail(self, uid: str) -> bool:
        """A group failed. Returns False if it was cut or failed already, so that it does not matter."""
        group = self.groups[uid]
        if group.cut or group.failed:
            return False
        group.failed = True
        if group.route == "fresh":
            self._fresh_alive -= 1
            if group.generated_s is not None:
                self._order.remove(group)
        else:
            self._must_alive -= 1
            if group.generated_s is None:
                self._must_pending[group.route] -= 1
        if self.cut_s is not None and not group.stored:
            self._unstored -= 1
        return True

    @property
    def fresh_needed(self) -> int:
        """Fresh groups the batch takes, given the others that are alive."""
        return max(0, self.batch - self._must_alive)

    def verdict(self) -> Verdict:
        """What to do now."""
        if self.cut_s is None:
            lacking = self.fresh_needed - self._fresh_alive
            if lacking > 0:
                return Verdict("launch", launch=lacking)
            if len(self._order) >= self.fresh_needed and not self._must_pending["residual"]:
                return Verdict("cut")
            return Verdict("wait", waiting_for=self._waiting_for())
        lacking = self.batch - self._must_alive - self._fresh_alive
        if lacking > 0:
            return Verdict("launch", launch=lacking)
        if self._unstored or any(self._must_pending.values()):
            return Verdict("wait", waiting_for=self._waiting_for())
        return Verdict("done")

    def cut(self, now_s: float) -> tuple[str, ...]:
        """Cut: keep the earliest fresh groups, return the uids of the stragglers in launch order."""
        if self.verdict().action != "cut":
            raise RuntimeError(f"the step is not ready to be cut: {self._waiting_for()}")
        self.cut_s = now_s
        for group in self._order[self.fresh_needed :]:
            group.cut = True
        del self._order[self.fresh_needed :]
        for group in self.groups.values():
            if group.route == "fresh" and not group.failed and group.generated_s is None:
                group.cut = True
        self._fresh_alive = len(self._order)
        self._unstored = sum(not g.stored for g in self.selected())
        return tuple(g.uid for g in self.groups.values() if g.cut)

    def selected(self) -> list[TrackedGroup]:
        """The groups of the update batch so far, in launch order."""
        return [g for g in self.groups.values() if not g.cut and not g.failed]

    def pool_time_s(self, *, tail: bool) -> float | None:
        """Time of a pool's last needed completion, ``None`` if it served none."""
        times = [
            g.generated_s for g in self.selected() if g.generated_s is not None and (g.route in TAIL_ROUTES) == tail
        ]
        return max(times, default=None)

    def _waiting_for(self) -> str:
        parts = []
        if self.cut_s is None:
            parts.append(f"{max(0, self.fresh_needed - len(self._order))} more fresh groups to be generated")
        parts += [f"{count} {route} groups to be generated" for route, count in self._must_pending.items() if count]
        if self.cut_s is not None and self._unstored:
            parts.append(f"{self._unstored} groups to be rewarded and stored")
        return " and ".join(parts)
