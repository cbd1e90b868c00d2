"""The data sets of the paper and of its evaluation: where they are, what their columns are called, what a row says.

    deepscaler          problem, answer, solution                                   train
    kodcode             question, test, test_info (declaration, docstring), ...     train
    gsm8k               question, answer ("... #### 72")                            train, test
    math500             problem, answer, solution, subject, level                   test
    aime24, aime25      problem or question, answer or a boxed one in solution      evaluation only

Copies of a data set differ in the case and the names of their columns; every name that is in use is understood.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailsieve_verl.errors import UserError
from tailsieve_verl.rewards.responses import last_boxed
from tailsieve_verl.workloads.templates import Messages, code_messages, math_messages

Record = Mapping[str, Any]

PROBLEM = ("problem", "question")
ANSWER = ("answer",)
SOLUTION = ("solution",)
TEST = ("test", "test_code")


class SkippedError(ValueError):
    """A row that cannot be used; the message says why, in words that can be counted."""


@dataclass(frozen=True)
class Item:
    """One prompt: chat messages, what the reward needs, and facts worth keeping."""

    messages: Messages
    ground_truth: str
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes:
        name: as on the command line.
        repo: on the hub; also verl's data_source.
        configs: hub configurations, read one after the other; empty for the only one.
        split: the split on the hub that is read unless another is asked for.
        use: ``train`` or ``test``, what that split is for; it names the file.
        task: ``math`` or ``code``, which chooses the reward.
        columns: groups of column names; one of each group must be there.
        read: row -> item; raises :class:`SkippedError`.
    """

    name: str
    repo: str
    split: str
    use: str
    task: str
    columns: tuple[tuple[str, ...], ...]
    read: Callable[[Record], Item]
    configs: tuple[str, ...] = ()

    def check_columns(self, present: Sequence[str], where: str) -> None:
        """Raise a sentence if a needed column is missing."""
        lower = {name.lower() for name in present}
        missing = [" or ".join(group) for group in self.columns if not lower & set(group)]
        if missing:
            raise UserError(
                f"{where} has the columns {', '.join(present) or '(none)'}; {self.name} also needs "
                f"{' and '.join(missing)}."
            )


def _text(record: Record, names: Sequence[str]) -> str:
    """The first of these columns that is there and holds something."""
    lower = {str(key).lower(): value for key, value in record.items()}
    for name in names:
        value = lower.get(name)
        if value is not None and value == value and str(value).strip():  # NaN is not equal to itself
            return str(value).strip()
    return ""


def _problem(record: Record) -> str:
    problem = _text(record, PROBLEM)
    if not problem:
        raise SkippedError("no problem text")
    return problem


def _final(answer: str) -> str:
    if not answer:
        raise SkippedError("no answer")
    return answer


def read_math(record: Record) -> Item:
    """A problem with its final answer, or one whose solution boxes it."""
    answer = _text(record, ANSWER) or (last_boxed(_text(record, SOLUTION)) or "").strip()
    facts = {name: _text(record, (name,)) for name in ("subject", "level", "unique_id") if _text(record, (name,))}
    return Item(math_messages(_problem(record)), _final(answer), facts)


def read_aime(record: Record) -> Item:
    """A problem whose answer is an integer from 0 to 999, at times with leading zeros, as a float, or in degrees."""
    item = read_math(record)
    # 336^\circ is the answer of 2025 II 5 in the copy on the hub.
    number = re.fullmatch(r"0*(\d{1,3})(\.0+)?\s*(\^\s*\{?\\circ\}?|°)?", item.ground_truth.strip("$ "))
    if number is None:
        raise SkippedError("no integer from 0 to 999 as answer")
    return Item(item.messages, number[1])


def read_gsm8k(record: Record) -> Item:
    """A question with a worked answer whose last line is ``#### number``."""
    _, found, final = _text(record, ANSWER).rpartition("####")
    if not found:
        raise SkippedError("no #### in the answer")
    return Item(math_messages(_problem(record)), _final(final.strip().replace(",", "")))


def read_kodcode(record: Record) -> Item:
    """A question with its tests; tests that import nothing of the solution are given everything of it."""
    test = _text(record, TEST)
    if not test:
        raise SkippedError("no test")
    functions = _functions(record)
    declaration = "\n".join(filter(None, (str(f.get("function_declaration") or "").strip() for f in functions)))
    if not declaration:
        raise SkippedError("no function declaration")
    docstring = "\n".join(filter(None, (str(f.get("docstring") or "").strip() for f in functions)))
    if not re.search(r"^\s*(from\s+solution\s+import|import\s+solution)\b", test, re.MULTILINE):
        test = f"from solution import *\n\n{test}"
    facts = {name: _text(record, (name,)) for name in ("question_id", "subset", "style", "gpt_difficulty")}
    return Item(code_messages(_problem(record), declaration, docstring), test, facts)


def _functions(record: Record) -> list[dict[str, Any]]:
    """The column test_info: a list of mappings, or its text where a file format has no lists."""
    info = {str(key).lower(): value for key, value in record.items()}.get("test_info")
    if isinstance(info, str):
        for parse in (json.loads, ast.literal_eval):
            try:
                info = parse(info)
                break
            except (ValueError, SyntaxError):
                continue
    if isinstance(info, Mapping):  # one column per field, as some writers store a list of mappings
        names = list(info)
        info = [dict(zip(names, values, strict=False)) for values in zip(*(info[name] for name in names), strict=False)]
    try:
        entries = list(info) if info is not None and not isinstance(info, str) else []
    except TypeError:
        entries = []
    return [dict(entry) for entry in entries if isinstance(entry, Mapping)]


_MATH = (PROBLEM, (*ANSWER, *SOLUTION))

SOURCES = {
    source.name: source
    for source in (
        Source("deepscaler", "agentica-org/DeepScaleR-Preview-Dataset", "train", "train", "math", _MATH, read_math),
        Source(
            "kodcode",
            "KodCode/KodCode-Light-RL-10K",
            "train",
            "train",
            "code",
            (PROBLEM, TEST, ("test_info",)),
            read_kodcode,
        ),
        Source("gsm8k", "openai/gsm8k", "test", "test", "math", (PROBLEM, ANSWER), read_gsm8k, ("main",)),
        Source("math500", "HuggingFaceH4/MATH-500", "test", "test", "math", _MATH, read_math),
        Source("aime24", "HuggingFaceH4/aime_2024", "train", "test", "math", _MATH, read_aime),
        Source(
            "aime25", "opencompass/AIME2025", "test", "test", "math", _MATH, read_aime, ("AIME2025-I", "AIME2025-II")
        ),
    )
}
