"""What a response offers as its answer: a boxed expression, or a Python program."""

from __future__ import annotations

import ast
import re

from tailsieve_verl.workloads.templates import END

#: Lines dropped from the end of an unfenced program until it parses; a sentence or two behind the code.
TRAILING_LINES = 20

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_START = re.compile(r"^(?:def|async def|class|from|import|@)\b", re.MULTILINE)


def answer_part(response: str) -> str:
    """The response up to its first ``<END>``: what stands behind it was sampled in the same engine step, at most."""
    return response.split(END, 1)[0]


def last_boxed(text: str) -> str | None:
    """Content of the last ``\\boxed{...}`` whose braces close; ``None`` if there is none.

    ``\\fbox`` counts too, and so does ``\\boxed 5``. Escaped braces do not nest.
    """
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*", text))):
        rest = text[match.end() :]
        if not rest.startswith("{"):
            bare = re.match(r"[^\s${}\\]+", rest)
            if bare and text[match.end() - 1].isspace():
                return bare[0].rstrip(".,;")
            continue
        depth = 0
        for at, character in enumerate(rest):
            if character in "{}" and not (at and rest[at - 1] == "\\"):
                depth += 1 if character == "{" else -1
                if depth == 0:
                    return rest[1:at]
    return None


def python_code(response: str) -> str | None:
    """The program of a response: its last fenced block that defines something, else what follows the first definition.

    ``None`` if neither is there, or if it is no Python.
    """
    text = answer_part(response)
    blocks = [body for language, body in _FENCE.findall(text) if language.lower() in ("", "py", "python", "python3")]
    for block in reversed(blocks):
        if _START.search(block) and _parses(block):
            return str(block)
    start = _START.search(text)
    if start is None:
        return None
    lines = text[start.start() :].replace("```", "").splitlines()
    for dropped in range(min(TRAILING_LINES, len(lines)) + 1):
        code = "\n".join(lines[: len(lines) - dropped])
        if code.strip() and _parses(code):
            return code
    return None


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
