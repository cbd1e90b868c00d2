"""What every command prints and writes: a table on the terminal, JSON, CSV and PNG.

Conventions
    * Results go to standard output, progress bars and remarks to standard error, so that ``--json`` can be piped.
    * ``--json`` replaces the table; ``--csv`` and ``--png`` name files written beside it, whole or not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tailsieve_verl.errors import UserError
from tailsieve_verl.whole_file import check_place, write_whole


def _place(path: Path | None) -> Path | None:
    if path is not None:
        check_place(path)  # now, not after minutes of work
    return path


def _csv(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() in (".png", ".json"):
        raise UserError(f"--csv {path} must not end in {path.suffix}: a CSV table is written.")
    return _place(path)


def _png(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() != ".png":
        raise UserError(f"--png {path} must end in .png: a PNG picture is written.")
    return _place(path)


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="Also write the table to this CSV file.", callback=_csv)]
PngFile = Annotated[Path | None, typer.Option("--png", help="Also draw the result into this PNG file.", callback=_png)]
DraftShare = Annotated[
    float, typer.Option(help="Share of a plain step that each drafted token takes (MTP: some 0.05).", min=0)
]
PassShare = Annotated[
    float, typer.Option(help="Share of a plain step that drafting takes at any depth (DFlash: a block at once).")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything drawn at random.", min=0)]


def say(text: str) -> None:
    """A remark for the reader, on standard error."""
    _console(stderr=True).print(text)


def refuse_unused(context: typer.Context, why: str, *names: str) -> None:
    """Refuse options that were given and would say nothing.

    Args:
        names: parameters of the command.
        why: the rest of a sentence that begins with the option.

    Raises:
        UserError: one of them stands on the command line.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--{name.replace('_', '-')} {why}.")


def _console(*, stderr: bool = False) -> Console:
    """What is printed holds names of files and runs, so brackets and colons are text and no markup."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


#: Characters; wider than any table of ours.
WIDEST = 1000


def progress() -> Progress:
    """A progress bar on standard error; a line on a log that is no terminal is left out."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not Console(stderr=True).is_terminal,
    )


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "", notes: Iterable[str] = ()) -> None:
    """Rows of one shape as a table on standard output; numbers to four significant digits, the notes below.

    A terminal that is too narrow for the table gets a paragraph a row; a file or a pipe gets the table, however wide.
    """
    console = _console()
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    columns = list(rows[0]) if rows else []
    for column in columns:
        numeric = any(isinstance(row[column], int | float) for row in rows)
        header = column.replace("_", "\n" if numeric else " ")
        table.add_column(header, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    width = Measurement.get(console, console.options.update(width=WIDEST), table).maximum
    if console.is_terminal and width > console.width:
        _print_paragraphs(console, rows, title)
    else:
        console.width = max(console.width, width)
        console.print(table)
    for note in notes:
        console.print(note)


def _print_paragraphs(console: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    if title:
        console.print(title, style="italic")
    for row in rows:
        (_, name), *rest = row.items()
        console.print()
        console.print(_cell(name), style="bold")
        console.print(
            Padding(", ".join(f"{key.replace('_', ' ')} {_cell(value)}" for key, value in rest), (0, 0, 0, 2))
        )
    console.print()


def print_json(data: Any) -> None:
    """JSON on standard output; NaN and infinities become null."""
    typer.echo(json.dumps(_plain(data), indent=2))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV with a header."""
    import pandas

    write_whole(path, lambda name: pandas.DataFrame(list(rows)).to_csv(name, index=False))


def write_json(path: Path, data: Any) -> None:
    """JSON into a file."""
    write_whole(path, lambda name: Path(name).write_text(json.dumps(_plain(data), indent=2) + "\n", encoding="utf-8"))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
