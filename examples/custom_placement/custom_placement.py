"""A placement: whole groups dealt in a snake, so that the replica with the strongest group does not get the strongest
of every round as well.

    python examples/custom_placement/custom_placement.py    # on simulated tail pools, seconds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tailsieve_verl.core.custom import PlacedGroup, PoolPlacement, checked_slots
from tailsieve_verl.core.dispatch import pool_slot
from tailsieve_verl.core.plan import Granularity, GroupRecord
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts, simulate_replicas
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel


class Snake(PoolPlacement):
    """Group k on replica 0, 1, .. R-1, R-1, .. 1, 0, 0, 1, ..; tail groups come by falling tail signal."""

    like: ClassVar[Granularity] = "group"

    def slots(self, groups: Sequence[PlacedGroup], replicas: int) -> Sequence[Sequence[int]]:
        rows = []
        for k, group in enumerate(groups):
            turn, place = divmod(k, replicas)
            rows.append([place if turn % 2 == 0 else replicas - 1 - place] * group.sessions)
        return rows


def pool_seconds(groups: Sequence[GroupRecord], slots: Sequence[Sequence[int]], replicas: int) -> float:
    """Makespan of a pool, seconds."""
    lengths = np.array([group.tokens for group in groups], dtype=np.float64)
    return float(simulate_replicas(lengths, np.array(slots), replicas, EngineCosts(DENSE)).finish.max())


def main(steps: int = 25, q: int = 12, m: int = 4) -> dict[str, float]:
    """Prints and returns the tail pool's mean makespan under three placements of the same groups, seconds."""
    rollout = Rollout(
        FixedPolicy(PolicyContext(64, 8), q, m), SyntheticWorkload(LengthModel()), Machine(8, EngineCosts(DENSE))
    )
    taken: dict[str, list[float]] = {"group (round robin)": [], "request (round robin)": [], "snake": []}
    for number in range(1, steps + 1):
        tail = [g for g in rollout.step(number).observation.groups if g.route == "tail"]
        if not tail:
            continue
        placed = [PlacedGroup(g.key, len(g.tokens)) for g in tail]
        for name, row in taken.items():
            if name == "snake":
                slots: Sequence[Sequence[int]] = checked_slots(Snake(), placed, m)
            else:
                by: Granularity = "group" if name.startswith("group") else "request"
                slots = [[pool_slot(k, s, g.sessions, m, by) for s in range(g.sessions)] for k, g in enumerate(placed)]
            row.append(pool_seconds(tail, slots, m))
    means = {name: sum(row) / len(row) for name, row in taken.items()}
    print(f"tail pool of {q} groups on {m} replicas, mean of {steps - 1} steps:")
    for name, seconds in means.items():
        print(f"  {name:<24}{seconds:7.2f} s")
    return means


if __name__ == "__main__":
    main()
