"""Is an answer the right one? Equality of two mathematical answers by math-verify, of words by their letters.

    1. the same text, but for spacing and LaTeX that changes nothing: right
    2. a right answer in words: anything else is wrong (as a product of letters, "Evelyn" would equal "nylevE")
    3. both are parsed and compared by math-verify: equal numbers, expressions, sets, intervals, matrices; two numbers
       with a base written below are compared by their values
    4. a right answer that cannot be parsed: rule 1 has decided

Runs in a worker process (see :mod:`~tailsieve_verl.rewards.math_worker`): time-outs are signals, which work in a main
thread only, and computations inside one C call outlast them. They count CPU seconds; math-verify's own go by the clock,
and would turn right answers into wrong ones on a busy machine.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

Verdict = Literal["right", "wrong", "no answer", "too long", "unreadable gold", "timeout"]

#: Characters of an answer that is compared at all. The longest right answers of the data sets have a few hundred.
LONGEST = 2000
#: CPU seconds for parsing one answer, and for comparing two; usual ones take milliseconds.
STEP_S = 3

#: 0.1\overline{6}: digits before the point, those that do not repeat, and those that do. math-verify reads it as 0.1
#: times a variable, and 0.\overline{6} as 0.
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\s*\{?(\d+)\}?")
#: 101_2, 101_{2}: math-verify drops what is below.
_BASED = re.compile(r"([0-9][0-9A-Za-z]*)_\{?(\d{1,2})\}?")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\\[,;:!> ]|\\quad\b|\\qquad\b|~|\s+")
_SAME = (
    (r"\dfrac", r"\frac"),
    (r"\tfrac", r"\frac"),
    (r"\cfrac", r"\frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"\varnothing", r"\emptyset"),
    (r"\leqslant", r"\le"),
    (r"\geqslant", r"\ge"),
    (r"\leq", r"\le"),
    (r"\geq", r"\ge"),
    (r"\displaystyle", ""),
    (r"\$", ""),
    ("$", ""),
)
#: Words that are mathematics; any other word of three letters or more is language.
_FUNCTIONS = {
    *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
    *("log", "exp", "sqrt", "max", "min", "gcd", "lcm", "mod", "and", "inf", "infty", "infinity", "det", "deg"),
}


class _OutOfTime(BaseException):
    """A step has used its time. No Exception: sympy and math-verify catch those."""


def judge(gold: str, answer: str | None) -> Verdict:
    """Compare an answer with the right one (module docstring); in a main thread only."""
    if answer is None or not answer.strip():
        return "no answer"
    if len(answer) > LONGEST:
        return "too long"
    if _plain(answer) == _plain(gold):
        return "right"
    if is_words(gold):
        return "wrong"
    if (number := _based(gold)) is not None and (other := _based(answer)) is not None:
        return "right" if number == other else "wrong"
    try:
        return _compared(gold, answer)
    except _OutOfTime:
        return "timeout"


def _compared(gold: str, answer: str) -> Verdict:
    right = _parsed(gold)
    if not right:
        return "unreadable gold"
    from math_verify import verify

    offered = _parsed(answer)
    # By itself math-verify takes no inequality for an interval, lest the problem's own be copied: |x - 1| < 3.
    solved = bool(offered) and _is_solved(offered[0])
    with _step():
        same = bool(offered) and verify(right, offered, timeout_seconds=None, allow_set_relation_comp=solved)
    return "right" if same else "wrong"


@contextlib.contextmanager
def _step() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, STEP_S, 1.0)  # again, should something have caught the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def is_words(text: str) -> bool:
    """Whether an answer is language: its letters are no variables. Units behind a number do not make it so."""
    inner = _WRAPPED.sub(r" \1 ", text)
    if re.search(r"\d|[=<>^_+*/]", inner):
        return False
    words = re.findall(r"(?<!\\)\b[A-Za-z]{3,}\b", inner)
    return bool(words) and not all(word.lower() in _FUNCTIONS for word in words)


def _plain(text: str) -> str:
    """A text without what changes nothing: spacing, size of brackets and fractions, dollar signs, a final dot."""
    for old, new in _SAME:
        end = r"(?![A-Za-z])" if old[-1].isalpha() else ""
        text = re.sub(re.escape(old) + end, lambda _, new=new: new, text)  # type: ignore[misc]
    text = _SPACE.sub("", _WRAPPED.sub(r"\1", text)).rstrip(".")
    return text.lower() if is_words(text) else text


def _parsed(text: str) -> list[Any]:
    """math-verify's reading of an answer; empty if it has none."""
    from math_verify import parse

    body = text.replace("\\$", "").replace("$", "").replace(r"\varnothing", r"\emptyset").strip()
    body = _REPEATING.sub(_fraction, body)
    # Behind the dollar sign math-verify reads it as a hundredth; 50% then equals 50 and 0.5 alike.
    body, percent = re.subn(r"\\?%\s*$", "", body)
    with _step():
        read = parse(f"${body}${'%' if percent else ''}", _targets(), parsing_timeout=None)
    return [expression for expression in read if not isinstance(expression, str)]


def _fraction(repeating: re.Match[str]) -> str:
    """A repeating decimal as a fraction: 0.1\\overline{6} is (16 - 1) / 90."""
    whole, once, again = repeating.groups()
    above = int(whole + once + again) - int(whole + once or "0")
    return rf"\frac{{{above}}}{{{(10 ** len(again) - 1) * 10 ** len(once)}}}"


def _based(text: str) -> int | None:
    """Value of a number with its base written below; ``None`` for anything else."""
    found = _BASED.fullmatch(_plain(text))
    try:
        return int(found[1], int(found[2])) if found else None
    except ValueError:  # a digit or a base that there is not: x_1
        return None


def _is_solved(expression: Any) -> bool:
    """Whether it is an inequality with one variable alone between or beside numbers: 1 < x <= 2."""
    from sympy import And
    from sympy.core.relational import Relational

    parts = expression.args if isinstance(expression, And) else (expression,)
    if not all(isinstance(part, Relational) for part in parts):
        return False
    sides = [side for part in parts for side in part.args if not side.is_number]
    return len(sides) == len(parts) and len(set(sides)) == 1 and bool(sides[0].is_Symbol)


@cache
def _targets() -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    return [LatexExtractionConfig(), ExprExtractionConfig()]
