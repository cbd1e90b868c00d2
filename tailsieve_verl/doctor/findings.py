"""What a check says: findings, and the exit status that they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "note", "warning", "error"]
#: From harmless to fatal. A note is a fact worth knowing; it changes nothing about the exit status.
STATUSES: tuple[Status, ...] = ("ok", "note", "warning", "error")
EXIT_STATUS = {"ok": 0, "note": 0, "warning": 1, "error": 2}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        section: heading that it is printed under.
        status: see :data:`STATUSES`.
        text: what was found, one or two sentences.
        remedy: what to do about it; empty if there is nothing to do.
    """

    section: str
    status: Status
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """All findings of a diagnosis, in the order of printing."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Status:
        return max((f.status for f in self.findings), key=STATUSES.index, default="ok")

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 warnings, 2 errors."""
        return EXIT_STATUS[self.worst]

    def of(self, *statuses: Status) -> list[Finding]:
        return [f for f in self.findings if f.status in statuses]

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.worst,
            "exit_status": self.exit_status,
            "findings": [asdict(f) for f in self.findings],
        }


class Section:
    """Collects the findings of one heading."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[Finding] = []

    def ok(self, text: str) -> None:
        self._add("ok", text, "")

    def note(self, text: str, remedy: str = "") -> None:
        self._add("note", text, remedy)

    def warning(self, text: str, remedy: str = "") -> None:
        self._add("warning", text, remedy)

    def error(self, text: str, remedy: str = "") -> None:
        self._add("error", text, remedy)

    @property
    def failed(self) -> bool:
        return any(f.status == "error" for f in self.findings)

    def _add(self, status: Status, text: str, remedy: str) -> None:
        self.findings.append(Finding(self.name, status, text, remedy))


def report(sections: Iterable[Section]) -> Report:
    """The findings of several sections in one report."""
    return Report(tuple(finding for section in sections for finding in section.findings))
