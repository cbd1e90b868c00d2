"""What is asked: problems out of verl parquet files, and how each benchmark is counted.

A benchmark is written ``name[@k][=file]``: ``gsm8k``, ``aime24@10``, ``mine@5=questions.parquet``. Files without a path
are those that ``tailsieve data NAME --out DATA/NAME`` writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailsieve_verl.errors import UserError

#: The paper's four (4.5, Table 3): title, k of pass@k, and samples a problem unless told otherwise. The paper samples k
#: times; where the problems are few, more samples cost little and halve the noise of the estimate.
KNOWN = {
    "gsm8k": ("GSM8K", 1, 1),
    "math500": ("MATH-500", 1, 4),
    "aime24": ("AIME24", 10, 32),
    "aime25": ("AIME25", 10, 32),
}
_SPEC = re.compile(r"(?P<name>[\w.-]+)(?:@(?P<k>\d+))?(?:=(?P<path>.+))?")
#: Splits in which a data set is asked, best first.
_SPLITS = ("test", "train")


@dataclass(frozen=True)
class Problem:
    """One question.

    Attributes:
        messages: chat messages, each with ``role`` and ``content``.
        ground_truth: what the reward function compares with.
        data_source, extra_info: as in verl's data, handed to the reward function.
    """

    messages: tuple[dict[str, str], ...]
    ground_truth: Any
    data_source: str
    extra_info: Any = None


@dataclass(frozen=True)
class Benchmark:
    """Problems, and how they are counted: ``samples`` answers a problem, pass@``k``."""

    name: str
    title: str
    k: int
    samples: int
    path: Path
    problems: tuple[Problem, ...]

    @property
    def checksum(self) -> str:
        """Of questions and answers: records of other questions must not be continued."""
        text = json.dumps([[p.messages, p.ground_truth] for p in self.problems], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_benchmark(spec: str, data: Path, *, samples: int | None = None, limit: int | None = None) -> Benchmark:
    """A benchmark as it was asked for.

    Args:
        spec: see the module.
        data: folder of the data sets' folders.
        samples: answers a problem, at least k.
        limit: ask only so many problems, the first ones.

    Raises:
        UserError: an unknown name, a missing file, wrong columns, fewer samples than k.
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise UserError(f"--bench {spec} must be name[@k][=file], for example aime24@10 or mine=questions.parquet.")
    name, path = found["name"], found["path"]
    if name not in KNOWN and path is None:
        raise UserError(
            f"--bench {name} is unknown; choose of {', '.join(KNOWN)}, or name a file: {name}=file.parquet."
        )
    title, k, usual = KNOWN.get(name, (name, 1, 1))
    k = int(found["k"] or k)
    count = max(usual, k) if samples is None else samples
    if not 1 <= k <= count:
        raise UserError(f"--bench {spec}: pass@{k} needs at least {k} samples a problem, got {count}.")
    file = Path(path) if path is not None else _file_of(name, data)
    problems = read_problems(file)
    return Benchmark(name, title, k, count, file, problems[:limit])


def read_problems(path: Path) -> tuple[Problem, ...]:
    """Rows of a verl parquet file.

    Raises:
        UserError: no such file, none of parquet, missing columns, or a row that verl could not use either.
    """
    import pandas

    if not path.is_file():
        raise UserError(f"{path} does not exist; write it with tailsieve data, or name a verl parquet file.")
    try:
        table = pandas.read_parquet(path)
    except Exception as error:  # pyarrow raises whatever its parts raise
        raise UserError(f"{path} is no parquet file that can be read ({error}).") from None
    missing = [column for column in ("prompt", "reward_model") if column not in table.columns]
    if missing:
        raise UserError(
            f"{path} lacks the column {' and '.join(missing)}; a verl data set has prompt (chat messages) and "
            f"reward_model (with ground_truth)."
        )
    if table.empty:
        raise UserError(f"{path} has no rows.")
    return tuple(_problem(path, number, row) for number, row in enumerate(table.to_dict("records")))


def _file_of(name: str, data: Path) -> Path:
    for split in _SPLITS:
        if (data / name / f"{split}.parquet").is_file():
            return data / name / f"{split}.parquet"
    raise UserError(
        f"{data / name} has no {' or '.join(f'{s}.parquet' for s in _SPLITS)}; write it with: "
        f"tailsieve data {name} --out {data / name}"
    )


def _problem(path: Path, number: int, row: dict[str, Any]) -> Problem:
    reward = row["reward_model"]
    try:
        messages = tuple({"role": str(m["role"]), "content": str(m["content"])} for m in row["prompt"])
        truth = reward["ground_truth"]
    except (TypeError, KeyError):
        messages, truth = (), None
    if not messages or truth is None:
        raise UserError(
            f"{path} row {number}: prompt must be chat messages with role and content, and reward_model must hold "
            f"ground_truth."
        )
    return Problem(messages, truth, str(row.get("data_source", "")), row.get("extra_info"))
