"""Exact two-replica optimum and top-k isolation when all lengths are known (paper 2.1, 2.2, A.4).

The dynamic program walks the requests in descending length. Given how many requests c lie on lane a after i of them (so
i - c on lane b), the i+1-th costs lane a L (tau(c+1) - tau(c)) or lane b L (tau(i-c+1) - tau(i-c)), whatever went
where before. So a state is (i, c, T_a, T_b), and a state is worth keeping only if none with the same (i, c) is as good
on both lanes. Lane a is the one with the longest request: that halves the states, since lanes are alike.

Two things keep the fronts small without giving up exactness:

- Completion bounds. For a weight w, h_w(i, c) = the least w dT_a + (1 - w) dT_b that the remaining requests can add; a
  second, scalar dynamic program gives it for all i and c. Every completion of a state has
  max(T_a, T_b) >= w T_a + (1 - w) T_b + h_w(i, c), so a state whose bound reaches the best known makespan is dropped.
- Widening. Passes that keep at most 16, 256, ... states per front find good solutions early; the least bound among the
  states that a pass set aside is a proven lower bound, so most instances are closed before a pass without a limit.

Invariants: optimum <= best-k isolation <= everything on one replica; `lower_bound` <= `makespan`; `proven` means that
they agree within PROOF_TOLERANCE. Nothing assumes that tau is monotone or concave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.checks import as_count, as_lengths
from tailsieve_verl.core.decode import DecodeCurve

#: Relative gap at which an optimum counts as proven. Rounding over a hundred additions is near 1e-14; at 1e-9 the exact
#: forms of the replica time are compared too, and searching below it would tell apart solutions a nanosecond apart.
PROOF_TOLERANCE = 1e-9
#: Weights of the completion bounds; any set is valid. On Table A.3 loads 9 of them are up to 1.5 times faster on
#: concave curves, but keep seven times the states on mildly convex ones (3.4 s against 0.6 s); 33 cost more than they
#: save.
BOUND_WEIGHTS = np.linspace(0.0, 1.0, 17)
#: States kept per front in the successive passes; 0 is no limit. Factors of 16 waste at most 1/16 on earlier passes.
PASS_WIDTHS = (16, 256, 4096, 65536, 0)
#: A pass is given up beyond this many states (4 bytes each are kept); the paper's program retains 1e6 to 1e7.
MAX_STATES = 30_000_000


@dataclass(frozen=True)
class SplitOptimum:
    """The best two-replica assignment and what proves it.

    Attributes:
        makespan: seconds, the larger of the two replica times under `assignment`.
        assignment: replica (0 or 1) of each request, in the input's order. Replica 1 has the longest request.
        lower_bound: seconds; no assignment is faster.
        states: states retained over all passes of the search.
        passes: passes run; 0 when the root bound already closes the instance.
    """

    makespan: float
    assignment: tuple[int, ...]
    lower_bound: float
    states: int
    passes: int

    @property
    def proven(self) -> bool:
        """Whether makespan and lower bound agree within PROOF_TOLERANCE."""
        return self.lower_bound >= self.makespan * (1.0 - PROOF_TOLERANCE)


def best_k_isolation(lengths: ArrayLike, curve: DecodeCurve) -> tuple[int, float]:
    """The best top-k isolation (paper 2.2): the k longest on one replica, the rest on the other.

    Args:
        lengths: tokens, [n].

    Returns:
        k in [0, n), the smallest one on ties (k = 0 is everything on one replica), and its makespan in seconds.

    Raises:
        ValueError: empty, negative or non-finite lengths.
    """
    descending = np.sort(as_lengths(lengths))[::-1]
    marginal = np.diff(curve.table(descending.size))
    tail = np.concatenate(([0.0], np.cumsum(descending * marginal)[:-1]))
    bulk = np.array([descending[k:] @ marginal[: descending.size - k] for k in range(descending.size)])
    makespans = np.maximum(tail, bulk)
    k = int(np.argmin(makespans))
    return k, float(makespans[k])


def optimal_split(lengths: ArrayLike, curve: DecodeCurve, *, max_states: int = MAX_STATES) -> SplitOptimum:
    """The exact two-replica optimum of max(T_0, T_1) over all 2^n assignments (paper 2.1).

    Args:
        lengths: tokens, [n]. About 0.1 s at n = 100 on long-tailed loads.
        max_states: a pass that would keep more gives up; the result then has `proven` False and a valid `lower_bound`.
            Only loads near plain number partitioning (tau nearly proportional to b) come close.

    Raises:
        ValueError: empty, negative or non-finite lengths; `max_states` below 1.
    """
    tokens = as_lengths(lengths)
    max_states = as_count(max_states, "max_states", 1)
    order = np.argsort(-tokens, kind="stable")
    search = _Search(tokens[order], curve.table(tokens.size))
    k, upper = best_k_isolation(tokens, curve)
    lane = np.zeros(tokens.size, dtype=np.int8)
    lane[: max(k, 1)] = 1
    if k == 0:  # everything on one replica, the one with the longest request
        lane[:] = 1
    lower = search.root_bound()
    states = passes = 0
    for width in PASS_WIDTHS:
        if lower >= upper * (1.0 - PROOF_TOLERANCE):
            break
        result = search.run(upper, width, max_states)
        passes += 1
        states += result.states
        if result.lane is not None:
            lane, upper = result.lane, result.makespan
        lower = max(lower, min(result.dropped_bound, upper))
    assignment = np.empty(tokens.size, dtype=np.int64)
    assignment[order] = lane
    return SplitOptimum(upper, tuple(assignment.tolist()), min(lower, upper), states, passes)


@dataclass(frozen=True)
class _Pass:
    """One pass: its best complete assignment if it improved (`lane` by rank), and the least bound it set aside."""

    makespan: float
    lane: NDArray[np.int8] | None
    dropped_bound: float
    states: int


@dataclass(frozen=True)
class _Front:
    """States that share (i, c), by rising T_a and falling T_b; `origin` is 2 * (index in its parent front) + (on a)."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    origin: NDArray[np.int32]


