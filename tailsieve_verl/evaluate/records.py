"""What an evaluation leaves, and how it is continued: one folder a checkpoint.

    settings.json      what the answers depend on: model, sampling, seed, questions' checksums
    <bench>.jsonl      one answer a line, appended as it arrives: problem, sample, right, text, tokens ...

Invariants: a line is written whole, a torn last one is ignored; an answer is never drawn twice; answers of other
settings are never mixed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailsieve_verl.errors import UserError

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Answer:
    """One sampled and graded answer.

    Attributes:
        problem, sample: which question, and which of its samples, from 0.
        right: the reward function's verdict.
        score: what it returned.
        text: the answer.
        tokens: its length, the end token included.
        finish: ``stop``, or ``length`` if it was cut at the limit.
        seed: its request's seed.
        verdict: why, where the reward function says it.
    """

    problem: int
    sample: int
    right: bool
    score: float
    text: str
    tokens: int
    finish: str
    seed: int
    verdict: str = ""


class Records:
    """The answers of one checkpoint (module docstring)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings at the first start, compare them at every later one; questions are compared by benchmark.

        Raises:
            UserError: the folder holds answers of other settings, or of settings that cannot be read, or cannot be
                written.
        """
        path = self.folder / SETTINGS
        known: dict[str, Any] = {"questions": {}}
        if path.is_file():
            known |= _settings(path)
        for key, value in known.items():
            if key != "questions" and settings.get(key, value) != value:
                raise UserError(
                    f"{self.folder} holds answers with {key}={value}, and it is {settings[key]} now; name another "
                    f"--out, or delete the folder."
                )
        for name, checksum in known["questions"].items():
            if settings["questions"].get(name, checksum) != checksum:
                raise UserError(
                    f"{self.folder} holds answers to other questions of {name}: the file or --limit has changed; name "
                    f"another --out, or delete the folder."
                )
        merged = {**known, **settings, "questions": {**known["questions"], **settings["questions"]}}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            raise UserError(f"{self.folder} cannot be written ({error.strerror}); name a folder that can.") from None

    def read(self, bench: str) -> dict[tuple[int, int], Answer]:
        """Answers so far, by problem and sample."""
        path = self._path(bench)
        found: dict[tuple[int, int], Answer] = {}
        if path.is_file():
            # Not splitlines(): an answer may hold U+2028 and its kin, which JSON leaves as they are.
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
                try:
                    answer = Answer(**json.loads(line))
                except (ValueError, TypeError):
                    continue  # torn by a crash
                found[answer.problem, answer.sample] = answer
        return found

    def append(self, bench: str, answer: Answer) -> None:
        """One line, flushed; it starts on a line of its own, whatever a crash has left."""
        path = self._path(bench)
        torn = path.is_file() and path.stat().st_size > 0 and not _ends_whole(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(asdict(answer), ensure_ascii=False) + "\n")

    def _path(self, bench: str) -> Path:
        return self.folder / f"{bench}.jsonl"


def _settings(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(known["questions"], dict):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise UserError(
            f"{path} is damaged, so that nobody can tell what its answers are of; name another --out, or delete the "
            f"folder."
        ) from None
    return dict(known)


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
