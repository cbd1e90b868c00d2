"""What the sessions of a step say about v, tokens per second and request, at the knots of a grid of batch sizes.

Each session, cut ones included, is one linear equation, tokens = integral of v(b(t)) dt over its life, with v linear
between the knots (online_tau.py).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.sessions import SessionTable

Floats = NDArray[np.float64]

#: Knots of v: every size while sizes are few, then two per octave: between them a linear v errs by about 1 %.
GRID = np.unique(np.concatenate(([1, 2, 3, 4], np.round(2.0 ** np.arange(2.0, 15.1, 0.5))))).astype(np.float64)
#: Requests started within this share of their life are taken to have started together.
STARTED_TOGETHER = 0.02


def equations(table: SessionTable) -> tuple[NDArray[np.int64], Floats]:
    """Sessions by replica and end, [K], and the seconds each spent at each knot: its tokens are these times v.

    Returns:
        indices of the sessions, and their equations [knots visited, K].
    """
    count = table.tokens.size
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros((1, 0))
    time = np.concatenate((table.started_s, table.ended_s))
    event = np.lexsort((time, np.concatenate((table.replica, table.replica))))
    end = event >= count
    batch = np.cumsum(np.where(end, -1, 1))
    lasted = np.where(batch[:-1] > 0, np.diff(time[event]), 0.0)  # between replicas nothing is active
    knots, shares = _around(int(batch.max()).bit_length())
    low, share = knots.take(batch[:-1]), shares.take(batch[:-1])
    spent = np.zeros((int(low.max()) + 2, 2 * count))
    column = np.arange(1, 2 * count)
    spent[low, column] = lasted * (1.0 - share)
    spent[low + 1, column] = lasted * share
    reached = np.cumsum(spent, axis=1)
    place = np.empty(2 * count, dtype=np.int64)
    place[event] = np.arange(2 * count)
    session = event[end] - count
    return session, reached.take(place[session + count], axis=1) - reached.take(place[session], axis=1)


@cache
def _around(octaves: int) -> tuple[NDArray[np.int64], Floats]:
    """Knot below each batch size up to 2^octaves, and how far the size is on its way to the next knot, 0..1."""
    size = np.arange(2**octaves + 1)
    low = np.clip(np.searchsorted(GRID, size, side="right") - 1, 0, GRID.size - 2)
    return low, np.clip((size - GRID[low]) / (GRID[low + 1] - GRID[low]), 0.0, 1.0)


def between_completions(
    rows: Floats, tokens: Floats, replica: NDArray[np.int64], started: Floats, ended: Floats
) -> tuple[Floats, Floats]:
    """Equations of what happened between one completion on a replica and the next, [knots visited, K] and [K].

    The difference of two requests that started together is what the longer one did after the other had ended: a short
    stretch at about one batch size, where a whole request is an average over all of them.

    Args:
        rows, tokens: equations [knots visited, sessions] and [sessions], in the order of `equations`.
        replica, started, ended: of these sessions.
    """
    together = np.abs(np.diff(started)) <= STARTED_TOGETHER * (ended - started)[1:]
    rows, tokens = np.diff(rows, axis=1), np.diff(tokens)
    sound = together & (np.diff(replica) == 0) & (tokens > 0) & (rows.sum(axis=0) > 0)
    return np.maximum(rows.compress(sound, axis=1), 0.0), tokens[sound]
