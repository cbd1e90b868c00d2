"""The prompt history on disk: beside the checkpoint, from an earlier run, or from what plain verl dumped.

    global_step_K/tailsieve/history.npz    the forecast's arrays and the fingerprint, under a checksum of its own
    an earlier run's folder                its newest history.npz, else its record tailsieve/steps.jsonl
    trainer.rollout_data_dir of any run    <step>.jsonl; prompts are found by their text in this run's data set

A history says something only of the same prompts counted in the same tokens. Both are told by a fingerprint: the
number of rows and the content of some of the data set, and the tokenizer's vocabulary. Another one is refused with a
sentence.

Invariants: a file appears by a rename, so that it is whole or absent; one that is broken never ends a run, which goes
on without it and says so; nothing here is needed for a run to be right, only for it to be fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.errors import UserError
from tailsieve_verl.integration.checkpoint import FOLDER
from tailsieve_verl.integration.prompts import content_hash, prompt_key
from tailsieve_verl.records.lines import FILE
from tailsieve_verl.records.read import read_run
from tailsieve_verl.traces.verl_dump import read_verl_dump

logger = logging.getLogger(__name__)

HISTORY = "history.npz"
FORMAT = 1
#: Rows of the data set whose content is in its fingerprint: enough to tell any other data set of the same size.
ROWS = 64
#: Share of a dump's prompts that must be in the data set; fewer means that it is another one.
LEAST_FOUND = 0.5

Fingerprint = dict[str, str]


class HistoryMismatchError(UserError):
    """A history of other prompts or other tokens; the message says which and what to do."""


class _BrokenError(Exception):
    """A history file that cannot be read."""


def fingerprint(dataset: Any, tokenizer: Any) -> Fingerprint:
    """What a history is of: the data set (rows and content) and the tokenizer (vocabulary), as short texts."""
    return {"data set": _dataset_print(dataset), "tokenizer": _tokenizer_print(tokenizer)}


def save(step_folder: Path, forecast: LengthForecast, known: Fingerprint) -> None:
    """Write ``history.npz`` into a checkpoint; a full disk costs the file, not the run."""
    path = step_folder / FOLDER / HISTORY
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = forecast.arrays()
        head = json.dumps({"format": FORMAT, "fingerprint": known, "digest": _digest(arrays)})
        with temporary.open("wb") as file:
            np.savez(file, head=np.array(head), **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("tailsieve: the prompt history %s cannot be written: %s", path, error)
        with contextlib.suppress(OSError):
            temporary.unlink()


def restore(path: Path, forecast: LengthForecast, known: Fingerprint) -> bool:
    """Load a ``history.npz``; False, with a warning, if there is none or it is broken.

    Raises:
        HistoryMismatchError: it is of another data set or tokenizer.
    """
    try:
        arrays, head = _read(path)
        _same(path, head["fingerprint"], known)
        forecast.load_arrays(arrays)
    except (_BrokenError, ValueError) as error:
        if isinstance(error, HistoryMismatchError):
            raise
        logger.warning("tailsieve: the run goes on without the prompt history %s: %s", path, error)
        return False
    return True


def take_over(
    source: str,
    forecast: LengthForecast,
    known: Fingerprint,
    *,
    dataset: Any = None,
    tokenizer: Any = None,
    template: Mapping[str, Any] | None = None,
    cap: int | None = None,
) -> str:
    """Begin with the lengths of an earlier run; returns a sentence that says what was found.

    Args:
        source: a history file, a folder of a run with TailSieve, or a folder of verl's rollout dumps.
        dataset, tokenizer, template: of this run, for dumps: their prompts are found by their text.
        cap: data.max_response_length of the dumps' run.

    Raises:
        HistoryMismatchError: it is of another data set or tokenizer.
        UserError: there is nothing of the kind there.
    """
    path = Path(source)
    if not path.exists():
        raise UserError(f"history_from={source} does not exist; give a run's folder, a {HISTORY}, or verl's dumps.")
    file = path if path.is_file() and path.suffix == ".npz" else _newest(path)
    if file is not None:
        if not restore(file, forecast, known):
            return f"no prompt history from {file}"
        last = int(forecast.history.arrays()["step"].max(initial=0))
    elif (path / FILE).is_file() or path.name == FILE.name:
        last = _from_record(path, forecast, known)
    elif path.is_dir() and any(p.stem.isdigit() for p in path.glob("*.jsonl")):
        last = _from_dump(path, forecast, dataset, tokenizer, template or {}, cap)
    else:
        raise UserError(
            f"history_from={source} holds no {HISTORY}, no {FILE} and no <step>.jsonl; give a run's folder or its "
            f"trainer.rollout_data_dir."
        )
    forecast.history.shift_steps(-last)  # they lie before this run's first step
    return f"the prompt history begins with {len(forecast.history)} prompts from {file or path}"


# ---- files --------------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        head = json.loads(str(arrays.pop("head")))
        if head["format"] != FORMAT:
            raise _BrokenError(f"it has format {head['format']}, this version reads format {FORMAT}")
        if head["digest"] != _digest(arrays):
            raise _BrokenError("its content does not match its checksum")
        head["fingerprint"].items()
    except FileNotFoundError:
        raise _BrokenError("there is none") from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise _BrokenError(f"it is truncated or corrupted ({type(error).__name__})") from None
    return arrays, head


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    sums = hashlib.blake2b(digest_size=12)
    for name in sorted(arrays):
        sums.update(name.encode())
        sums.update(np.ascontiguousarray(arrays[name]).tobytes())
    return sums.hexdigest()


def _same(path: Path, theirs: Mapping[str, str], ours: Fingerprint) -> None:
    other = [what for what in ours if theirs.get(what) != ours[what]]
    if other:
        raise HistoryMismatchError(
            f"the prompt history {path} is of another {' and another '.join(other)} than this run's; remove it or "
            f"trainer.v1.tailsieve.history_from, or set trainer.v1.tailsieve.selector=cutoff."
        )


def _newest(folder: Path) -> Path | None:
    """The history of a run's last checkpoint that has one."""
    if not folder.is_dir():
        return None
    found = {}
    for path in folder.glob(f"global_step_*/{FOLDER}/{HISTORY}"):
        step = re.search(r"global_step_(\d+)$", path.parent.parent.name)
        if step:
            found[int(step[1])] = path
    if (folder / FOLDER / HISTORY).is_file():  # a checkpoint's own folder
        return folder / FOLDER / HISTORY
    return found[max(found)] if found else None


