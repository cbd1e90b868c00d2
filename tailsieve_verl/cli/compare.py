"""``tailsieve compare``: runs side by side, from their own logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailsieve_verl.cli.output import JsonFlag, print_json, print_table, write_csv, write_whole
from tailsieve_verl.errors import UserError

if TYPE_CHECKING:
    from tailsieve_verl.compare.study import Study


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run (trainer.default_local_dir), or a metrics file; name=folder gives its name. The "
            "first is the baseline.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for fig7.png, fig7.csv, runs.csv, speedups.csv and report.md.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Name of the run to compare with.")] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Also compare runs of different prompts, by their means alone.")
    ] = False,
    early: Annotated[int, typer.Option(min=1, help="Last step of the early window (paper D.1).")] = 8,
    skip: Annotated[int, typer.Option(min=0, help="Leave out so many steps at the start.")] = 0,
    curve: Annotated[
        Path | None, typer.Option(help="Decode curve for the lower bounds; else learned from each run's completions.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare runs: speed-ups with intervals, Fig. 7, length bias, and what routing could give at most.

    Reads TailSieve's record (tailsieve/steps.jsonl), verl's metrics file or console output, and
    rollout dumps, whichever a run has. Runs must have trained on the same prompts in the same
    order; one that has not, or that cannot be read, is left out, with a note and exit status 1. A
    run that drafts with tail routing is also compared with the one that drafts alike under uniform
    routing, over all steps and over steps 1 to 8 (the paper's D.1).

    \b
    Examples:
      tailsieve compare runs/q/uniform runs/q/tailsieve runs/q/mtp_uniform runs/q/mtp --out comparison
      tailsieve compare before=old/metrics.jsonl after=new/metrics.jsonl --unpaired
    """
    from tailsieve_verl.compare.plot import plot_fig7
    from tailsieve_verl.compare.report import comparison_rows, notes, page
    from tailsieve_verl.compare.runlog import read_runlog
    from tailsieve_verl.compare.study import by_step, compare, summary
    from tailsieve_verl.curves import load_curve

    try:
        given = None if curve is None else load_curve(curve)
    except (OSError, ValueError) as error:
        raise UserError(f"--curve {curve} cannot be used: {error}.") from None
    logs, left = [], []
    for number, (label, path) in enumerate(_named(runs)):
        try:
            logs.append(read_runlog(path, label))
        except UserError as error:
            if number == 0 or (label is not None and label == baseline):
                raise  # without its baseline there is nothing to compare
            left.append(str(error))
    if left and len(logs) < 2:
        raise UserError(left[0])
    study = compare(logs, baseline=baseline, unpaired=unpaired, early=early, skip=skip, curve=given)
    study = replace(study, left_out=(*left, *study.left_out))
    if out:
        write_csv(out / "fig7.csv", by_step(study))
        write_csv(out / "runs.csv", summary(study, skip))
        write_csv(out / "speedups.csv", comparison_rows(study))
        write_whole(out / "fig7.png", lambda name: plot_fig7(name, [study]))
        text = page(study, "fig7.png", skip)
        write_whole(out / "report.md", lambda name: Path(name).write_text(text, encoding="utf-8"))
    if as_json:
        print_json({"runs": summary(study, skip), "speedups": comparison_rows(study), "notes": notes(study)})
    else:
        _print(study, skip)
        if out:
            typer.echo(f"\nwritten to {out}: fig7.png, fig7.csv, runs.csv, speedups.csv, report.md")
    if study.left_out:
        raise UserError(f"{len(study.left_out)} of {len(runs)} runs could not be compared; the notes say why.")


def _print(study: Study, skip: int) -> None:
    from tailsieve_verl.compare.report import bias_table, length_table, notes, run_table, speedup_table

    print_table(run_table(study, skip), "Runs")
    terminal = [{key: value for key, value in row.items() if key != "step"} for row in speedup_table(study)]
    print_table(terminal, "Speed-up of generation")
    if biases := bias_table(study):
        print_table(biases, "Lengths trained on, against the run's own fresh pools")
    if lengths := length_table(study):
        print_table(lengths, "Lengths trained on, against the baseline's")
    for note in notes(study):
        typer.echo(f"- {note[0].upper()}{note[1:]}")


def _named(runs: Sequence[str]) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for text in runs:
        label, mark, path = text.partition("=")
        found.append((label, path) if mark and label and not Path(text).exists() else (None, text))
    return found
