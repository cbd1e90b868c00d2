"""`tailsieve data`: the paper's data sets, and those of its evaluation, as verl's parquet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tailsieve_verl.cli.output import JsonFlag, print_json, print_table, say, write_whole
from tailsieve_verl.errors import UserError

NAMES = ("deepscaler", "kodcode", "gsm8k", "math500", "aime24", "aime25")


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for train.parquet or test.parquet, or a .parquet file. Default: data/NAME."),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Local copy (.parquet, .jsonl, .json, .csv).")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Split on the hub, where there are several; names the file.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Shuffle with this seed; else the order stays.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Keep this many rows, after shuffling.")] = None,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up", metavar="N", min=0, help="Set the last N rows aside as ...-warmup.parquet (Appendix A.3)."
        ),
    ] = 0,
    revision: Annotated[str | None, typer.Option("--revision", help="Commit or tag on the hub.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Write a data set as verl's parquet, with the paper's prompts; print its rows and a checksum of their content.

    \b
    Examples:
      tailsieve data deepscaler                       writes data/deepscaler/train.parquet
      tailsieve data deepscaler --seed 42 --warm-up 64
      tailsieve data gsm8k --from gsm8k-test.jsonl    without a network
    """
    from tailsieve_verl.workloads.prepare import checksum, prepare, write
    from tailsieve_verl.workloads.reading import read_file, read_hub
    from tailsieve_verl.workloads.sources import SOURCES

    if name not in SOURCES:
        raise UserError(f"{name} is not a data set that is known; choose one of {', '.join(NAMES)}.")
    if from_ is not None and revision is not None:
        raise UserError("--revision names a commit on the hub, --from a local file; give one of them.")
    if split is not None and (not split or "/" in split):
        raise UserError(f"--split={split} names a split and, with it, the file; it must not be empty or have a slash.")
    source = SOURCES[name]
    use = split or source.use
    records = read_file(from_) if from_ is not None else read_hub(source, split or source.split, revision)
    where = str(from_) if from_ is not None else source.repo
    prepared = prepare(source, records, use, where=where, seed=seed, limit=limit, reserve=warm_up)

    out = Path("data") / name if out is None else out
    path = out if out.suffix == ".parquet" else out / f"{use}.parquet"
    files = [(path, prepared.train)]
    if prepared.reserved:
        files.append((path.with_name(f"{path.stem}-warmup.parquet"), prepared.reserved))
    report = []
    for file, rows in files:
        write_whole(file, partial(write, rows=rows))
        report.append({"file": str(file), "rows": len(rows), "sha256": checksum(rows)})
    if prepared.skipped:
        say(f"Left out: {', '.join(f'{count} with {reason}' for reason, count in sorted(prepared.skipped.items()))}.")
    if json_:
        print_json({"data_source": source.repo, "files": report, "skipped": prepared.skipped})
    else:
        print_table(report, title=f"{where} ({use})", notes=["sha256: of the rows' content, not of the file."])
