"""What a response offers as its answer: a boxed expression, or a Python program."""

from __future__ import annotations

import ast
import re
import textwrap

from tailsieve_verl.workloads.templates import END

#: Lines dropped from the end of an unfenced program until it parses; a sentence or two behind the code.
TRAILING_LINES = 20

#: A block whose closing fence is missing goes to the end: <END> may stand in its place.
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_DEFINITION = re.compile(r"^(?:(?:async[ ]+)?def[ ]+\w+[ ]*[(\[]|class[ ]+\w+[ ]*[:(\[])", re.MULTILINE)
#: Where an unfenced program begins; sentences begin with "from" and "import" too.
_START = re.compile(
    rf"{_DEFINITION.pattern}|^(?:from[ ]+[\w.]+[ ]+import\b|import[ ]+[\w.]+[ ]*(?:$|[,;#]|as\b)|@\w)", re.MULTILINE
)


def answer_part(response: str) -> str:
    """The response up to its first ``<END>``: what stands behind it was sampled in the same engine step, at most."""
    return response.split(END, 1)[0]


def last_boxed(text: str) -> str | None:
    """Content of the last ``\\boxed{...}`` whose braces close; ``None`` if there is none.

    ``\\fbox`` counts too, and so does ``\\boxed 5``. Escaped braces do not nest.
    """
    closing = _closing_braces(text)
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", text))):
        start = match.end()
        if text[start : start + 1] == "{":
            if start in closing:
                return text[start + 1 : closing[start]]
        elif text[start - 1].isspace() and (bare := re.compile(r"[^\s${}\\]+").match(text, start)):
            return bare[0].rstrip(".,;")
    return None


def _closing_braces(text: str) -> dict[int, int]:
    """Position of each opening brace -> position of the one that closes it."""
    closing, open_ = {}, []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            open_.append(match.start())
        elif match[0] == "}" and open_:
            closing[open_.pop()] = match.start()
    return closing


def python_code(response: str) -> str | None:
    """The program of a response: its last fenced block with a function or class, else what follows the first one.

    ``None`` if neither is there, or if it is no Python.
    """
    text = answer_part(response)
    blocks = [body for language, body in _FENCE.findall(text) if language.lower() in ("", "py", "python", "python3")]
    for block in map(textwrap.dedent, reversed(blocks)):  # in a list of steps it is indented
        if _DEFINITION.search(block) and _parses(block):
            return block
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
