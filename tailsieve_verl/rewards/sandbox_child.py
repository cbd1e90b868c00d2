"""Process that runs a program's tests under confinement. Started by its path by :mod:`~tailsieve_verl.rewards.sandbox`.

Standard input holds one JSON object: the folder with ``solution.py`` and ``test_solution.py``, limits, the descriptor
for the report, and a word that the report must repeat. Nothing of the program runs before the confinement is in force.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

#: Characters of the first failure that go into the report.
SHOWN = 300
ARGUMENTS = (
    *("test_solution.py", "-q", "-x", "--assert=plain", "--disable-warnings", "--tb=line"),
    *("-p", "no:cacheprovider", "-p", "no:faulthandler", "-c", os.devnull),
)


class Counter:
    """pytest plug-in: what became of each test."""

    def __init__(self) -> None:
        self.collected = self.others = 0
        self.passed: set[str] = set()  # by name: a subtest, which counts with its test, has a report of its own
        self.error = ""

    def pytest_collection_finish(self, session: Any) -> None:
        self.collected = len(session.items)

    def pytest_collectreport(self, report: Any) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._note(report)
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif not report.passed:
            self.others += 1

    def _note(self, report: Any) -> None:
        if report.failed and not self.error:
            self.error = str(report.longrepr).strip()[-SHOWN:]


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    word, descriptor, folder = request.pop("word"), request["report"], request["folder"]

    def report(**facts: Any) -> None:
        os.write(descriptor, json.dumps({"word": word, **facts}).encode())

    try:
        missing = prepare(folder, request["limits"])
        import pytest
    except Exception as error:  # of this machine, not of the program
        report(fatal=f"{type(error).__name__}: {error}")
        os._exit(1)
    counter = Counter()
    arguments = [f"--rootdir={folder}", f"--confcutdir={folder}", f"--basetemp={folder}/tmp"]
    pytest.main([*ARGUMENTS, *arguments], plugins=[counter])
    report(**{**vars(counter), "passed": len(counter.passed)}, missing=missing)
    os._exit(0)  # threads and exit handlers of the program have nothing left to do


def prepare(folder: str, limits: dict[str, int]) -> list[str]:
    """Confine this process; returns what could not be had, in words."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.path.insert(0, folder)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "confine.py")
    spec = importlib.util.spec_from_file_location("confine", path)
    assert spec is not None
    assert spec.loader is not None
    confine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(confine)
    missing: list[str] = confine.confine(folder, limits)
    if missing:
        block_sockets()
    return missing


def block_sockets() -> None:
    """Where the kernel does not refuse sockets, Python does; a program can undo this."""
    import socket

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError("no network here")

    socket.socket.__init__ = refuse  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
