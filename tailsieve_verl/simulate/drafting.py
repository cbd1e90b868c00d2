"""Drafts in the simulator: how deep a pool drafts, how many drafts are accepted, and what a step then takes.

    Speculation (acceptance, costs of the machine) + depth per pool --> Drafting of a replica --> engine, bounds

A depth is a number (the paper's case), a table by running batch size, or "auto", the best table for this acceptance and
these costs (`core.speculation.best_table`): it deepens as a batch drains. Everything about E(d) and s(b, d) is the
core's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.drafting import DraftCounts
from tailsieve_verl.core.speculation import (
    DEEPEST_ALLOWED,
    LEAST_GAIN,
    Acceptance,
    DepthTable,
    SpeculationCosts,
    best_table,
    effective_curve,
    tries,
)
from tailsieve_verl.errors import UserError
from tailsieve_verl.records.read import read_steps

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Depth = DepthTable | Literal["auto"]

#: Deepest drafts of `auto`, as of a run (config.speculation).
DEEPEST = 5
#: Share of a plain step that a drafted token takes: an MTP head is one layer of some 20 to 60, and its output layer.
DRAFT_SHARE = 0.05
#: Fewer drafts of a position than this leave its acceptance to the position before.
FEW_TRIES = 30


@dataclass(frozen=True, eq=False)
class Drafting:
    """How a replica drafts.

    Attributes:
        table: depth by running batch size.
        acceptance: chance of each draft position to be accepted.
        costs: seconds of a step by batch size and depth.
    """

    table: DepthTable
    acceptance: Acceptance
    costs: SpeculationCosts

    def steps(self, largest: int) -> tuple[Floats, Floats, Ints]:
        """Seconds, mean tokens for each request, and depth of an engine step with 1..largest running, [largest]."""
        sizes = np.arange(1, largest + 1, dtype=np.float64)
        depths = np.array(self.table.as_list(largest)[1:], dtype=np.int64)
        seconds, tokens = np.empty(largest), np.empty(largest)
        for depth in np.unique(depths).tolist():
            mine = depths == depth
            seconds[mine], tokens[mine] = self.costs.seconds(sizes[mine], depth), self.acceptance.length(depth)
        return seconds, tokens, depths

    def passed(self, deepest: int) -> Floats:
        """Chance that drafts 1..d are all accepted, [deepest] for d = 1, 2, ..."""
        return np.diff([self.acceptance.length(d) for d in range(deepest + 1)])


@dataclass(frozen=True, eq=False)
class Speculation:
    """What drafts are worth on a machine.

    Attributes:
        acceptance: chance of each draft position to be accepted.
        curve: seconds of a plain step by batch size.
        draft_share: share of a plain step that each drafted token takes.
        pass_share: share of a plain step that drafting takes whatever the depth (a block at once: DFlash).
        deepest: deepest drafts of "auto".
        sampled: whether drafts are accepted one by one; else every step gives the mean.
    """

    acceptance: Acceptance
    curve: DecodeCurve
    draft_share: float = DRAFT_SHARE
    pass_share: float = 0.0
    deepest: int = DEEPEST
    sampled: bool = False
    _costs: dict[int, SpeculationCosts] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("draft_share", "pass_share"):
            if not 0 <= getattr(self, name) < np.inf:
                raise UserError(f"{name}={getattr(self, name)} must be a share of a step, 0 or more, for example 0.05.")
        if not 1 <= self.deepest <= DEEPEST_ALLOWED:
            raise UserError(f"deepest={self.deepest} must be from 1 to {DEEPEST_ALLOWED} draft tokens.")

    def costs(self, deepest: int) -> SpeculationCosts:
        """Step times of depths 0..deepest."""
        if deepest not in self._costs:
            self._costs[deepest] = SpeculationCosts.modelled(
                self.curve, range(deepest + 1), self.draft_share, self.pass_share
            )
        return self._costs[deepest]

    def best(self, largest: int, least_gain: float = LEAST_GAIN) -> DepthTable:
        """The best table for running batches up to `largest`."""
        return best_table(
            self.costs(self.deepest), self.acceptance, largest=largest, deepest=self.deepest, least_gain=least_gain
        ).table

    def drafting(self, depth: Depth, largest: int) -> Drafting:
        """A replica's drafts at this depth."""
        table = self.best(largest) if depth == "auto" else depth
        return Drafting(table, self.acceptance, self.costs(max(table.deepest, self.deepest)))

    def fastest(self, largest: int, deepest: int = 0) -> DecodeCurve:
        """Seconds per token at the best depth of each batch size: no table up to `deepest` is faster anywhere."""
        deepest = max(deepest, self.deepest)
        costs = self.costs(deepest)
        table = best_table(costs, self.acceptance, largest=largest, deepest=deepest, least_gain=0.0).table
        return effective_curve(costs, self.acceptance, table, largest)


@dataclass(frozen=True)
class PoolDepths:
    """Depth of each pool; without a split all replicas are bulk. ``None``: no drafter."""

    bulk: Depth | None = None
    tail: Depth | None = None

    @property
    def deepest(self) -> int:
        """Deepest draft of tables that are given."""
        return max([d.deepest for d in (self.bulk, self.tail) if isinstance(d, DepthTable)], default=0)


def parse_depth(text: str | int) -> Depth:
    """``3``, ``auto``, or a table by running batch size from 1 on, ``1:5/8:2``.

    Raises:
        UserError: anything else.
    """
    if text == "auto":
        return "auto"
    try:
        parts = [part.split(":") for part in str(text).split("/")]
        if len(parts) == 1 and len(parts[0]) == 1:
            table = DepthTable.constant(int(parts[0][0]))
        else:
            table = DepthTable(tuple((int(b), int(d)) for b, d in parts))
    except ValueError:
        raise UserError(
            f"depth {text!r} must be a number of draft tokens, auto, or a table by running batch size from 1 on, "
            "for example 1:5/8:2."
        ) from None
    if table.deepest > DEEPEST_ALLOWED:
        raise UserError(f"depth {text!r} must be at most {DEEPEST_ALLOWED} draft tokens.")
    return table


def read_acceptance(text: str) -> Acceptance:
    """``0.7`` for every position, ``0.8,0.7,0.6`` by position, or the folder of a run whose record has drafts.

    Raises:
        UserError: numbers out of range, or a record without drafts.
    """
    path = Path(text)
    if path.suffix == ".jsonl" or path.exists():
        return recorded_acceptance(path)
    try:
        return Acceptance(tuple(float(part) for part in text.split(",")))
    except ValueError:
        raise UserError(
            f"acceptance {text!r} must be a chance in 0..1, several by draft position like 0.8,0.7,0.6, or the "
            "folder of a run with drafts."
        ) from None


def recorded_acceptance(path: Path) -> Acceptance:
    """Acceptance by position over all steps and replicas of a run's record.

    Raises:
        UserError: no such file, or one without drafts.
    """
    reports = [report for step in read_steps(path) for report in step.get("drafting", {}).values()]
    # Records of earlier versions have no chances.
    chances = [chance for report in reports for chance in report.get("chances", report["drafts"])]
    counts = DraftCounts(max((allowed for allowed, _, _ in chances), default=0))
    counts.add((), [draft for report in reports for draft in report["drafts"]], chances=chances)
    if not counts.drafted:
        raise UserError(
            f"{path} tells of no drafts; name the folder or the steps.jsonl of a run with speculation.method set and "
            "speculation.control=runtime."
        )
    tried, passed = tries(counts.chances)
    kept = max(1, int((tried >= FEW_TRIES).sum()))
    return Acceptance.from_tries(tried[:kept], passed[:kept])
