"""From a trace to a load that a small machine can run: N prompts, n lengths of each, scaled down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.errors import UserError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Picked:
    """A load by prompt group and rollout.

    Attributes:
        lengths: [N, n] tokens to generate.
        history: [N, n] another draw of the same prompts: what a policy may know of them.
        prompts: [N] index of each group's prompt in the trace.
        scale: factor between the trace's lengths and these.
        clipped: share of the responses cut to the limit after scaling.
        repeated: groups beyond the number of prompts in the trace, which repeat one.
    """

    lengths: Ints
    history: Ints
    prompts: Ints
    scale: float
    clipped: float
    repeated: int


def pick(
    tokens: ArrayLike,
    prompt: ArrayLike,
    *,
    groups: int,
    rollouts: int,
    seed: int = 0,
    scale: float | None = None,
    max_tokens: int | None = None,
) -> Picked:
    """Draw N prompts and, twice, n lengths of each.

    Prompts are drawn without replacement (with, if the trace has fewer than N). A prompt with at least 2 n responses
    gives each draw responses of its own; one with at least n gives each draw n different ones; one with fewer is drawn
    from with replacement.

    Args:
        tokens, prompt: [K] length and prompt index of each response.
        scale: factor for the lengths; default 1, or, with ``max_tokens``, what makes the longest one drawn that long.
        max_tokens: no length is more after scaling; the longer ones are cut.

    Raises:
        UserError: an empty trace, or an N, n, scale or limit that is not positive.
    """
    length, index = np.asarray(tokens, dtype=np.int64).ravel(), np.asarray(prompt, dtype=np.int64).ravel()
    for name, value in (("groups", groups), ("rollouts", rollouts), ("scale", scale), ("max_tokens", max_tokens)):
        if value is not None and not value > 0:
            raise UserError(f"{name} must be positive, got {value}.")
    if length.size == 0 or length.size != index.size:
        raise UserError("the trace is empty: it must hold a length and a prompt for every response.")
    rng = np.random.default_rng(seed)
    names, inverse = np.unique(index, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(length[order], np.cumsum(np.bincount(inverse))[:-1])
    repeated = max(0, groups - names.size)
    chosen = rng.permutation(names.size)[:groups]
    if repeated:
        chosen = np.concatenate((chosen, rng.integers(names.size, size=repeated)))
    draws = np.stack([_two_draws(rng, parts[g], rollouts) for g in chosen], axis=1)  # [2, N, n]
    if scale is None:
        scale = min(1.0, max_tokens / int(draws.max())) if max_tokens else 1.0
    scaled = np.maximum(1, np.rint(draws * scale)).astype(np.int64)
    limit = max_tokens or int(scaled.max())
    clipped = float((scaled[0] > limit).mean())
    scaled = np.minimum(scaled, limit)
    return Picked(scaled[0], scaled[1], names[chosen], float(scale), clipped, repeated)


def _two_draws(rng: np.random.Generator, lengths: Ints, n: int) -> Ints:
    """[2, n]"""
    if lengths.size >= 2 * n:
        return rng.permutation(lengths)[: 2 * n].reshape(2, n)
    if lengths.size >= n:
        return np.stack([rng.permutation(lengths)[:n] for _ in range(2)])
    return rng.choice(lengths, size=(2, n))
