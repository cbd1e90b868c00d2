"""A tail selector: the cut group with the most tokens goes first, not the one with the most unfinished responses.

python examples/tail_selector/tail_selector.py  # both orders on simulated steps, seconds
"""

from __future__ import annotations

from collections.abc import Sequence

from tailsieve_verl.core.custom import TailSelector, checked_order
from tailsieve_verl.core.plan import GroupRecord
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.guarded import GuardedSelector
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel


class MostTokens(TailSelector):
    """Cut groups by the tokens that all their responses had reached."""

    def order(self, cut: Sequence[GroupRecord]) -> Sequence[int]:
        return sorted(range(len(cut)), key=lambda i: (-sum(cut[i].tokens), i))


def found(order: Sequence[int], again: Sequence[int]) -> float:
    """Share of the longer half, by what the groups took when they ran again, that an order puts first.

    Args:
        order: indices of the cut groups, first to last.
        again: longest response of each when it ran again, tokens.
    """
    half = len(order) // 2
    longest = set(sorted(range(len(again)), key=lambda i: -again[i])[:half])
    return len(longest & set(order[:half])) / half


def main(steps: int = 40, q: int = 16) -> tuple[float, float]:
    """Prints how well both orders foresee which groups are the longest; returns the two shares."""
    rollout = Rollout(
        FixedPolicy(PolicyContext(64, 4), q, 2), SyntheticWorkload(LengthModel()), Machine(4, EngineCosts(DENSE))
    )
    ours, theirs = [], []
    cut: list[GroupRecord] = []
    for number in range(1, steps + 1):
        groups = rollout.step(number).observation.groups
        again = {g.prompt: max(g.tokens) for g in groups if g.route == "tail"}
        if cut:
            took = [again[g.prompt] for g in cut]
            ours.append(found(GuardedSelector().order(cut), took))
            theirs.append(found(checked_order(MostTokens(), cut), took))
        cut = [g for g in groups if g.status == "cut"]
    shares = sum(ours) / len(ours), sum(theirs) / len(theirs)
    print(f"of the {q // 2} longest of {q} cut groups, foreseen in {len(ours)} steps (by chance: 50 %):")
    print(f"  most unfinished first (default)   {shares[0]:.0%}")
    print(f"  most tokens first                 {shares[1]:.0%}")
    return shares


if __name__ == "__main__":
    main()
