"""The `tailsieve` command as a whole: how it ends when it cannot go on."""

import errno
import os

import pytest
from typer.testing import CliRunner

from tailsieve_verl.cli import main
from tailsieve_verl.cli.output import say
from tailsieve_verl.errors import UserError


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("--x is wrong; give y."), 2, "error: --x is wrong; give y.\n"),
        (
            MemoryError("8 EiB"),
            2,
            "error: not enough memory (8 EiB); ask for less, for example fewer prompts or steps.\n",
        ),
        (KeyboardInterrupt(), 130, ""),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            2,
            "error: the output cannot be written: No space left on device; make room, and ask again.\n",
        ),
    ],
)
def test_what_is_not_a_fault_of_ours_ends_with_a_sentence(monkeypatch, capsys, error, status, said):
    def fails():
        raise error

    monkeypatch.setattr(main, "_register", fails)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().err) == (status, said)


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def fails():
        raise OSError(errno.EBADF, "bad")

    monkeypatch.setattr(main, "_register", fails)
    with pytest.raises(OSError, match="bad"):
        main.main()


def test_brackets_and_colons_in_a_remark_are_text(capsys):
    say("[/bold]x.csv: [red]8[/red] responses :m:")
    assert capsys.readouterr().err == "[/bold]x.csv: [red]8[/red] responses :m:\n"


def test_help_fills_the_lines_and_keeps_those_of_examples():
    assert main.flowing("One.\n\n    Two\n    lines.\n\n    \b\n    Examples:\n      a  b\n") == (
        "One.\n\nTwo lines.\n\n\b\nExamples:\n  a  b"
    )


@pytest.mark.parametrize("words", ["simulate", "advise", "doctor", "data", "report", "trace make", "trace summary"])
def test_every_command_shows_examples_a_line_each(words):
    main._register()
    said = CliRunner().invoke(main.app, [*words.split(), "--help"], env={"COLUMNS": "160"}).stdout
    examples = [line.split() for line in said.splitlines() if line.strip().startswith(f"tailsieve {words}")]
    assert examples
    assert "**" not in said
