"""The pages of the repository and the shell commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: The uniform mark of a shell block that cannot run without GPUs, and the sentence that marks a whole page.
GPU_MARK = "# needs GPUs"
GPU_PAGE = re.compile(r"^\*.*not yet run on (?:a GPU|GPUs).*\*$", re.IGNORECASE | re.MULTILINE)
SHELL = ("bash", "sh", "shell", "console")
#: First words by which a line of an unmarked (indented) block is taken for a command.
PROGRAMS = (
    "make",
    "pip",
    "python",
    "python3",
    "tailsieve",
    "pytest",
    "bash",
    "source",
    "git",
    "mkdocs",
    "ruff",
    "mypy",
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPTIONAL = re.compile(r"\[(-[^\[\]]*)\]")
_PLACEHOLDER = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
        page: path in the repository.
        text: as written.
        environ: assignments in front of it.
        words: program and arguments; ``<...>`` is PLACEHOLDER, ``...`` is left out.
        needs_gpus: whether its block, or its page, says so.
    """

    page: str
    text: str
    words: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict, hash=False)
    needs_gpus: bool = False

    @property
    def program(self) -> str:
        return Path(self.words[0]).name

    @property
    def has_placeholder(self) -> bool:
        """Whether something of it is the reader's to fill in."""
        filled_in = any(re.fullmatch(r"[A-Z]+", word) for word in self.words[1:])
        return filled_in or "PLACEHOLDER" in self.text_of_words or self.names_a_run

    @property
    def names_a_run(self) -> bool:
        """Whether it reads the folder of a run that the reader has made."""
        return any(word.startswith(("runs/", "rollouts/")) for word in self.words[1:])

    @property
    def text_of_words(self) -> str:
        return " ".join(self.words)


def all_pages() -> list[str]:
    """Every page that a reader may meet, by its path in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for pattern in ("docs/**/*.md", "recipes/**/README.md", "examples/**/README.md"):
        found += ROOT.glob(pattern)
    return sorted(str(path.relative_to(ROOT)) for path in found)


def commands(page: str, text: str | None = None) -> Iterator[Command]:
    """The commands of a page's shell blocks, in order.

    Raises:
        ValueError: a line of a block that is marked as shell is no command.
    """
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    page_needs_gpus = bool(GPU_PAGE.search(text)) and page.startswith("recipes/")
    for token in MarkdownIt("commonmark").parse(text):
        if token.type not in ("fence", "code_block"):
            continue
        marked = token.info.strip() in SHELL
        if token.type == "fence" and not marked:
            continue
        needs_gpus = page_needs_gpus or GPU_MARK in token.content
        for line in _lines(token.content):
            line = _OPTIONAL.sub(lambda found: found[1].split("|")[0], line)  # [--a x | y]: taken as --a x
            if not marked and not _is_command(line):
                continue
            for words in _split(line if marked else re.sub(r"\s{2,}\S.*$", "", line)):
                environ = dict(word.split("=", 1) for word in words if _ASSIGNMENT.match(word))
                while words and _ASSIGNMENT.match(words[0]):
                    words = words[1:]
                if not words:
                    continue
                yield Command(page, line, tuple(words), environ, needs_gpus)


def spans(page: str) -> Iterator[str]:
    """What stands between backticks in the page's text, its tables included, on one line each."""
    for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8")):
        yield from (" ".join(child.content.split()) for child in token.children or () if child.type == "code_inline")


def spoken_commands(page: str) -> Iterator[Command]:
    """Commands of ``tailsieve`` in the text that have arguments; without any it is a name."""
    for text in spans(page):
        if re.match(r"tailsieve [a-z]+ ", text):
            yield Command(page, text, tuple(next(_split(text))))


def _lines(block: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        line = line.strip().removeprefix("$ ")
        if line and not line.startswith("#"):
            yield line


def _is_command(line: str) -> bool:
    words = [word for word in line.split() if not _ASSIGNMENT.match(word)]
    return bool(words) and Path(words[0]).name in PROGRAMS


def _split(line: str) -> Iterator[list[str]]:
    """Commands of a line that joins several, without comments."""
    lexer = shlex.shlex(_PLACEHOLDER.sub("PLACEHOLDER", line), posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("&;|"):
            yield words
            words = []
        elif word != "...":
            words.append(word)
    yield words
