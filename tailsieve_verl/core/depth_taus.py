"""Decode curves by table of draft depths: replicas that follow one table share a tau, another table has its own.

A token of a replica that drafts d deep takes s(b, d) / E(d) seconds (`speculation`), so pools with different tables
have different curves, and a new table is another engine. What was learned under a table stays: one that comes back is
known. A curve is learned only at the batch sizes its pool ran at, and a tail pool runs small ones; beyond them it takes
the shape of another table's curve, from its own last point on.

Invariants: without names of tables there is one curve; at most `KEPT` tables are remembered, those used last; plain
JSON state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.online_tau import AGGREGATE_SHARE, OnlineTau, Slowness
from tailsieve_verl.core.plan import StepObservation
from tailsieve_verl.core.sessions import SessionTable

Floats = NDArray[np.float64]

#: Tables remembered: the two in force, and those they replaced.
KEPT = 4


class DepthTaus:
    """Learns a curve for each table of draft depths (module docstring)."""

    def __init__(self) -> None:
        self._taus: dict[str, OnlineTau] = {}  # by name, used last at the end
        self.tail: str | None = None  # names of the pools' tables; the tail's is not known before there was a tail pool
        self.bulk = ""

    @property
    def tau(self) -> OnlineTau:
        """What the bulk pool's table has taught."""
        return self._of(self.bulk)

    def note(self, observation: StepObservation) -> set[str]:
        """Take note of the tables in force; returns the pools that follow another one than before."""
        plan, names, changed = observation.plan, observation.depths, set()
        bulk = names[0] if names else ""
        tail = names[-1] if names else ""
        if bulk != self.bulk:
            self.bulk = bulk
            changed.add("bulk")
        if (plan.m or tail != bulk) and tail != self.tail:  # a deep band keeps its table without a tail pool
            if self.tail is not None or tail != bulk:
                changed.add("tail")
            self.tail = tail
        return changed

    @property
    def alike(self) -> bool:
        """Whether both pools follow the same table, as far as is known."""
        return self.tail in (None, self.bulk)

    def curve(self, *, tail: bool = False) -> DecodeCurve | None:
        """The curve of a pool; ``None`` until one is trusted."""
        name = self.bulk if not tail or self.tail is None else self.tail
        own = self._taus.get(name)
        others = [tau for other, tau in reversed(self._taus.items()) if other != name and tau.trusted]
        if own is None or not own.trusted:
            return others[0].curve if others else None
        curve = own.curve
        assert curve is not None
        return _continued(curve, others[0].curve) if others else curve

    def observe(self, table: SessionTable, depths: Sequence[str], curve: DecodeCurve | None) -> Slowness:
        """Learn from a step's sessions; see `OnlineTau.observe`.

        Args:
            depths: table in force on each replica, by name; empty if all follow the same.
        """
        if not depths:
            return self._of("").observe(table, curve)
        found: list[Slowness] = []
        for name in sorted(set(depths)):
            mine = np.isin(table.replica, [replica for replica, other in enumerate(depths) if other == name])
            part = replace(
                table,
                replica=table.replica[mine],
                started_s=table.started_s[mine],
                ended_s=table.ended_s[mine],
                tokens=table.tokens[mine],
                dropped=0 if found else table.dropped,
            )
            found.append(self._of(name).observe(part, curve))
        return Slowness(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        return {
            "taus": {name: tau.state_dict() for name, tau in self._taus.items()},
            "tail": self.tail,
            "bulk": self.bulk,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "taus" not in state:  # one curve, of an older version
            state = {"taus": {"": state}, "tail": None, "bulk": ""}
        self._taus = {}
        for name, saved in state["taus"].items():
            self._taus[name] = OnlineTau()
            self._taus[name].load_state_dict(saved)
        self.tail, self.bulk = state["tail"], state["bulk"]

    def _of(self, name: str) -> OnlineTau:
        tau = self._taus.pop(name, None) or OnlineTau()
        self._taus[name] = tau
        while len(self._taus) > KEPT:
            del self._taus[next(iter(self._taus))]
        return tau


def _continued(own: DecodeCurve, other: DecodeCurve | None) -> DecodeCurve:
    """A curve, beyond its last point in the shape of another one."""
    last = own.batch_sizes[-1]
    if other is None or other.batch_sizes[-1] <= last:
        return own
    beyond = np.array([b for b in other.batch_sizes if b > last])
    tau = other(beyond) * (own(last) / other(last))
    aggregate = max(b / t for b, t in zip(own.batch_sizes, own.seconds_per_token, strict=True))
    aggregate = np.maximum(aggregate, np.maximum.accumulate(beyond / tau))
    tau = np.minimum(tau, beyond / (AGGREGATE_SHARE * aggregate))  # or `DecodeCurve` would refuse it
    return DecodeCurve([*own.batch_sizes, *beyond], [*own.seconds_per_token, *tau])
