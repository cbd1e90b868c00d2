"""Which depths and how many tail groups each way of the comparison gets: from the grid and the history alone.

Predictions are the paper's makespan (2.1) on measured step times: a replica's sum over j of tau(j) (L_j - L_j+1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.speculation import Acceptance, DepthTable, SpeculationCosts, best_table, effective_curve
from tailsieve_verl.replay.pick import Picked
from tailsieve_verl.replay.policies import place

REPLICAS, SEATS, DEEPEST, BUDGETS = 2, 64, 5, (1, 2, 3)


@dataclass(frozen=True)
class Way:
    """One way to place and to draft: a placement, and each replica's depth table (``None``: no drafter)."""

    name: str
    placement: str
    tables: tuple[DepthTable, ...] | None


class Chooser:
    """Depths and tail groups from the grid and the history alone."""

    def __init__(self, rows: Sequence[dict[str, Any]], acceptance: Acceptance, load: Picked) -> None:
        sizes = sorted({row["batch"] for row in rows})
        steps = {(row["batch"], row["depth"]): row["step_s"] for row in rows}
        curves = {d: DecodeCurve(sizes, [steps[b, d] for b in sizes]) for d in range(DEEPEST + 1)}
        self.costs, self.acceptance, self.load = SpeculationCosts(curves), acceptance, load
        self.none = DecodeCurve(sizes, [steps[b, "none"] for b in sizes])
        self.live = best_table(self.costs, acceptance, largest=SEATS, deepest=DEEPEST).table

    def predicted(self, placement: str, tables: Sequence[DepthTable] | None) -> float:
        """Makespan of the history under a placement, seconds."""
        return max(self.times(placement, tables))

    def times(self, placement: str, tables: Sequence[DepthTable] | None) -> list[float]:
        """The same for each replica."""
        where = place(placement, self.load.history, self.load.history, REPLICAS)
        times = []
        for rank in range(REPLICAS):
            curve = self.none if tables is None else self._curve(tables[rank])
            lengths = np.sort(self.load.history[where == rank])[::-1]
            times.append(float(curve(np.arange(1, lengths.size + 1)) @ (lengths - np.append(lengths[1:], 0))))
        return times

    def pools(self, tables: Sequence[DepthTable] | None) -> str:
        """The two pools with the number of tail groups that is best at these depths."""
        names = [f"fixed:q={q},m=1" for q in range(1, len(self.load.history) // 2 + 1)]
        return min(names, key=lambda name: self.predicted(name, tables))

    def best_depth(self, placement: str | None) -> int:
        """The best depth everywhere, under a placement or (``None``) the pools."""
        return min(range(DEEPEST + 1), key=lambda d: self._with(placement, (d, d)))

    def best_pair(self) -> tuple[int, int]:
        """The best depths of the bulk and the tail pool; where the makespan is the same, the faster other pool."""

        def cost(pair: tuple[int, int]) -> tuple[float, float]:
            times = self.times(self.pools(constants(*pair)), constants(*pair))
            return max(times), sum(times)

        return min(((b, t) for b in range(DEEPEST + 1) for t in range(DEEPEST + 1)), key=cost)

    def _with(self, placement: str | None, pair: tuple[int, int]) -> float:
        tables = constants(*pair)
        return self.predicted(placement or self.pools(tables), tables)

    def _curve(self, table: DepthTable) -> DecodeCurve:
        return effective_curve(self.costs, self.acceptance, table, SEATS)


def constants(bulk: int, tail: int) -> tuple[DepthTable, ...]:
    """Replica 0 is the bulk pool, replica 1 the tail pool."""
    return DepthTable.constant(bulk), DepthTable.constant(tail)


def all_ways(chooser: Chooser) -> list[Way]:
    """The comparison, then the budgets of Fig. 6(a)."""
    live = (chooser.live,) * REPLICAS
    default, pools = chooser.best_depth("verl_default"), chooser.best_depth(None)
    bulk, tail = chooser.best_pair()
    ways = [
        Way("uniform by group, no drafter", "uniform_group", None),
        Way("verl default, no drafter", "verl_default", None),
        Way(f"verl default, depth {default}", "verl_default", constants(default, default)),
        Way("verl default, live depth", "verl_default", live),
        Way("TailSieve, no drafter", chooser.pools(None), None),
        Way(f"TailSieve, depth {pools}", chooser.pools(constants(pools, pools)), constants(pools, pools)),
        Way(f"TailSieve, bulk {bulk} tail {tail}", chooser.pools(constants(bulk, tail)), constants(bulk, tail)),
        Way("TailSieve, live depth", chooser.pools(live), live),
    ]
    for d in BUDGETS:
        ways.append(Way(f"budget {d}: uniform {d}/{d}", "uniform_group", constants(d, d)))
        for tail in range(d, min(2 * d, DEEPEST) + 1):
            tables = constants(2 * d - tail, tail)
            ways.append(Way(f"budget {d}: pools {2 * d - tail}/{tail}", chooser.pools(tables), tables))
    return ways
