"""Chooses depth tables from what engines show: step times by batch and depth, and which drafts were accepted.

    engines' counts of a step -> acceptance rates, step time model -> best table, or a probe of what is not known yet

Step times are fitted by s = t0 + u d + v b d + convex function of the tokens verified, b (d + 1), all parts
non-negative: a drafter pass for each position, and a forward pass bound by memory first and by arithmetic later.
Two depths identify it, so the first steps run at two.

Invariants
    * The same counts give the same tables; the state is plain JSON data of bounded size.
    * No table goes deeper than the engines were launched.
    * Where drafts do not pay the table is all zero, and is probed again only every `PROBE_EVERY` steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.checks import as_count
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.drafting import DraftCounts
from tailsieve_verl.core.online_tau import AGGREGATE_SHARE, nonnegative_quadratic
from tailsieve_verl.core.speculation import Acceptance, DepthTable, SpeculationCosts, TableChoice, best_table, tries

Floats = NDArray[np.float64]

MOST_PAST = 3.0  # past tries of a draft position count at most this many times a step's: acceptance moves with policies
FEW_TRIES = 30.0  # a step with fewer tries of a position leaves the past alone
TIMES_FADE = 0.98  # the same of step times: engines stay as they are, and other depths are visited rarely
KNEES = (8.0, 32.0, 128.0, 512.0)  # tokens in a forward pass at which its cost may turn
ENOUGH = 30.0  # faded engine steps at a depth before it counts as seen
PROBE_EVERY = 50
LEAST_STEPS = 0.05  # faded engine steps below which a cell is forgotten
CELLS = 4096  # (batch, depth) cells kept


@dataclass(frozen=True)
class StepTimes:
    """Coefficients of the step time model: constant, d, b d, tokens, and tokens beyond each knee; seconds."""

    coefficients: tuple[float, ...]

    def __call__(self, batch: Floats, depth: int) -> Floats:
        """Seconds of a step, [batch]."""
        return _features(np.asarray(batch, float), np.full(np.shape(batch), float(depth))) @ np.array(self.coefficients)


class DraftPlanner:
    """Moves one table (module docstring).

    Args:
        deepest: depth the engines were launched with, at least 1.
        largest: largest running batch.
    """

    def __init__(self, deepest: int, largest: int) -> None:
        self.deepest, self.largest = as_count(deepest, "deepest", 1), as_count(largest, "largest", 1)
        self._cells: dict[tuple[int, int], tuple[float, float]] = {}  # (batch, depth): steps, seconds; faded
        self._tried, self._passed = np.zeros(deepest), np.zeros(deepest)
        self._steps = 0
        self._table = DepthTable.constant(deepest)
        self._choice: TableChoice | None = None

    @property
    def table(self) -> DepthTable:
        """What the next step should use."""
        return self._table

    @property
    def choice(self) -> TableChoice | None:
        """The last choice with what it rejected; ``None`` while still probing."""
        return self._choice

    @property
    def acceptance(self) -> Acceptance:
        return Acceptance.from_tries(self._tried, self._passed)

    def observe(self, counts: DraftCounts) -> DepthTable:
        """Take in a step's counts; returns the table of the next step."""
        self._steps += 1
        self._cells = {c: (n * TIMES_FADE, s * TIMES_FADE) for c, (n, s) in self._cells.items() if n > LEAST_STEPS}
        for cell, (n, seconds) in counts.times.items():
            kept = self._cells.get(cell, (0.0, 0.0))
            if cell in self._cells or len(self._cells) < CELLS:
                self._cells[cell] = (kept[0] + n, kept[1] + seconds)
        self._take_drafts(counts)
        self._table = self._probe() or self._best()
        return self._table

    def times(self) -> StepTimes | None:
        """The fitted step times; ``None`` before two depths have been seen."""
        if len(self._seen()) < 2:
            return None
        cells = np.array([(b, d, n, s / n) for (b, d), (n, s) in sorted(self._cells.items())])
        rows = _features(cells[:, 0], cells[:, 1]) / cells[:, 3:]  # relative errors
        scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
        rows = rows / scale * np.sqrt(cells[:, 2:3])
        target = np.sqrt(cells[:, 2])
        found = nonnegative_quadratic(rows.T @ rows + 1e-9 * np.eye(rows.shape[1]), rows.T @ target) / scale
        return StepTimes(tuple(found.tolist()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "cells": [[b, d, n, s] for (b, d), (n, s) in self._cells.items()],
            "tried": self._tried.tolist(),
            "passed": self._passed.tolist(),
            "steps": self._steps,
            "table": [list(entry) for entry in self._table.entries],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; one of engines with another launch depth is ignored."""
        if len(state["tried"]) != self.deepest:
            return
        self._tried, self._passed = np.array(state["tried"], float), np.array(state["passed"], float)
        self._steps = int(state["steps"])
        self._cells = {(int(b), int(d)): (n, s) for b, d, n, s in state["cells"]}
        self._table = DepthTable(tuple((int(b), int(d)) for b, d in state["table"]))

    def _take_drafts(self, counts: DraftCounts) -> None:
        tried, passed = tries(counts.chances)
        past = np.where(tried >= FEW_TRIES, np.minimum(1.0, MOST_PAST * tried / np.maximum(self._tried, 1.0)), 1.0)
        self._tried, self._passed = self._tried * past + tried, self._passed * past + passed

    def _seen(self) -> list[int]:
        """Depths with enough engine steps."""
        steps: dict[int, float] = {}
        for (_, depth), (n, _) in self._cells.items():
            steps[depth] = steps.get(depth, 0.0) + n
        return sorted(d for d, n in steps.items() if n >= ENOUGH)

    def _probe(self) -> DepthTable | None:
        """A depth to look at before the best can be known."""
        if len(self._seen()) < 2:
            other = max(1, self.deepest // 2) if self.deepest > 1 else 0
            return DepthTable.constant(other if self._table == DepthTable.constant(self.deepest) else self.deepest)
        if self._table.deepest == 0 and self._steps % PROBE_EVERY == 0:
            return DepthTable.constant(1)
        return None

    def _best(self) -> DepthTable:
        times = self.times()
        assert times is not None
        knots = np.unique(np.geomspace(1, max(self.largest, 2), 24).round())
        steps = {d: _curve(knots, np.maximum(times(knots, d), 1e-9)) for d in range(self.deepest + 1)}
        self._choice = best_table(
            SpeculationCosts(steps), self.acceptance, largest=self.largest, deepest=self.deepest, present=self._table
        )
        return self._choice.table


def _curve(knots: Floats, seconds: Floats) -> DecodeCurve:
    """Step times as a curve: a steep end that few noisy steps gave the fit is bent to what `DecodeCurve` takes."""
    aggregate = np.maximum.accumulate(knots / seconds)
    return DecodeCurve(knots, np.minimum(seconds, knots / (AGGREGATE_SHARE * aggregate)))


def _features(batch: Floats, depth: Floats) -> Floats:
    """Columns of the step time model, [cells, features]."""
    tokens = batch * (depth + 1)
    knees = [np.maximum(tokens - knee, 0.0) for knee in KNEES]
    return np.stack([np.ones_like(batch), depth, batch * depth, tokens, *knees], axis=1)
