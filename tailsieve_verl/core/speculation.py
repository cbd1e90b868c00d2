"""Speculative decoding in the cost model: what a draft depth yields and costs, and the best table of depths.

A step at depth d drafts d tokens for each of b running requests and verifies them at once. With a_k the chance that
draft position k is accepted given that the ones before it were, a step yields each request

    E(d) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_d           tokens (the acceptance length)

in s(b, d) seconds, so a request's token takes tau_d(b) = s(b, d) / E(d): a decode curve like any other. Drafts pay
while a step is bound by memory, at low b; at high b verifying costs what it saves. A depth table says which depth to
use at which b. The paper's fixed depth is a constant table (3.4); one that falls with b deepens drafts as a batch
drains.

Invariants
    * A table covers every batch size from 1; depth 0 is plain decoding.
    * E(0) = 1, E never falls with d, and E(d) <= d + 1.
    * Nothing here knows how drafts are made: all methods differ in a_k and s(b, d) only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.checks import as_count
from tailsieve_verl.core.decode import DecodeCurve

#: Least relative gain of throughput for which a table takes another depth at a batch size, or replaces one in force:
#: measured acceptance moves by a percent or two between steps, and a change costs a restart of what tau was learned.
LEAST_GAIN = 0.03
#: No drafter of today proposes more in one step; a depth beyond it is a slip, and costs time and memory with its size.
DEEPEST_ALLOWED = 64


@dataclass(frozen=True)
class Acceptance:
    """Chance of each draft position to be accepted, given that the ones before it were.

    Attributes:
        rates: a_1..a_D in 0..1; deeper positions are taken to be like the last one.
    """

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= a <= 1 for a in self.rates):
            raise ValueError(f"acceptance rates must be in 0..1, at least one, got {self.rates}")

    def length(self, depth: int) -> float:
        """E(depth), mean tokens of a step for each request."""
        total = passed = 1.0
        for k in range(as_count(depth, "depth", 0)):
            passed *= self.rates[min(k, len(self.rates) - 1)]
            total += passed
        return total

    @classmethod
    def from_tries(cls, tried: ArrayLike, passed: ArrayLike, *, prior: float = 0.5, weight: float = 2.0) -> Acceptance:
        """Estimate from how often each position was tried and accepted, [D] each (see `tries`).

        Args:
            prior, weight: a rate assumed, and the tries it counts for, so that a position tried twice says little.
        """
        rates = (np.asarray(passed, float) + prior * weight) / (np.asarray(tried, float) + weight)
        return cls(tuple(rates.tolist()))


def tries(counts: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How often each draft position came to be judged, and was accepted, [D] each.

    Args:
        counts: [D+1, D+1], chances to draft by tokens allowed (row) and accepted (column), accepted <= allowed; a
            position that the drafter had nothing to propose for has been judged and not accepted.

    Raises:
        ValueError: not square, negative, empty, or more accepted than proposed.
    """
    seen = np.asarray(counts, dtype=np.float64)
    if seen.ndim != 2 or seen.shape[0] != seen.shape[1] or seen.shape[0] < 2:
        raise ValueError(f"counts must be [D+1, D+1] with D at least 1, got shape {seen.shape}")
    if seen.min() < 0 or np.triu(seen, 1).any():
        raise ValueError("counts must not be negative, nor have more tokens accepted than proposed")
    depths = range(1, seen.shape[0])
    tried = np.array([seen[k:, k - 1 :].sum() for k in depths])  # k proposed, the k - 1 before accepted
    return tried, np.array([seen[k:, k:].sum() for k in depths])


@dataclass(frozen=True)
class DepthTable:
    """Draft depth by running batch size: depth d from batch size b on.

    Attributes:
        entries: (b, d) with b rising from 1.
    """

    entries: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        starts = [b for b, _ in self.entries]
        if not starts or starts[0] != 1 or any(a >= b for a, b in pairwise(starts)):
            raise ValueError(f"a depth table needs batch sizes rising from 1, got {self.entries}")
        if any(d < 0 for _, d in self.entries):
            raise ValueError(f"a depth must not be negative, got {self.entries}")

    @classmethod
    def constant(cls, depth: int) -> DepthTable:
        """The same depth whatever the batch (the paper's case)."""
        return cls(((1, depth),))

    @classmethod
    def from_list(cls, depths: Sequence[int]) -> DepthTable:
        """From depths at batch sizes 1, 2, ...; neighbours that agree are merged."""
        if not len(depths):
            raise ValueError("a depth table needs at least one depth")
        kept = [(1, int(depths[0]))]
        for b, d in enumerate(depths[1:], start=2):
            if d != kept[-1][1]:
                kept.append((b, int(d)))
        return cls(tuple(kept))

    def __call__(self, batch: int) -> int:
        """Depth at a batch size; that of one request below 1."""
        return next((d for b, d in reversed(self.entries) if batch >= b), self.entries[0][1])

    def as_list(self, largest: int) -> list[int]:
        """Depths at batch sizes 0..largest, as an engine looks them up."""
        return [self(b) for b in range(as_count(largest, "largest", 0) + 1)]

    @property
    def deepest(self) -> int:
        return max(d for _, d in self.entries)

    def __str__(self) -> str:
        return ",".join(f"{b}:{d}" for b, d in self.entries) if len(self.entries) > 1 else str(self.entries[0][1])


