"""A dump as a trace in tokens: counted by the tokenizer, else estimated; and the response limit, told by the lengths.

Without a tokenizer a token is taken as four characters, or as many as make the mean the log's `response_length/mean`.
The gain hardly depends on it, as all lengths scale together; the cap and the truncated share do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.advise.steplog import MEAN_TOKENS, MOST_TOKENS, StepLog
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.files import read_trace
from tailsieve_verl.traces.trace import Trace
from tailsieve_verl.traces.verl_dump import CHARACTERS_PER_TOKEN

#: Counting a cut text again gives up to this share fewer tokens than the cap; so near, it was cut.
_RECOUNTED = 0.01
#: A cap shows as this many responses at the maximum, and as many times the usual number just below it.
_PILE, _PILE_RATIO, _WINDOWS = 3, 3.0, 5
#: Mean lengths that differ by more than this are not the same count of tokens.
_SAME_TOKENS = 0.05


def read_dump(
    path: str | Path,
    *,
    tokenizer: str | None = None,
    log: StepLog | None = None,
    cap: int | None = None,
    last: int | None = None,
) -> Trace:
    """The responses of a run, from its dump folder or from a trace file made of it.

    Args:
        tokenizer: of the run's model; None estimates (module docstring).
        cap: data.max_response_length; None: told by the log or by a pile of equal longest lengths, if there is one.
        last: only so many steps from the end; a policy's early lengths say little about the later ones.

    Raises:
        UserError: what `read_trace` refuses, or a cap below the lengths.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: give the run's trainer.rollout_data_dir, or a trace file made of it.")
    exact = tokenizer is not None or not path.is_dir()
    trace = read_trace(path, tokenizer=tokenizer, cap=cap) if exact else read_trace(path, count_tokens=len)
    trace = _last(trace, last)
    steps = np.unique(_steps(trace)).tolist()
    if not exact:
        trace = _estimated(trace, log, steps)
    remarks = list(trace.remarks)
    if exact and log is not None:
        remarks += _other_count(trace, log)
    known = trace.cap if cap is None else cap
    if known is None:
        known, why = _told(trace, log, steps, exact)
        remarks += [why] if why else []
    return _capped(replace(trace, remarks=tuple(remarks)), known, exact and path.is_dir())


def told_cap(tokens: NDArray[np.int64]) -> int | None:
    """The cap that a pile-up at the top shows: many responses of one length there, few in equal windows just below."""
    most = int(tokens.max())
    width = max(round(2 * _RECOUNTED * most), 2)  # texts that are tokenized again also gain a token or two
    top = tokens[tokens > most - width]
    below = np.sum((tokens <= most - width) & (tokens > most - (1 + _WINDOWS) * width)) / _WINDOWS
    if top.size < _PILE or top.size < _PILE_RATIO * below:
        return None
    return int(np.bincount(top).argmax())


def _told(trace: Trace, log: StepLog | None, steps: Iterable[int], exact: bool) -> tuple[int | None, str]:
    most = list(log.get(MOST_TOKENS, steps).values()) if log is not None else []
    if most and most.count(max(most)) > 1:
        return int(
            max(most)
        ), f"{max(most):.0f} tokens, the longest response of several logged steps, are taken as the cap."
    found = told_cap(trace.tokens) if exact else None
    if found is not None:
        return found, f"{found} tokens, where responses pile up, are taken as the cap; --max-tokens sets it."
    return None, "the cap is not known (--max-tokens): truncated responses count as any other."


def _capped(trace: Trace, cap: int | None, recounted: bool) -> Trace:
    """Lengths held in 1..cap; of texts that were tokenized again, those just below it are put back to it."""
    if cap is None:
        return trace
    near = cap - max(round(_RECOUNTED * cap), 1) if recounted else cap
    tokens = np.where(trace.tokens > near, cap, trace.tokens)
    return replace(trace, tokens=tokens, truncated=tokens >= cap, cap=cap)


def _estimated(trace: Trace, log: StepLog | None, steps: Iterable[int]) -> Trace:
    """Characters to tokens."""
    means = log.get(MEAN_TOKENS, steps) if log is not None else {}
    per_token, why = float(CHARACTERS_PER_TOKEN), "no tokenizer was given (--model)"
    logged = np.isin(_steps(trace), list(means))
    if logged.any():
        tokens = sum(means[s] * np.sum(_steps(trace) == s) for s in means)
        per_token, why = float(trace.tokens[logged].sum() / tokens), "so that their mean is the log's"
    prompts = trace.prompt_tokens
    return replace(
        trace,
        tokens=np.maximum(np.rint(trace.tokens / per_token), 1).astype(np.int64),
        prompt_tokens=None if prompts is None else np.rint(prompts / per_token).astype(np.int64),
        remarks=(f"lengths are estimated as characters / {per_token:.3g}: {why}.",),
    )


def _other_count(trace: Trace, log: StepLog) -> list[str]:
    step = _steps(trace)
    means = log.get(MEAN_TOKENS, np.unique(step).tolist())
    if not means:
        return []
    ours = np.mean([trace.tokens[step == s].mean() for s in means])
    theirs = float(np.mean(list(means.values())))
    if abs(ours + 1 - theirs) <= _SAME_TOKENS * theirs + 1:  # the dump lacks the end token
        return []
    return [
        f"responses have {ours:.0f} tokens on average here and {theirs:.0f} in the log: "
        "are --model and the log the run's?"
    ]


def _last(trace: Trace, last: int | None) -> Trace:
    steps = np.unique(_steps(trace))
    return trace if last is None or last >= steps.size else trace.select(_steps(trace) >= steps[-last])


def _steps(trace: Trace) -> NDArray[np.int64]:
    return trace.checkpoint if trace.step is None else trace.step
