"""Measures what a replica's engine steps cost: tau(b), the context term, prefill (paper 2.1 and Appendix D).

Every measurement is a run of b equal requests, ``ignore_eos``, on all replicas at once; with one replica it is the
engine alone, with R the engine as it is while the other R - 1 are as busy. On a GPU of its own per replica that makes
no difference; replicas that share memory bandwidth or caches (cores of one CPU) slow each other, and are to be
calibrated together.

A pass is two runs at each batch size, with short and with long prompts: their difference is the context term, their
mean without it is tau(b), so that tau is right in the middle of the contexts that were measured (a term that is not
quite linear then errs least where it is used). Their starts tell the prefill cost. Passes start with another batch size
each time, so that a slow spell of the machine does not fall on the same one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.calibration import Calibration, Point, machine_words
from tailsieve_verl.replay.engine import EngineSpec, Place, ReplicaProcess, Request, run_together, start_replicas
from tailsieve_verl.replay.fit import (
    Prefill,
    Steps,
    clean_curve,
    decode_steps,
    fit_context,
    fit_prefill,
    prefill_phase,
)

#: Prompt of a run that is to have little context.
SHORT_PROMPT = 16
#: Prompt of a run that is to have much, where the model and the KV cache have room for it.
LONG_PROMPT = 1024
#: Share of the KV cache that a run may fill: no measurement is to run into preemption.
KV_SHARE = 0.8
#: Prompt tokens of all requests of such a run on the CPU, where a thousand take half a second.
CPU_LONG_TOKENS = 4096
#: Least length of a long prompt; a shorter one tells little.
LEAST_LONG = 4 * SHORT_PROMPT
#: A step that takes more medians than this is the machine's hiccup and counts as one of this length. Below it the mean
#: counts, not the median: a makespan is a sum of steps, and their times lean to the long side (by 1 to 3 % here).
HICCUP = 1.5
WARM_UP_TOKENS = 8

OnResult = Callable[[Calibration], None]
Tick = Callable[[str, int, int], None]
"""What is measured, how many runs are done, how many there are."""


def default_batch_sizes(facts: dict[str, Any], tokens: int) -> list[int]:
    """Powers of two up to max_num_seqs, that one included, as far as the KV cache holds them."""
    largest = min(facts["max_num_seqs"], int(KV_SHARE * facts["kv_tokens"]) // _blocks(SHORT_PROMPT + tokens, facts))
    if largest < 1:
        raise UserError(f"the KV cache ({facts['kv_tokens']} tokens) is too small to measure anything; give it more.")
    sizes = [1 << i for i in range(largest.bit_length())]
    return sizes if sizes[-1] == largest else [*sizes, largest]


@dataclass(frozen=True)
class _Load:
    """b requests of equal prompt and response length."""

    batch: int
    prompt: int
    tokens: int


@dataclass(frozen=True)
class _Measured:
    """One run of one replica; ``rate``: tokens that a request got a step; seconds of wall (or clock) and CPU time."""

    steps: Steps
    phase: Prefill
    rate: float
    seconds: float
    cpu_s: float


def calibrate(
    replicas: Sequence[ReplicaProcess],
    *,
    batch_sizes: Sequence[int] | None = None,
    tokens: int = 64,
    repeats: int = 3,
    long_prompt: int = LONG_PROMPT,
    seed: int = 0,
    model: str = "",
    on_result: OnResult | None = None,
    tick: Tick | None = None,
) -> Calibration:
    """Measure the costs of an engine step on replicas that are ready.

    Args:
        batch_sizes: default: powers of two up to max_num_seqs.
        tokens: steps of a run.
        repeats: passes.
        long_prompt: prompt tokens of the runs with much context, less where there is no room for it: about the
            length up to which responses run.
        on_result: called with all that is known after each run from the moment there is a curve.

    Raises:
        UserError: a batch size that the engine does not hold, or a worker that dies.
        ValueError: tokens or repeats below 1.
    """
    if tokens < 2 or repeats < 1:
        raise ValueError(f"tokens must be at least 2 and repeats at least 1, got {tokens} and {repeats}")
    facts = replicas[0].facts
    sizes = sorted(set(batch_sizes)) if batch_sizes else default_batch_sizes(facts, tokens)
    _check_sizes(sizes, tokens, facts)
    loads = _loads(sizes, tokens, long_prompt, facts)
    rng = np.random.default_rng(seed)
    measured: list[tuple[_Load, _Measured]] = []
    frame = Calibration(
        curve=clean_curve([1], [1.0]),
        model=model,
        machine=machine_words([replica.facts.get("device", "cpu") for replica in replicas]),
        replicas=len(replicas),
        versions=facts.get("versions", {}),
        engine={name: value for name, value in facts.items() if name != "versions"},
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        complete=False,
        clock=facts.get("clock", "wall"),
    )
    total = len(loads) * repeats
    for done, load in enumerate(load for load in loads if load.prompt == SHORT_PROMPT):
        if tick:
            tick("warm-up", done, len(sizes))
        _measure(replicas, replace(load, tokens=min(load.tokens, WARM_UP_TOKENS)), rng)
    for done in range(total):
        start = (done // len(loads)) * len(loads) // repeats  # passes start evenly spread over the loads
        load = loads[(start + done) % len(loads)]
        if tick:
            tick(f"batch size {load.batch}", done, total)
        measured += [(load, one) for one in _measure(replicas, load, rng)]
        if on_result and any(one.steps.seconds.size for _, one in measured):
            on_result(_fitted(frame, measured))
    if tick:
        tick("done", total, total)
    result = replace(_fitted(frame, measured), complete=True)
    if on_result:
        on_result(result)
    return result


def calibrate_depths(
    spec: EngineSpec,
    places: Sequence[Place],
    speculative: dict[str, Any],
    depths: Sequence[int],
    on_result: Callable[[int, Calibration], None] | None = None,
    **options: Any,
) -> dict[int, Calibration]:
    """A calibration for each speculation depth, the engines started anew for each.

    Args:
        speculative: vLLM's ``speculative_config`` without ``num_speculative_tokens``.
        depths: draft tokens per step; 0 is an engine without drafter.
        options: of `calibrate`.

    A curve is then seconds per engine step that verifies ``depth`` draft tokens; see `Calibration`. A drafter that
    always drafts (a model, MTP) is needed: ngram finds nothing to draft in the random text of a measurement. Run so far
    with ngram on the CPU only, where engines start and run at each depth; with no drafter that has weights, on no GPU.
    """
    found = {}
    for depth in depths:
        extra = dict(spec.extra)
        if depth:
            extra["speculative_config"] = {**speculative, "num_speculative_tokens": depth}
        with start_replicas(replace(spec, extra=extra), places) as replicas:

            def keep(result: Calibration, depth: int = depth) -> None:
                if on_result:
                    on_result(depth, replace(result, speculation_depth=depth))

            result = calibrate(replicas, on_result=keep, **options)
        found[depth] = replace(result, speculation_depth=depth)
    return found


def _check_sizes(sizes: Sequence[int], tokens: int, facts: dict[str, Any]) -> None:
    for size in sizes:
        if not 1 <= size <= facts["max_num_seqs"]:
            raise UserError(f"batch size {size} is not in 1..{facts['max_num_seqs']}, the engine's max_num_seqs.")
        if size * _blocks(SHORT_PROMPT + tokens, facts) > facts["kv_tokens"]:
            raise UserError(
                f"batch size {size} with {SHORT_PROMPT + tokens} tokens a request does not fit into the KV cache "
                f"({facts['kv_tokens']} tokens); measure smaller ones, or give the cache more room."
            )


def _blocks(tokens: int, facts: dict[str, Any]) -> int:
    """Tokens of cache that a request of ``tokens`` takes."""
    return -(-tokens // facts["block_size"]) * facts["block_size"]


def _loads(sizes: Sequence[int], tokens: int, long_prompt: int, facts: dict[str, Any]) -> list[_Load]:
    """One pass."""
    loads = []
    for size in sizes:
        loads.append(_Load(size, SHORT_PROMPT, tokens))
        cached = int(KV_SHARE * facts["kv_tokens"]) // size // facts["block_size"] * facts["block_size"]
        prompt = min(long_prompt, facts["max_model_len"] - tokens, cached - tokens)
        if facts["device"] == "cpu":
            prompt = min(prompt, CPU_LONG_TOKENS // size)
        if prompt >= LEAST_LONG:
            loads.append(_Load(size, prompt, tokens))
    return loads


def _measure(replicas: Sequence[ReplicaProcess], load: _Load, rng: np.random.Generator) -> list[_Measured]:
    """One run of the load on every replica at once; an entry a replica."""
    vocabulary = replicas[0].facts["vocab_size"]
    requests: list[list[Request]] = [
        [(random_prompt(rng, load.prompt, vocabulary), load.tokens) for _ in range(load.batch)] for _ in replicas
    ]
    found = []
    for run in run_together(replicas, requests):
        table = np.array(run.steps)
        rate = float(table[:, 2].sum() / max(1.0, table[:, 1].sum()))
        steps, phase = decode_steps(run, load.batch), prefill_phase(run, load.batch * load.prompt)
        found.append(_Measured(steps, phase, rate, run.seconds, run.cpu_s))
    return found


def random_prompt(rng: np.random.Generator, tokens: int, vocabulary: int) -> list[int]:
    """Random token ids, without the first ones, which are special tokens in most vocabularies."""
    return rng.integers(min(16, vocabulary - 1), vocabulary, size=tokens).tolist()


def _point(batch: int, kinds: Sequence[Sequence[np.ndarray]]) -> Point:
    """From the steps, without context, of each run of each kind of load (short and long prompts)."""
    runs = [run for kind in kinds for run in kind]
    every = np.concatenate(runs)
    low, median, high = np.percentile(every, [25, 50, 75]).tolist()
    seconds = float(np.mean([_cut_mean(np.concatenate(kind)) for kind in kinds]))
    return Point(batch, seconds, median, low, high, tuple(float(np.median(run)) for run in runs), every.size)


def _cut_mean(seconds: np.ndarray) -> float:
    """The mean, each step counted with at most `HICCUP` medians."""
    return float(np.minimum(seconds, HICCUP * np.median(seconds)).mean())


def _fitted(frame: Calibration, measured: Sequence[tuple[_Load, _Measured]]) -> Calibration:
    full = [(load, one.steps) for load, one in measured if one.steps.seconds.size]
    k = fit_context([steps for _, steps in full])
    by_load: dict[int, dict[int, list[np.ndarray]]] = {}
    for load, steps in full:
        cleaned = steps.seconds - k * steps.context
        by_load.setdefault(load.batch, {}).setdefault(load.prompt, []).append(cleaned)
    points = [_point(batch, list(kinds.values())) for batch, kinds in sorted(by_load.items())]
    if not points:
        raise UserError("no run has had a decode step at full batch: measure more tokens a request.")
    curve = clean_curve([p.batch_size for p in points], [p.seconds for p in points])
    prefill, fixed = fit_prefill([one.phase for _, one in measured], curve, k)
    seconds, cpu_s = (sum(getattr(one, name) for _, one in measured) for name in ("seconds", "cpu_s"))
    return replace(
        frame,
        curve=curve,
        context_seconds_per_token=k,
        prefill_seconds_per_token=prefill,
        fixed_seconds=fixed,
        points=tuple(points),
        cpu_share=cpu_s / seconds if frame.engine.get("device") == "cpu" and cpu_s else None,
        tokens_per_step=float(np.mean([one.rate for _, one in measured])),
    )
