"""The ``tailsieve`` command: its subcommands, and errors as one sentence.

A subcommand is a module of this package with a function that typer reads: arguments in, one call of the library, a
table out.
"""

from __future__ import annotations

import errno
import inspect
import sys

import typer

from tailsieve_verl.errors import UserError

#: Disk or quota is full: nobody's fault here.
FULL = (errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="TailSieve for veRL: would two pools of replicas help a run, will its command work, and what did they bring?",
)


def _register() -> None:
    from tailsieve_verl.cli import advise, calibrate, compare, data, doctor, evaluate, replay, report, simulate, trace

    app.command("simulate")(simulate.command)
    app.command("calibrate")(calibrate.command)
    app.command("replay")(replay.command)
    app.command("advise")(advise.command)
    app.command("doctor", context_settings=doctor.CONTEXT)(doctor.command)
    app.command("data")(data.command)
    app.command("evaluate")(evaluate.command)
    app.command("compare")(compare.command)
    app.command("report")(report.command)
    app.add_typer(trace.app, name="trace")
    for known in (*app.registered_commands, *trace.app.registered_commands):
        known.help = flowing(known.callback.__doc__ or "")


def flowing(text: str) -> str:
    """A docstring as help, without its line breaks, which typer keeps; ``\\b`` says that those of examples stay."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith("\b") else " ".join(p.split()) for p in paragraphs)


def main() -> None:
    """Entry point of the console script: exit status 2 for an error that is the user's to mend, 130 for Ctrl-C."""
    try:
        _register()
        app()
    except KeyboardInterrupt:  # while modules are imported; later typer has it
        sys.exit(130)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except MemoryError as error:
        typer.echo(f"error: not enough memory ({error}); ask for less, for example fewer prompts or steps.", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in FULL:
            raise
        typer.echo(f"error: the output cannot be written: {error.strerror}; make room, and ask again.", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
