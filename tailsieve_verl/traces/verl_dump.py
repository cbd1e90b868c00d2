"""What verl writes for `trainer.rollout_data_dir`: a folder with one `<step>.jsonl` a training step.

A line is one response: `input` and `output` as text without special tokens, `gts`, `score`, `step`, and whatever the
reward function adds (verl 0.9.1, `_write_generations`). There are no token counts, so they are counted or estimated
here; the end token is in neither.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.trace import Trace, make_trace

#: Characters per token where there is no tokenizer.
CHARACTERS_PER_TOKEN = 4
#: A text that was cut at the cap may give a few tokens more when it is tokenized again; more than this is a wrong cap.
_RETOKENIZED = 1.05


def read_verl_dump(
    folder: str | os.PathLike[str], *, count_tokens: Callable[[str], int] | None = None, cap: int | None = None
) -> Trace:
    """The responses of a verl run, steps in order, inside a step in the order of its lines.

    The prompt is told by its text, the checkpoint is the training step (also in `Trace.step`). One run sees a prompt
    once an epoch, so most prompts have responses at one checkpoint only.

    Args:
        folder: the run's `trainer.rollout_data_dir`.
        count_tokens: number of tokens of a text, for example `token_counter("Qwen/Qwen3-8B")`; None: characters / 4,
            said in `Trace.remarks`.
        cap: the run's `data.max_response_length` in tokens; lengths that come out a little above it, or any estimated
            ones, are set to it, and whatever reaches it counts as truncated.

    Raises:
        UserError: no such folder, no `<step>.jsonl` in it, a line that is no verl response, or counted lengths far
            above the cap.
    """
    folder = Path(folder)
    if cap is not None and cap < 1:
        raise UserError(f"the cap must be at least 1 token, got {cap}.")
    count = count_tokens or _estimate
    prompt_length: dict[str, int] = {}
    prompts, tokens, steps, prompt_tokens = [], [], [], []
    for step, path in _step_files(folder):
        for number, line in _lines(path):
            question, answer = line["input"], line["output"]
            prompt = _hash(question)
            if prompt not in prompt_length:
                prompt_length[prompt] = count(question)
            length = count(answer)
            if cap is not None and count_tokens is not None and length > cap * _RETOKENIZED + 1:
                raise UserError(
                    f"{path} line {number}: the output has {length} tokens, above the cap {cap}: give the run's "
                    "data.max_response_length and its own tokenizer."
                )
            prompts.append(prompt)
            prompt_tokens.append(prompt_length[prompt])
            tokens.append(length if cap is None else min(length, cap))
            steps.append(step)
    if not tokens:
        raise UserError(f"{folder} holds no response: every <step>.jsonl in it is empty.")
    remarks = ["verl dumps leave special tokens out: lengths lack the end token."]
    if count_tokens is None:
        remarks = [f"no tokenizer was given: lengths are estimated as characters / {CHARACTERS_PER_TOKEN}."]
    return make_trace(
        np.array(tokens),
        prompts,
        [str(step) for step in steps],
        prompt_tokens=np.array(prompt_tokens),
        cap=cap,
        name=folder.resolve().name,
        step=np.array(steps),
        remarks=tuple(remarks),
    )


def read_prompts(folder: str | os.PathLike[str], steps: Collection[int]) -> dict[int, Counter[str]]:
    """By training step, the prompts it trained on, each as a hash of its text, with the number of their responses.

    Args:
        steps: those that are read, where they are there; a run that goes on may be writing another.

    Raises:
        UserError: as :func:`read_verl_dump`.
    """
    files = [(step, path) for step, path in _step_files(Path(folder)) if step in steps]
    return {step: Counter(_hash(line["input"]) for _, line in _lines(path)) for step, path in files}


def token_counter(tokenizer: str) -> Callable[[str], int]:
    """Number of tokens of a text by a Hugging Face tokenizer: a folder, or a model's name.

    Raises:
        UserError: transformers is not installed, or it cannot load that tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError("a tokenizer needs transformers: install it, or leave the tokenizer out.") from None
    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer)
    except Exception as error:  # transformers raises whatever its parts raise
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"the tokenizer {tokenizer!r} cannot be loaded ({reason}): give a folder that holds one, or a model's name."
        ) from None
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _estimate(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _step_files(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the run's trainer.rollout_data_dir.")
    found = sorted((int(path.stem), path) for path in folder.glob("*.jsonl") if path.stem.isdigit())
    if not found:
        raise UserError(f"{folder} holds no <step>.jsonl: give the run's trainer.rollout_data_dir.")
    return found


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except ValueError:
                    raise UserError(
                        f"{path} line {number} is no JSON: delete it if the run was stopped while it wrote."
                    ) from None
                whole = isinstance(line, dict) and all(isinstance(line.get(key), str) for key in ("input", "output"))
                if not whole:
                    raise UserError(f"{path} line {number} must be an object with the texts 'input' and 'output'.")
                yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): give files of UTF-8 text.") from None
