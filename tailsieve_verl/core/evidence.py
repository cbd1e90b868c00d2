"""What a controller knows: decode curve, response-work history and slowness of each pool; no verdicts.

    step's records -> curve of each pool (unless one is given), history, measured over expected time of each pool
    known          -> a `Predictor` for the next step, or None while too little is known

Invariants: bounded memory; the same observations give the same predictions; plain JSON state.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.bounds import HOST_WEIGHTS
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.depth_taus import DepthTaus
from tailsieve_verl.core.history import WorkHistory
from tailsieve_verl.core.online_tau import OnlineTau
from tailsieve_verl.core.plan import Granularity, StepObservation
from tailsieve_verl.core.predict import Predictor
from tailsieve_verl.core.sessions import session_table

Floats = NDArray[np.float64]

SCENARIOS = 16  # pools a prediction is averaged over: a thousand groups at N = 64
SLOWNESS_WEIGHT = 0.1  # of a new step in a pool's measured over expected time
MOST_SLOWNESS = 4.0  # beyond this factor a measurement is not believed
BOUND_REQUESTS = 1024  # longest requests that the lower bound looks at closely


class Evidence:
    """Learns from observations (module docstring).

    Args:
        n_groups, replicas: N and R.
        tail_placement, bulk_placement: how the pools deal their work.
        curve: a measured decode curve; without one it is learned, one for each table of draft depths.
        most_m: replicas that can be in the tail pool; all but one if ``None``.
    """

    def __init__(
        self,
        n_groups: int,
        replicas: int,
        tail_placement: Granularity,
        bulk_placement: Granularity,
        curve: DecodeCurve | None,
        most_m: int | None = None,
    ) -> None:
        self.n_groups, self.replicas = n_groups, replicas
        self.tail_placement, self.bulk_placement = tail_placement, bulk_placement
        self.taus = DepthTaus()
        self.history = WorkHistory(n_groups)
        self._given, self.most_m = curve, most_m
        self._slow = {"tail": 0.0, "bulk": 0.0}  # log of measured over expected time
        self._slow_steps = {"tail": 0, "bulk": 0}

    @property
    def tau(self) -> OnlineTau:
        """What completions in the bulk pool have taught."""
        return self.taus.tau

    @property
    def confidence(self) -> float:
        """0..1, how far the decode curve is known."""
        return 1.0 if self._given is not None else self.tau.confidence

    @property
    def curve(self) -> DecodeCurve | None:
        """The bulk pool's curve, and uniform routing's; ``None`` until it is trusted."""
        return self._given or self.taus.curve()

    def note_depths(self, observation: StepObservation) -> bool:
        """Take note of the draft depths in force, before `take_in`; whether they differ from those before.

        What was measured of a pool under another table than now is void: its slowness.
        """
        changed = self.taus.note(observation)
        for pool in changed:
            self._slow[pool], self._slow_steps[pool] = 0.0, 0
        return bool(changed)

    def take_in(self, observation: StepObservation) -> float:
        """Learn from a step; returns the log of how slow it ran, by the curve as it was known before."""
        table = session_table(observation.groups)
        replica, tokens, slow = self.taus.observe(table, observation.depths, self._given)
        hiccup = 0.0
        if tokens.size:
            logs = np.log(slow)
            hiccup = _average(logs, tokens)
            tail = (replica >= observation.plan.tail_replicas.start) & bool(observation.plan.counts.tail)
            for pool, mine in (("tail", tail), ("bulk", ~tail)):
                if mine.any():
                    self._note_slowness(pool, _average(logs[mine], tokens[mine]))
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
            tail_curve=None if self._given or self.taus.alike else self.taus.curve(tail=True),
            most_m=self.most_m,
        )

    def lower_bound(self, observation: StepObservation) -> float | None:
        """Seconds that no placement of the batch's responses could beat: valid for all, close for the longest ones."""
        curve = self._given or self.tau.curve  # also if it is not trusted yet
        trained = [g.tokens for g in observation.groups if g.status == "trained"]
        if curve is None or not trained:
            return None
        return _lower_bound(np.fromiter(chain.from_iterable(trained), dtype=np.float64), self.replicas, curve)

    def state_dict(self) -> dict[str, Any]:
        return {
            "tau": self.taus.state_dict(),
            "history": self.history.state_dict(),
            "slow": dict(self._slow),
            "slow_steps": dict(self._slow_steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taus.load_state_dict(state["tau"])
        self.history.load_state_dict(state["history"])
        self._slow, self._slow_steps = dict(state["slow"]), dict(state["slow_steps"])

    def _note_slowness(self, pool: str, level: float) -> None:
        if abs(level) >= math.log(MOST_SLOWNESS):
            return
        self._slow_steps[pool] += 1
        weight = max(SLOWNESS_WEIGHT, 1.0 / (self._slow_steps[pool] + 1.0))
        self._slow[pool] += weight * (level - self._slow[pool])


def _average(values: Floats, weights: Floats) -> float:
    return float((values * weights).sum() / weights.sum())


def _lower_bound(lengths: Floats, replicas: int, curve: DecodeCurve) -> float:
    """The bound "Long inputs" of `bounds` for the longest requests, or the capacity bound for all.

    `makespan_lower_bound` of so few requests that it does not cost more than the decision is hardly ever closer.
    """
    n, longest = lengths.size, lengths
    if n > BOUND_REQUESTS:
        longest = np.partition(lengths, n - BOUND_REQUESTS)[-BOUND_REQUESTS:]
    # tau(b) / b, time per token and request, is monotone between knots: its least value is at one of them or at an end.
    sizes = np.append(np.clip(curve.batch_sizes, 1, n), (1, n))
    tau_at = curve(sizes)
    least = float((tau_at / sizes).min())
    batch = np.arange(1, longest.size + 1)
    # Least tau of this batch size and all larger ones.
    tau = np.append(curve(batch), tau_at[sizes >= longest.size].min())
    tau = np.minimum.accumulate(tau[::-1])[:0:-1]
    host, others = HOST_WEIGHTS[:, None], least * batch
    busy = others + np.minimum.accumulate(host * tau - others, axis=1)
    rises = np.diff(np.sort(longest), prepend=0.0)[::-1]
    weighted = np.einsum("wk,k->w", busy, rises) / (HOST_WEIGHTS + replicas - 1)
    return max(least * float(lengths.sum()) / replicas, float(weighted.max()), float(longest.max() * tau[0]))
