"""Did two runs train on the same prompts in the same order? Only then are their steps pairs.

TailSieve moves a prompt to a later step (it carries it), but draws the same stream: the n-th prompt of one run must be
the n-th of the other. Runs without a record are compared by their dumped texts: after T steps of N prompts each, all
but the carried ones, fewer than N, are the same.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

from tailsieve_verl.compare.runlog import RunLog
from tailsieve_verl.traces.verl_dump import read_prompts


def difference(one: RunLog, other: RunLog) -> str | None:
    """Why the runs cannot be paired step by step, in words; ``None`` if they can."""
    for key, meaning in (("n_groups", "prompt groups a step"), ("n", "responses a group"), ("replicas", "replicas")):
        if key in one.shape and key in other.shape and one.shape[key] != other.shape[key]:
            return f"{one.label} has {one.shape[key]} {meaning} and {other.label} {other.shape[key]}"
    if one.stream and other.stream:
        return _by_serial(one, other)
    if one.dump and other.dump:
        return _by_text(one, other)
    without = one if not (one.stream or one.dump) else other
    return f"{without.label} has neither a TailSieve record nor rollout dumps that would tell its prompts"


def _by_serial(one: RunLog, other: RunLog) -> str | None:
    common = sorted(one.stream.keys() & other.stream.keys())
    for serial in common:
        if one.stream[serial] != other.stream[serial]:
            return (
                f"prompt {serial} of the stream is {one.stream[serial]} in {one.label} and {other.stream[serial]} in "
                f"{other.label}"
            )
    return None if common else f"{one.label} and {other.label} have no step in common"


def _by_text(one: RunLog, other: RunLog) -> str | None:
    first, second = _texts(one), _texts(other)
    common = sorted(first.keys() & second.keys())
    if not common:
        return f"{one.label} and {other.label} have no dumped step in common"
    n = [min(texts[common[0]].values(), default=0) for texts in (first, second)]
    if n[0] != n[1]:
        return f"{one.label} has {n[0]} responses a group and {other.label} {n[1]}"
    ours = frozenset().union(*(first[step] for step in common))
    theirs = frozenset().union(*(second[step] for step in common))
    batch = max(len(texts[step]) for texts in (first, second) for step in common)
    apart = max(len(ours - theirs), len(theirs - ours))
    # With one batch alone, sets that share nothing would pass: at least half must be shared then.
    if apart >= batch or apart > min(len(ours), len(theirs)) / 2:
        return (
            f"{apart} prompts of {one.label} or {other.label} are not in the other's steps {common[0]} to {common[-1]}"
        )
    return None


def _texts(run: RunLog) -> dict[int, Counter[str]]:
    assert run.dump is not None
    return _read(run.dump, frozenset(run.steps))


@cache
def _read(folder: Path, steps: frozenset[int]) -> dict[int, Counter[str]]:
    return read_prompts(folder, steps)
