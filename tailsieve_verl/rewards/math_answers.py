"""Is an answer the right one? Equality of two mathematical answers by math-verify, of words by their letters.

    1. the same text, but for spacing and LaTeX that changes nothing: right
    2. a right answer in words: anything else is wrong (as a product of letters, "Evelyn" would equal "nylevE")
    3. both are parsed and compared by math-verify: equal numbers, expressions, sets, intervals, matrices
    4. a right answer that cannot be parsed: rule 1 has decided

Runs in a worker process (see :mod:`~tailsieve_verl.rewards.math_worker`): math-verify's own time-outs are signals,
which work in a main thread only, and computations inside one C call outlast them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

Verdict = Literal["right", "wrong", "no answer", "too long", "unreadable gold", "timeout"]

#: Characters of an answer that is compared at all. The longest right answers of the data sets have a few hundred.
LONGEST = 2000
#: Seconds for parsing one answer, and for comparing two; usual ones take milliseconds.
STEP_S = 3

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


def judge(gold: str, answer: str | None) -> Verdict:
    """Compare an answer with the right one (module docstring)."""
    if answer is None or not answer.strip():
        return "no answer"
    if len(answer) > LONGEST:
        return "too long"
    if _plain(answer) == _plain(gold):
        return "right"
    if is_words(gold):
        return "wrong"
    right = _parsed(gold)
    if not right:
        return "unreadable gold"
    from math_verify import verify

    offered = _parsed(answer)
    return "right" if offered and verify(right, offered, timeout_seconds=STEP_S) else "wrong"


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
    # Behind the dollar sign math-verify reads it as a hundredth; 50% then equals 50 and 0.5 alike.
    body, percent = re.subn(r"\\?%\s*$", "", body)
    read = parse(f"${body}${'%' if percent else ''}", _targets(), parsing_timeout=STEP_S)
    return [expression for expression in read if not isinstance(expression, str)]


@cache
def _targets() -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    return [LatexExtractionConfig(), ExprExtractionConfig()]
