"""What the simulator says a placement takes, from the costs of a calibration."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.replay.calibration import Calibration


def predict(
    lengths: ArrayLike,
    assignment: ArrayLike,
    replicas: int,
    calibration: Calibration,
    *,
    prompt_tokens: int = 0,
) -> NDArray[np.float64]:
    """Seconds until each response is done, [N, n], when all are submitted at time 0.

    Args:
        lengths: [N, n] tokens by prompt group and rollout.
        assignment: [N, n] replicas.
        prompt_tokens: length of every prompt; the rollouts of a group have the same one.

    Prefix caching shares whole blocks only, and never a prompt's last token: the rollouts of a group that follow the
    first on their replica prefill the rest. With vLLM's blocks of 128 tokens on the CPU, shorter prompts share nothing.
    """
    from tailsieve_verl.simulate.engine import simulate_replicas

    tokens, where = np.asarray(lengths), np.asarray(assignment)
    groups = np.repeat(np.arange(tokens.shape[0]), tokens.shape[1])
    shared = _shared_tokens(prompt_tokens, calibration)
    outcome = simulate_replicas(
        tokens.ravel(),
        where.ravel(),
        replicas,
        calibration.costs(),
        prompt_tokens=np.full(tokens.size, prompt_tokens),
        share=groups if shared else None,
    )
    finish = outcome.finish.reshape(tokens.shape) + calibration.fixed_seconds
    if shared:
        for replica in range(replicas):
            mine = where == replica
            followers = int(mine.sum()) - int(mine.any(axis=1).sum())
            finish[mine] += calibration.prefill_seconds_per_token * followers * (prompt_tokens - shared)
    return finish


def largest_batch(assignment: ArrayLike, max_num_seqs: int | None = None) -> int:
    """Most requests that decode at once on a replica."""
    most = int(np.bincount(np.asarray(assignment).ravel()).max())
    return min(most, max_num_seqs) if max_num_seqs else most


def _shared_tokens(prompt_tokens: int, calibration: Calibration) -> int:
    if not calibration.engine.get("prefix_caching", True):
        return 0
    block = int(calibration.engine.get("block_size", 1))
    return max(0, prompt_tokens - 1) // block * block