class _Search:
    """Passes over one instance: lengths [n] in descending order and the table tau(0..n)."""

    def __init__(self, descending: NDArray[np.float64], table: NDArray[np.float64]):
        self.lengths = descending
        self.marginal = np.diff(table)
        self.completion = self._completion_bounds()

    def root_bound(self) -> float:
        """A lower bound of every assignment, before any search."""
        first = self.lengths[0] * self.marginal[0]
        return max(0.0, float((BOUND_WEIGHTS * first + self.completion[1, 1]).max()))

    def run(self, upper: float, width: int, max_states: int) -> _Pass:
        """Search for an assignment better than `upper`, with at most `width` states per front (0: no limit)."""
        n, target = self.lengths.size, upper * (1.0 - PROOF_TOLERANCE)
        first = np.array([self.lengths[0] * self.marginal[0]])
        level = {1: _Front(first, np.zeros(1), np.ones(1, np.int32))}
        trail = [{1: level[1].origin}]
        dropped, states = np.inf, 1
        for i in range(1, n):
            following: dict[int, _Front] = {}
            for c in range(min(level) if level else 0, max(level, default=-1) + 2):
                front, set_aside = self._advance(level.get(c - 1), level.get(c), i, c, target, width)
                dropped = min(dropped, set_aside)
                if front is not None:
                    following[c] = front
                    states += front.a.size
            if states > max_states:
                return _Pass(upper, None, 0.0, states)
            level = following
            trail.append({c: front.origin for c, front in level.items()})
        best, lane = upper, None
        for c, front in level.items():
            makespans = np.maximum(front.a, front.b)
            k = int(np.argmin(makespans))
            if makespans[k] < best:
                best, lane = float(makespans[k]), _trace(trail, c, k)
        return _Pass(best, lane, dropped, states)

    def _advance(
        self, less: _Front | None, same: _Front | None, i: int, c: int, target: float, width: int
    ) -> tuple[_Front | None, float]:
        """The front (i+1, c): request i onto lane a from (i, c-1), onto lane b from (i, c)."""
        length, parts = self.lengths[i], []
        if less is not None:
            parts.append((less.a + length * self.marginal[c - 1], less.b, 1))
        if same is not None:
            parts.append((same.a, same.b + length * self.marginal[i - c], 0))
        if not parts:
            return None, np.inf
        a = np.concatenate([part[0] for part in parts])
        b = np.concatenate([part[1] for part in parts])
        origin = np.concatenate([np.arange(part[0].size, dtype=np.int32) * 2 + part[2] for part in parts])
        bound = np.full(a.size, -np.inf)
        for weight, rest in zip(BOUND_WEIGHTS.tolist(), self.completion[i + 1, c].tolist(), strict=True):
            np.maximum(bound, weight * a + (1.0 - weight) * b + rest, out=bound)
        keep = np.flatnonzero(bound < target)
        if not keep.size:
            return None, np.inf
        keep = keep[np.lexsort((b[keep], a[keep]))]
        best_b = np.minimum.accumulate(b[keep])
        keep = keep[np.concatenate(([True], b[keep][1:] < best_b[:-1]))]
        set_aside = np.inf
        if width and keep.size > width:
            keep, set_aside = _narrow(keep, bound, width)
        return _Front(a[keep], b[keep], origin[keep]), set_aside

    def _completion_bounds(self) -> NDArray[np.float64]:
        """h_w(i, c), [n+1, n+1, W] seconds: the least weighted time that requests i.. add to a state (i, c)."""
        n = self.lengths.size
        bounds = np.zeros((n + 1, n + 1, BOUND_WEIGHTS.size))
        for i in range(n - 1, -1, -1):
            on_a = np.arange(i + 1)
            to_a = self.lengths[i] * self.marginal[on_a][:, None] * BOUND_WEIGHTS
            to_b = self.lengths[i] * self.marginal[i - on_a][:, None] * (1.0 - BOUND_WEIGHTS)
            bounds[i, : i + 1] = np.minimum(to_a + bounds[i + 1, 1 : i + 2], to_b + bounds[i + 1, : i + 1])
        return bounds


def _narrow(keep: NDArray[np.intp], bound: NDArray[np.float64], width: int) -> tuple[NDArray[np.intp], float]:
    """`width` states of a front in their order, and the least bound among the others.

    Half are the most promising by bound; the other half are spread evenly over the front, because bounds tie on loads
    close to number partitioning and the ties would all come from one end.
    """
    rank = bound[keep].copy()
    rank[:: -(-keep.size // (width // 2))] = -np.inf
    chosen = np.zeros(keep.size, dtype=np.bool_)
    chosen[np.argpartition(rank, width)[:width]] = True
    return keep[chosen], float(bound[keep][~chosen].min())


def _trace(trail: list[dict[int, NDArray[np.int32]]], c: int, k: int) -> NDArray[np.int8]:
    """Lane by rank (1 is lane a) of the state k of the last front c."""
    lane = np.zeros(len(trail), dtype=np.int8)
    for i in range(len(trail) - 1, -1, -1):
        k, on_a = divmod(int(trail[i][c][k]), 2)
        lane[i] = on_a
        c -= on_a
    return lane
