"""Traces in files: CSV (also .csv.gz), JSON lines, length histograms, and the folder verl dumps its responses into.

Columns, as in the files of shared/traces; only `tokens` is needed, further columns are ignored:
    tokens                  response length; 0, an answer that is empty, counts as 1
    prompt_id               label of the prompt; without it every row is a prompt of its own
    checkpoint              label of the checkpoint; see `trace.training_order`
    truncated               0/1 or true/false; blank or missing: 1 where the length is the cap
    model, source           who answered, and the data set; one of each is read
    prompt_tokens, step     prompt length; training step
    cap                     response limit, the same in every row that is read
A length histogram has `lo`, `hi` and `prob` instead of `tokens`.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from tailsieve_verl.errors import UserError
from tailsieve_verl.traces import columns
from tailsieve_verl.traces.histogram import sample_histogram
from tailsieve_verl.traces.trace import Trace, make_trace
from tailsieve_verl.traces.verl_dump import read_verl_dump, token_counter
from tailsieve_verl.whole_file import write_whole

#: `source` that reads every data set of a file; a prompt is then told by source and prompt_id.
EVERY = "all"
_SUFFIXES = (".csv", ".csv.gz", ".jsonl")


def read_trace(
    path: str | os.PathLike[str],
    *,
    model: str | None = None,
    source: str | None = None,
    checkpoint: str | None = None,
    cap: int | None = None,
    tokenizer: str | None = None,
    count_tokens: Callable[[str], int] | None = None,
    responses: int = 20_000,
) -> Trace:
    """Read the responses of one model from a file, or from the folder of a verl dump.

    Args:
        path: `.csv`, `.csv.gz`, `.jsonl`, or a folder with verl's `<step>.jsonl`.
        model: which model, where the file has several.
        source: which data set, where the file has several; several joined by commas, or "all".
        checkpoint: only this one; several joined by commas are read as trained in the order given.
        cap: response limit in tokens, if known and not in the file.
        tokenizer: for a verl dump: folder or name of a Hugging Face tokenizer.
        count_tokens: for a verl dump: instead of `tokenizer`.
        responses: for a histogram: how many lengths to make of it (`histogram.sample_histogram`).

    Raises:
        UserError: a file that cannot be read or is empty, a missing column, a length that is no whole number of 0 or
            more or is above the cap, a label that is not there, or a choice left open.
    """
    path = Path(path)
    if cap is not None and cap < 1:
        raise UserError(f"the cap must be at least 1 token, got {cap}.")
    if path.is_dir():
        if model is not None or source is not None:
            raise UserError(f"{path} is a verl dump of one run: leave model and source out.")
        count = count_tokens or (token_counter(tokenizer) if tokenizer is not None else None)
        trace = read_verl_dump(path, count_tokens=count, cap=cap)
        if checkpoint is None:
            return trace
        wanted = columns.pick(path, "checkpoint", trace.checkpoints, checkpoint)
        return trace.select(np.isin(trace.checkpoint, [trace.checkpoints.index(label) for label in wanted]))
    table = _read(path)
    rows, order, name = _choose(path, table, model, source, checkpoint)
    if "tokens" not in table and {"lo", "hi", "prob"} <= set(table):
        return _from_histogram(path, rows, cap, name, responses)
    return _from_rows(path, rows, order, cap, name)


def read_each(path: str | os.PathLike[str], *, cap: int | None = None, tokenizer: str | None = None) -> list[Trace]:
    """Every trace of a file, one per source and model, in the order they appear; a dump or a single one gives one.

    Raises:
        UserError: as `read_trace`.
    """
    path = Path(path)
    if path.is_dir():
        return [read_trace(path, cap=cap, tokenizer=tokenizer)]
    table = _read(path)
    pairs = dict.fromkeys(zip(columns.text(table, "source", path.name), columns.text(table, "model", ""), strict=True))
    given = [(source if "source" in table else None, model if "model" in table else None) for source, model in pairs]
    return [read_trace(path, source=source, model=model, cap=cap) for source, model in given]


def write_trace(path: str | os.PathLike[str], trace: Trace) -> None:
    """Write a trace that `read_trace` reads back equal, but for its remarks; a reader never sees half a file.

    Prompts are numbered by first appearance and checkpoints by `training_order` when it is read again.

    Raises:
        UserError: a suffix other than `.csv`, `.csv.gz` or `.jsonl`, or a folder that cannot be written.
    """
    path = Path(path)
    suffix = _suffix(path)
    cell = pd.Series(trace.prompt * len(trace.checkpoints) + trace.checkpoint)
    table = pd.DataFrame(
        {
            "source": trace.name,
            "model": "",
            "prompt_id": np.array(trace.prompt_ids, dtype=object)[trace.prompt],
            "sample_id": cell.groupby(cell).cumcount(),
            "checkpoint": np.array(trace.checkpoints, dtype=object)[trace.checkpoint],
            "tokens": trace.tokens,
            "truncated": trace.truncated.astype(int),
        }
    )
    for column in ("prompt_tokens", "step", "cap"):
        if getattr(trace, column) is not None:
            table[column] = getattr(trace, column)

    def write(name: str) -> None:
        if suffix == ".jsonl":
            table.to_json(name, orient="records", lines=True, force_ascii=False)
        elif suffix == ".csv":
            table.to_csv(name, index=False)
        else:  # neither name nor time of writing inside: the same trace gives the same bytes
            Path(name).write_bytes(gzip.compress(table.to_csv(index=False).encode(), 6, mtime=0))

    write_whole(path, write)


def _suffix(path: Path) -> str:
    for suffix in _SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise UserError(f"{path} must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}.")


def _read(path: Path) -> pd.DataFrame:
    """The file as text; the index is the line number."""
    if not path.exists():
        raise UserError(f"{path} does not exist: give a trace file, or the folder of a verl dump.")
    suffix = _suffix(path)
    try:
        if suffix == ".jsonl":
            table = _read_lines(path)
        else:
            table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
            if not isinstance(table.index, pd.RangeIndex):
                raise UserError(f"{path}: the rows have more fields than the header has names.")
            table.index = pd.RangeIndex(2, len(table) + 2)
    except pd.errors.EmptyDataError:
        raise UserError(f"{path} is empty: it must have a header and at least one response.") from None
    except pd.errors.ParserError as error:
        raise UserError(f"{path} is no CSV table ({str(error).strip()}).") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}): give a file of UTF-8 text.") from None
    if table.empty:
        raise UserError(f"{path} has no rows: it must have at least one response.")
    return table


def _read_lines(path: Path) -> pd.DataFrame:
    rows, numbers = [], []
    with path.open(encoding="utf-8-sig") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise UserError(f"{path} line {number} must be one JSON object.")
            rows.append({key: "" if value is None else str(value) for key, value in row.items()})
            numbers.append(number)
    if rows and "tokens" not in rows[0] and {"input", "output"} <= set(rows[0]):
        raise UserError(f"{path} is one step of a verl dump: give its folder.")
    return pd.DataFrame(rows, index=numbers, dtype=object).fillna("")


def _choose(
    path: Path, table: pd.DataFrame, model: str | None, source: str | None, checkpoint: str | None
) -> tuple[pd.DataFrame, tuple[str, ...] | None, str]:
    """The rows asked for, their checkpoints in order if that was given, and a name."""
    several = {column: column in table and table[column].nunique() > 1 for column in ("source", "model")}
    order: tuple[str, ...] | None = None
    for column, wanted in (("source", source), ("model", model), ("checkpoint", checkpoint)):
        if wanted is None or (column == "source" and wanted == EVERY):
            continue
        chosen = columns.pick(path, column, columns.labels(path, table, column), wanted, several=column != "model")
        table = table[table[column].isin(chosen)]
        order = chosen if column == "checkpoint" else order
    for column, wanted in (("model", model), ("source", source)):
        if wanted is None and column in table and table[column].nunique() > 1:
            labels = columns.labels(path, table, column)
            more = f" (or {EVERY!r})" if column == "source" else ""
            raise UserError(f"{path} mixes {len(labels)} {column}s: choose a {column}{more} of {', '.join(labels)}.")
    name = path.name.removesuffix(_suffix(path))
    sources = [label for label in dict.fromkeys(columns.text(table, "source", "")) if label]
    name = "+".join(sources) or name
    return table, order, f"{name}/{table['model'].iloc[0]}" if several["model"] else name


def _from_rows(path: Path, rows: pd.DataFrame, order: tuple[str, ...] | None, cap: int | None, name: str) -> Trace:
    tokens = np.maximum(columns.counts(path, rows, "tokens"), 1)
    if cap is None and "cap" in rows:
        caps = np.unique(columns.counts(path, rows, "cap"))
        if caps.size > 1:
            raise UserError(f"{path} mixes the caps {', '.join(map(str, caps))}: give the one that holds.")
        cap = int(caps[0])
    if cap is not None and tokens.max() > cap:
        row = int(np.argmax(tokens > cap))
        raise UserError(
            f"{path} line {rows.index[row]}, column tokens: {tokens[row]} is above the cap {cap}: "
            f"give a cap of at least {tokens.max()}, or none."
        )
    prompt = None
    if "prompt_id" in rows:
        prompt = columns.text(rows, "prompt_id", "")
        if "source" in rows and rows["source"].nunique() > 1:
            prompt = [f"{a}/{b}" for a, b in zip(columns.text(rows, "source", ""), prompt, strict=True)]
    return make_trace(
        tokens,
        prompt,
        columns.text(rows, "checkpoint", "") if "checkpoint" in rows else None,
        order=order if order is None else [c for c in order if (rows["checkpoint"] == c).any()],
        truncated=columns.flags(path, rows, "truncated", tokens >= cap if cap is not None else tokens < 0),
        cap=cap,
        name=name,
        prompt_tokens=columns.counts(path, rows, "prompt_tokens") if "prompt_tokens" in rows else None,
        step=columns.counts(path, rows, "step") if "step" in rows else None,
    )


def _from_histogram(path: Path, rows: pd.DataFrame, cap: int | None, name: str, responses: int) -> Trace:
    low, high = (columns.counts(path, rows, column) for column in ("lo", "hi"))
    try:
        lengths = sample_histogram(low, high, columns.numbers(path, rows, "prob"), responses)
    except ValueError as error:
        raise UserError(f"{path} is no length histogram: {error}.") from None
    if cap is not None and high.max() > cap:
        raise UserError(f"{path}: the last bin ends at {high.max()}, above the cap {cap}: give a larger cap, or none.")
    remark = f"{responses} lengths made of a histogram of {len(rows)} bins; every response is a prompt of its own."
    return make_trace(lengths, cap=cap, name=name, remarks=(remark,))
