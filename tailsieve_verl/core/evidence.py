"""What a controller knows: decode curve, response-work history and slowness of each pool; no verdicts.

    step's records -> curve (unless one is given), history, measured over expected time of each pool
    known          -> a `Predictor` for the next step, or None while too little is known

Invariants: bounded memory; the same observations give the same predictions; plain JSON state.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np

from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.history import WorkHistory
from tailsieve_verl.core.online_tau import OnlineTau
from tailsieve_verl.core.plan import Granularity, StepObservation
from tailsieve_verl.core.predict import Predictor
from tailsieve_verl.core.sessions import session_table

SCENARIOS = 16  # pools a prediction is averaged over: a thousand groups at N = 64
SLOWNESS_WEIGHT = 0.1  # of a new step in a pool's measured over expected time
MOST_SLOWNESS = 4.0  # beyond this factor a measurement is not believed
BOUND_REQUESTS = 64  # longest requests that the lower bound looks at closely: it costs the square of their number


class Evidence:
    """Learns from observations (module docstring).

    Args:
        n_groups, replicas: N and R.
        tail_placement, bulk_placement: how the pools deal their work.
        curve: a measured decode curve; without one it is learned.
    """

    def __init__(
        self,
        n_groups: int,
        replicas: int,
        tail_placement: Granularity,
        bulk_placement: Granularity,
        curve: DecodeCurve | None,
    ) -> None:
        self.n_groups, self.replicas = n_groups, replicas
        self.tail_placement, self.bulk_placement = tail_placement, bulk_placement
        self.tau = OnlineTau()
        self.history = WorkHistory(n_groups)
        self._given = curve
        self._slow = {"tail": 0.0, "bulk": 0.0}  # log of measured over expected time
        self._slow_steps = {"tail": 0, "bulk": 0}

    @property
    def confidence(self) -> float:
        """0..1, how far the decode curve is known."""
        return 1.0 if self._given is not None else self.tau.confidence

    @property
    def curve(self) -> DecodeCurve | None:
        """The curve to predict with; ``None`` until it is trusted."""
        return self._given or (self.tau.curve if self.tau.trusted else None)

    def take_in(self, observation: StepObservation) -> float:
        """Learn from a step; returns the log of how slow it ran, by the curve as it was known before."""
        table = session_table(observation.groups)
        replicas, tokens, slow = self.tau.slowness(table, self._given)
        hiccup = 0.0
        if tokens.size:
            logs = np.log(slow)
            hiccup = float(np.average(logs, weights=tokens))
            tail = np.isin(replicas, list(observation.plan.tail_replicas)) & bool(observation.plan.counts.tail)
            for pool, mine in (("tail", tail), ("bulk", ~tail)):
                if mine.any():
                    self._note_slowness(pool, float(np.average(logs[mine], weights=tokens[mine])))
        self.tau.observe(table)
        self.history.observe(observation)
        return hiccup

    def predictor(self, step: int) -> Predictor | None:
        """Predictions for a step; ``None`` while the curve or the load is not known, or nothing can be split."""
        curve = self.curve
        if curve is None or self.replicas < 2 or self.n_groups < 2:
            return None
        scenarios = self.history.scenarios(SCENARIOS, step)
        if scenarios is None:
            return None
        return Predictor(
            scenarios,
            curve,
            self.n_groups,
            self.replicas,
            self.tail_placement,
            self.bulk_placement,
            slow_tail=math.exp(self._slow["tail"]),
            slow_bulk=math.exp(self._slow["bulk"]),
        )

    def lower_bound(self, observation: StepObservation) -> float | None:
        """Seconds that no placement of the batch's responses could beat: valid for all, close for the longest ones."""
        curve = self._given or self.tau.curve
        trained = [g.tokens for g in observation.groups if g.status == "trained"]
        if curve is None or not trained:
            return None
        lengths = np.fromiter(chain.from_iterable(trained), dtype=np.float64)
        per_request = curve.table(lengths.size)[1:] / np.arange(1, lengths.size + 1)
        capacity = float(per_request.min()) * float(lengths.sum()) / self.replicas
        if lengths.size > BOUND_REQUESTS:
            lengths = np.partition(lengths, -BOUND_REQUESTS)[-BOUND_REQUESTS:]
        return max(capacity, makespan_lower_bound(lengths, self.replicas, curve))

    def state_dict(self) -> dict[str, Any]:
        return {
            "tau": self.tau.state_dict(),
            "history": self.history.state_dict(),
            "slow": dict(self._slow),
            "slow_steps": dict(self._slow_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tau.load_state_dict(state["tau"])
        self.history.load_state_dict(state["history"])
        self._slow, self._slow_steps = dict(state["slow"]), dict(state["slow_steps"])

    def _note_slowness(self, pool: str, level: float) -> None:
        if abs(level) >= math.log(MOST_SLOWNESS):
            return
        self._slow_steps[pool] += 1
        weight = max(SLOWNESS_WEIGHT, 1.0 / (self._slow_steps[pool] + 1.0))
        self._slow[pool] += weight * (level - self._slow[pool])
