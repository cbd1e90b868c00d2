"""What engines drafted in a step, and whether acceptance has collapsed.

A drafter whose weights were lost or have gone stale still gives correct output: every draft is rejected, and the run
only crawls. So acceptance is watched, and a fall says so.

Invariants: counts only add up; an alarm is raised once for a fall, and again only after acceptance had recovered.
Weights that changed are told at once, before acceptance shows it, and once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

#: Share of drafted tokens accepted below which drafts are as good as random: no drafter in use is that bad.
NEAR_ZERO = 0.03
#: A fall of the share of first tokens accepted by more than this is no drift of the policy: a drafter lost at a sync
#: was seen to fall from 2.71 tokens a step to 1.00.
MOST_FALL = 0.30
#: Drafted tokens in a step below which its share says too little.
FEWEST = 100
#: Standard errors that a fall must be beyond: the tail pool drafts little, and a chance of 1 in 700 a step is enough.
ERRORS = 3.0
#: Weight of a new step in the level that later ones are compared with.
WEIGHT = 0.3


@dataclass
class DraftCounts:
    """Counts of one pool in one step.

    Attributes:
        deepest: depth at launch, D.
        depths: engine steps by (running batch size, depth scheduled).
        times: of those that only decoded, (how many, seconds in sum).
        drafts: [D+1, D+1] drafts by tokens proposed and accepted.
        chances: [D+1, D+1] the same with the tokens that the table allowed, of requests without a draft as well: what
            a depth is worth where a drafter often finds nothing (n-gram).
    """

    deepest: int
    depths: dict[tuple[int, int], int] = field(default_factory=dict)
    times: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    drafts: NDArray[np.int64] = field(init=False)
    chances: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.drafts = np.zeros((self.deepest + 1, self.deepest + 1), dtype=np.int64)
        self.chances = np.zeros_like(self.drafts)

    def add(
        self,
        steps: Iterable[Sequence[int]],
        drafts: Iterable[Sequence[int]],
        times: Iterable[tuple[int, int, int, float]] = (),
        chances: Iterable[Sequence[int]] | None = None,
    ) -> None:
        """Add an engine's (batch, depth, count), (proposed, accepted, count) and (batch, depth, count, seconds).

        ``chances`` are (allowed, accepted, count); without them every request is taken to have had a draft.
        """
        drafts = list(drafts)
        for batch, depth, count in steps:
            self.depths[batch, depth] = self.depths.get((batch, depth), 0) + count
        for proposed, accepted, count in drafts:
            self.drafts[proposed, accepted] += count
        for allowed, accepted, count in drafts if chances is None else chances:
            self.chances[allowed, accepted] += count
        for batch, depth, count, seconds in times:
            known = self.times.get((batch, depth), (0, 0.0))
            self.times[batch, depth] = (known[0] + count, known[1] + seconds)

    @property
    def steps(self) -> int:
        """Engine steps counted."""
        return sum(self.depths.values())

    @property
    def drafted(self) -> int:
        """Tokens proposed."""
        return int(self.drafts.sum(axis=1) @ np.arange(self.deepest + 1))

    @property
    def accepted(self) -> int:
        """Tokens of drafts that were accepted."""
        return int(self.drafts.sum(axis=0) @ np.arange(self.deepest + 1))

    @property
    def mean_depth(self) -> float:
        """Depth scheduled, mean over requests in steps."""
        weights = sum(batch * count for (batch, _), count in self.depths.items())
        return sum(batch * depth * count for (batch, depth), count in self.depths.items()) / max(weights, 1)

    @property
    def acceptance_length(self) -> float:
        """Tokens a verification yields, the target's own one included; 1 if nothing was ever accepted."""
        return 1.0 + self.accepted / max(int(self.drafts.sum()), 1)

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the tokens proposed."""
        return self.accepted / max(self.drafted, 1)

    @property
    def drafting(self) -> int:
        """Drafts of one token or more."""
        return int(self.drafts[1:].sum())

    @property
    def first_rate(self) -> float:
        """Share of drafts whose first token was accepted: of all shares the one that does not depend on the depth."""
        return int(self.drafts[1:, 1:].sum()) / max(self.drafting, 1)


@dataclass
class AcceptanceWatch:
    """Compares a route's acceptance with its own past: of first tokens, as depths may change from step to step."""

    level: float | None = None
    alarmed: bool = False

    def see(self, counts: DraftCounts) -> str:
        """Take in a step; returns why it is alarming, empty if it is not or has been said already."""
        if counts.drafted < FEWEST:
            return ""
        rate, alarm = counts.first_rate, ""
        if counts.acceptance_rate < NEAR_ZERO:
            alarm = (
                f"{counts.acceptance_rate:.1%} of {counts.drafted} drafted tokens were accepted: the drafter's weights "
                "are lost or wrong"
            )
        elif self.level is not None and self._fallen(rate, counts.drafting):
            alarm = (
                f"the share of first drafted tokens accepted fell from {self.level:.0%} to {rate:.0%}: the drafter no "
                "longer fits the policy"
            )
        if alarm:
            again, self.alarmed = self.alarmed, True
            return "" if again else alarm
        self.alarmed = False
        self.level = rate if self.level is None else (1 - WEIGHT) * self.level + WEIGHT * rate
        return ""

    def _fallen(self, rate: float, drafts: int) -> bool:
        assert self.level is not None
        error = math.sqrt(self.level * (1 - self.level) / drafts)
        return rate < (1 - MOST_FALL) * self.level and self.level - rate > ERRORS * error


@dataclass
class WeightsWatch:
    """Compares the weights of drafters with what they were, by a fingerprint: (sum, sum of magnitudes, number).

    Args:
        frozen: whether nothing in the run may change them: a drafter beside the model, which no trainer trains.
    """

    frozen: bool
    known: dict[int, list[tuple[float, ...]]] = field(default_factory=dict)
    alarmed: bool = False

    def see(self, weights: Mapping[int, Sequence[Sequence[float]]]) -> str:
        """Take in the fingerprints of a step, by replica and worker; returns what is wrong, empty if told already."""
        alarm = ""
        for replica, workers in sorted(weights.items()):
            found = [tuple(map(float, worker)) for worker in workers]
            if not found:  # no weights, or none could be read this time
                continue
            before = self.known.setdefault(replica, found)
            if any(not math.isfinite(size) or size == 0.0 for _, size, count in found if count):
                alarm = alarm or f"the drafter of replica {replica} has weights that are all zero or not finite"
            elif self.frozen and not _same(before, found):
                alarm = alarm or f"the drafter's weights on replica {replica} changed, which nothing in this run may do"
            self.known[replica] = found
        if not alarm or self.alarmed:
            return ""
        self.alarmed = True
        return alarm


def _same(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> bool:
    return len(before) == len(after) and all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9 * (size[1] or 1.0))
        for size, worker in zip(before, after, strict=True)
        for a, b in zip(size, worker, strict=True)
    )
