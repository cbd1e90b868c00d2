"""``tailsieve doctor``: versions, plug-ins, seams, and a verl command's configuration, examined without running it."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tailsieve_verl.cli.output import JsonFlag, print_json, say
from tailsieve_verl.doctor.findings import Report
from tailsieve_verl.errors import UserError

#: Options end where the command begins, with or without `--` in front of it.
CONTEXT = {"allow_interspersed_args": False}

#: A sign, a word and a colour for each status: none of the three is needed to tell them apart.
SIGNS = {"ok": ("✓", "green"), "note": ("·", "cyan"), "warning": ("!", "yellow"), "error": ("✗", "red")}
VERDICTS = {
    "ok": "Nothing is wrong.",
    "note": "Nothing is wrong.",
    "warning": "It should work; mind the warnings.",
    "error": "It will not work like this.",
}


def command(
    verl_command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Your verl command, as you would run it.")
    ] = None,
    with_import: Annotated[
        bool, typer.Option("--import/--no-import", help="Import verl once to see it load the plug-in (some seconds).")
    ] = True,
    gpu_memory: Annotated[
        float | None, typer.Option(help="GiB of a GPU, where the machine that will run the command is another one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Examine this environment, and a verl command, for what TailSieve needs.

    Starts no engine, needs no GPU and downloads nothing. Takes about two seconds and, unless --no-import, one import of
    verl. Exit status: 0 nothing wrong, 1 warnings, 2 errors.

    \b
    Examples:
      tailsieve doctor
      tailsieve doctor -- python -m verl.trainer.main_ppo <your overrides> +tailsieve=default
      tailsieve doctor --gpu-memory 80 -- python -m verl.trainer.main_ppo <your overrides> +tailsieve=mtp
      tailsieve doctor --json --no-import
    """
    from tailsieve_verl.doctor.run import diagnose

    if gpu_memory is not None and not gpu_memory > 0:
        raise UserError(f"--gpu-memory {gpu_memory:g} must be a positive number of GiB, for example 80.")
    found = diagnose(verl_command or [], with_import=with_import, gpu_memory_gib=gpu_memory, say=say)
    if as_json:
        print_json(found.as_json())
    else:
        show(found, Console(highlight=False))
    raise typer.Exit(found.exit_status)


def show(found: Report, console: Console) -> None:
    """Print a report: a heading for each section, a line for each finding, its remedy below."""
    for section, findings in groupby(found.findings, key=lambda f: f.section):
        console.print(Text(section, style="bold"))
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            sign, colour = SIGNS[finding.status]
            text = Text(finding.text)
            if finding.status in ("warning", "error"):
                text = Text.assemble((f"{finding.status}: ", f"bold {colour}"), finding.text)
            table.add_row(Text(sign, style=colour), text)
            if finding.remedy:
                table.add_row("", Text(f"-> {finding.remedy}", style="italic"))
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
        console.print()
    errors, warnings = len(found.of("error")), len(found.of("warning"))
    counts = ", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in ((errors, "error"), (warnings, "warning")) if n)
    console.print(Text(f"{VERDICTS[found.worst]}{f' ({counts})' if counts else ''}", style=SIGNS[found.worst][1]))
