"""``tailsieve report``: a page of a run, from its record."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tailsieve_verl.cli.output import JsonFlag, print_json, write_whole


def command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of the run (trainer.default_local_dir), or its steps.jsonl."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the page and its PNGs; RUN/tailsieve/report if not given.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run on the page.")] = None,
    first: Annotated[int, typer.Option(min=1, help="First step to report on.")] = 1,
    last: Annotated[int | None, typer.Option(min=1, help="Last step to report on.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a page about a run: was it worth it, is the data's bias tolerable, and what did each replica do.

    Reads the record that a run with +tailsieve keeps (tailsieve/steps.jsonl), also while the run
    goes on. Writes report.html, one file that asks nothing of other servers, and its pictures as
    PNGs. Long runs show every step with fewer requests each; --first and --last look closer.

    \b
    Examples:
      tailsieve report checkpoints/my_run
      tailsieve report checkpoints/my_run --out report --first 100 --last 140
    """
    from tailsieve_verl.report.page import render
    from tailsieve_verl.report.view import read_view

    view = read_view(run, name, first=first, last=last)
    report = render(view)
    folder = out if out is not None else view.path.parent / "report"
    write_whole(folder / "report.html", lambda path: Path(path).write_text(report.html, encoding="utf-8"))
    for file, content in report.pngs.items():
        write_whole(folder / file, lambda path, content=content: Path(path).write_bytes(content))  # type: ignore[misc]
    if as_json:
        print_json({"verdict": asdict(report.verdict), "facts": asdict(report.facts), "page": folder / "report.html"})
        return
    typer.echo(report.verdict.headline)
    typer.echo(report.verdict.bias)
    for line in report.verdict.change:
        typer.echo(f"- {line}")
    for line in report.verdict.warnings:
        typer.echo(f"- Early warning, {line[0].lower()}{line[1:]}")
    typer.echo(f"\nwritten to {folder}: report.html, {', '.join(report.pngs)}")
