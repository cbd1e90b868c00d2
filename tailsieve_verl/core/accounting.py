"""How many groups a step launches: the table that must never break.

Invariants, for carried c and left over c':
    * F = (N - c) + c', so that c + F = N + c'.
    * tail + residual = c: every carried group runs, and always finishes.
    * the last step leaves nothing over.

The one rule behind the table: a step runs ``min(c, q)`` of its carried groups in the tail pool, drains the others in
the bulk pool, and leaves q groups over. First step, growth, shrinking and leaving for uniform are cases of it.
"""

from __future__ import annotations

from tailsieve_verl.core.plan import LaunchCounts


def launch_counts(
    n_groups: int, carried: int, q: int, *, last: bool = False, stream_left: int | None = None
) -> LaunchCounts:
    """Groups to launch on each route.

    Args:
        n_groups: N, groups in an update batch, at least 1.
        carried: c, groups carried into the step, 0..N.
        q: isolation size aimed at, 0..N-1; 0 is uniform.
        last: whether this is the last step of training, which must leave nothing over.
        stream_left: prompts left in the stream, if it ends; ``None`` if it does not.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if n_groups < 1:
        raise ValueError(f"n_groups must be at least 1, got {n_groups}")
    if not 0 <= carried <= n_groups:
        raise ValueError(f"carried must be in 0..{n_groups} (n_groups), got {carried}")
    if not 0 <= q < n_groups:
        raise ValueError(f"q must be in 0..{n_groups - 1} (n_groups - 1), got {q}")
    if stream_left is not None and stream_left < 0:
        raise ValueError(f"stream_left must not be negative, got {stream_left}")
    tail = min(carried, q)
    needed = n_groups - carried
    fresh = needed + (0 if last else q)
    if stream_left is not None:
        fresh, needed = min(fresh, stream_left), min(needed, stream_left)
    return LaunchCounts(tail=tail, residual=carried - tail, fresh=fresh, fresh_needed=needed)