# ---- other sources ------------------------------------------------------------------------------------------------


def _from_record(path: Path, forecast: LengthForecast, known: Fingerprint) -> int:
    """Take in a run's record; returns its last step."""
    run = read_run(path)
    if "fingerprint" in run.run:
        _same(run.path, run.run["fingerprint"], known)
    else:
        logger.warning("tailsieve: %s does not say of which data set it is; it is taken for this run's", run.path)
    last = 0
    for step in run.steps:
        groups = [g for g in step["groups"] if g["status"] != "failed" and g["key"] and any(g["tokens"])]
        by_size: dict[int, list[dict[str, Any]]] = {}
        for group in groups:
            by_size.setdefault(len(group["tokens"]), []).append(group)
        for some in by_size.values():
            forecast.take_in(
                step["step"],
                [g["key"] for g in some],
                np.array([g["tokens"] for g in some], dtype=np.float64),
                np.array([g["complete"] for g in some], dtype=np.bool_),
                np.array([g["route"] not in ("tail", "residual") for g in some]),
            )
        last = step["step"]
    return last


def _from_dump(
    path: Path, forecast: LengthForecast, dataset: Any, tokenizer: Any, template: Mapping[str, Any], cap: int | None
) -> int:
    """Take in verl's rollout dumps; returns their last step."""
    trace = read_verl_dump(path, count_tokens=_counter(tokenizer), cap=cap)
    wanted = set(trace.prompt_ids)
    keys: dict[str, str] = {}
    for text, key in _texts(dataset, tokenizer, template):
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if name in wanted:
            keys.setdefault(name, key)
    found = len(keys) / len(wanted)
    if found < LEAST_FOUND:
        raise HistoryMismatchError(
            f"only {found:.0%} of the prompts in {path} are in this run's data set; give the dumps of a run on the "
            f"same data with the same chat template, or leave trainer.v1.tailsieve.history_from out."
        )
    assert trace.step is not None
    for step in np.unique(trace.step).tolist():
        groups: dict[str, list[int]] = {}
        for prompt, tokens in zip(trace.prompt[trace.step == step], trace.tokens[trace.step == step], strict=True):
            groups.setdefault(trace.prompt_ids[prompt], []).append(int(tokens))
        some = {keys[name]: lengths for name, lengths in groups.items() if name in keys}
        for n in sorted({len(lengths) for lengths in some.values()}):
            mine = {key: lengths for key, lengths in some.items() if len(lengths) == n}
            tokens = np.array(list(mine.values()), dtype=np.float64)
            every = np.ones(len(mine), dtype=np.bool_)
            forecast.take_in(step, list(mine), tokens, np.ones_like(tokens, dtype=np.bool_), every)
    return int(trace.step.max())


def _texts(dataset: Any, tokenizer: Any, template: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Text and key of every prompt of a data set, as verl writes the text into its dumps."""
    found = []
    for i in range(len(dataset)):
        row = dataset[i]
        ids = tokenizer.apply_chat_template(
            row["raw_prompt"], add_generation_prompt=True, tokenize=True, return_dict=False, **template
        )
        found.append((tokenizer.decode(ids, skip_special_tokens=True), prompt_key(_batched(row))))
    return found


def _batched(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [row[name]] for name in ("data_source", "extra_info", "raw_prompt") if name in row}


def _counter(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


# ---- fingerprints -------------------------------------------------------------------------------------------------


def _dataset_print(dataset: Any) -> str:
    try:
        size = len(dataset)
        rows = np.unique(np.linspace(0, size - 1, min(ROWS, size)).round().astype(int)).tolist()
        parts = [content_hash(dataset[i].get("raw_prompt", "")) for i in rows]
    except Exception as error:  # a data set of the user's own kind may do anything
        logger.warning("tailsieve: the data set is told by its class alone (%s)", error)
        return type(dataset).__name__
    return f"{size}:{hashlib.blake2b(''.join(parts).encode(), digest_size=8).hexdigest()}"


def _tokenizer_print(tokenizer: Any) -> str:
    vocabulary = hashlib.blake2b(digest_size=8)
    try:
        # Some tokenizers name tokens by bytes, and their special ones by text.
        for token, number in sorted((str(token), number) for token, number in tokenizer.get_vocab().items()):
            vocabulary.update(f"{token}\t{number}\n".encode("utf-8", "surrogatepass"))
    except Exception as error:  # a tokenizer of the user's own kind may have no vocabulary to give
        logger.warning("tailsieve: the tokenizer is told by its class alone (%s)", error)
        return type(tokenizer).__name__
    return vocabulary.hexdigest()