@dataclass(frozen=True)
class SpeculationCosts:
    """s(b, d): seconds of an engine step by running batch size and draft depth.

    Depths between measured ones are interpolated linearly, deeper ones continue the last slope.

    Attributes:
        steps: step time by batch size for each depth measured; depth 0 must be there.
    """

    steps: Mapping[int, DecodeCurve]

    def __post_init__(self) -> None:
        if 0 not in self.steps or any(d < 0 for d in self.steps):
            raise ValueError(f"costs need depth 0 and no negative one, got depths {sorted(self.steps)}")

    @classmethod
    def modelled(
        cls, curve: DecodeCurve, depths: Iterable[int], draft_share: float, pass_share: float = 0.0
    ) -> SpeculationCosts:
        """For want of a measurement: verifying d + 1 tokens of b requests takes what b (d + 1) requests take, and each
        draft token `draft_share` of a plain step.

        Args:
            pass_share: share of a plain step that drafting takes whatever the depth: a drafter that proposes a block at
                once (DFlash) has this cost alone.

        Raises:
            ValueError: a share that is negative or not finite.
        """
        for name, share in (("draft_share", draft_share), ("pass_share", pass_share)):
            if not 0 <= share < math.inf:
                raise ValueError(f"{name} must be a share of a step, 0 or more, got {share}")
        knots = np.array(curve.batch_sizes)
        found = {}
        for d in sorted({0, *depths}):
            sizes = np.union1d(knots, (knots / (d + 1))[knots >= d + 1])  # where either part bends
            drafting = (d * draft_share + (d > 0) * pass_share) * curve(sizes)
            found[d] = DecodeCurve(sizes, curve(sizes * (d + 1.0)) + drafting)
        return cls(found)

    def seconds(self, batch: ArrayLike, depth: int) -> NDArray[np.float64]:
        """s(batch, depth), of the shape of batch."""
        b = np.asarray(batch, dtype=np.float64)
        known = sorted(self.steps)
        if depth in self.steps or len(known) == 1:
            return self.steps[depth if depth in self.steps else 0](b)
        right = min(int(np.searchsorted(known, depth)), len(known) - 1)
        low, high = known[right - 1], known[right]
        share = (depth - low) / (high - low)
        return (1 - share) * self.steps[low](b) + share * self.steps[high](b)

    def seconds_per_token(self, batch: ArrayLike, depth: int, acceptance: Acceptance) -> NDArray[np.float64]:
        """tau_depth(batch), of the shape of batch."""
        return self.seconds(batch, depth) / acceptance.length(depth)


def effective_curve(costs: SpeculationCosts, acceptance: Acceptance, table: DepthTable, largest: int) -> DecodeCurve:
    """The decode curve of a replica that follows a table: seconds per token by running batch size, up to `largest`."""
    knots = {1, as_count(largest, "largest", 1)}
    bends = {b for curve in costs.steps.values() for b in curve.batch_sizes}
    knots |= {edge for b in bends for edge in (math.floor(b), math.ceil(b)) if 1 <= edge <= largest}
    knots |= {edge for b, _ in table.entries for edge in (b - 1, b) if 1 <= edge <= largest}
    sizes = sorted(knots)
    return DecodeCurve(sizes, [float(costs.seconds_per_token(b, table(b), acceptance)) for b in sizes])


@dataclass(frozen=True)
class TableChoice:
    """A table, and what was weighed against it.

    Attributes:
        table: the choice.
        speedup: tokens a second over plain decoding, by batch size (1, 2, 4, ... up to the largest).
        rejected: for the same batch sizes, the best constant depth's gain over plain decoding, by depth.
        reason: in words.
    """

    table: DepthTable
    speedup: dict[int, float]
    rejected: dict[int, dict[int, float]]
    reason: str


def best_table(
    costs: SpeculationCosts,
    acceptance: Acceptance,
    *,
    largest: int,
    deepest: int,
    present: DepthTable | None = None,
    least_gain: float = LEAST_GAIN,
) -> TableChoice:
    """The depth with the least seconds per token at each batch size.

    Going up in batch size a depth is kept until another gains `least_gain`, so that the table has few steps; `present`
    is kept if the best gains less than that anywhere.

    Args:
        largest: running batch sizes 1..largest are covered.
        deepest: depth the engine was launched with.
    """
    sizes = np.arange(1, as_count(largest, "largest", 1) + 1)
    depths = range(as_count(deepest, "deepest", 0) + 1)
    tau = np.array([costs.seconds_per_token(sizes, d, acceptance) for d in depths])  # [depths, sizes]
    chosen = []
    depth = int(np.argmin(tau[:, 0]))
    for i in range(sizes.size):
        best = int(np.argmin(tau[:, i]))
        if tau[depth, i] > (1 + least_gain) * tau[best, i]:
            depth = best
        chosen.append(depth)
    table = DepthTable.from_list(chosen)
    reason = f"least time per token at acceptance length {acceptance.length(table.deepest):.2f}"
    if present is not None and present.deepest <= deepest:
        now = np.array([tau[present(int(b)), i] for i, b in enumerate(sizes)])
        new = tau[chosen, np.arange(sizes.size)]
        if (now <= (1 + least_gain) * new).all():
            table, reason = present, f"kept: no table is {least_gain:.0%} faster at any batch size"
    shown = [1 << k for k in range(int(largest).bit_length()) if 1 << k <= largest]
    speedup = {b: float(tau[0, b - 1] / tau[table(b), b - 1]) for b in shown}
    rejected = {d: {b: float(tau[0, b - 1] / tau[d, b - 1]) for b in shown} for d in depths}
    if table.deepest == 0:
        reason = "speculation does not pay at any batch size"
    return TableChoice(table, speedup, rejected, reason)
