"""The inner loop's arithmetic: from the two pools' completion times to the next isolation size q (paper 3.2 and C.1).

    rates           r_bulk = (N - q) / T_bulk,  r_tail = q / T_tail           groups per second, smoothed
    balance point   q* = N r_tail / (r_bulk + r_tail)
    velocity        v = 0.3 v + 0.5 (q* - q)                                  groups, damped momentum
    change          v, clipped to max(4, N/8), rounded half away from zero, at least one group if q* is due

Invariants: q stays in [1, N // 2] (at least 1); the rates restart whenever q or m changes, because they were measured
under another split; no clock, and nothing but plain data in the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

EMA_WEIGHT = 0.3  # of the new rate: a faster average chases the noise of step times, which is about 15 %
MOMENTUM, GAIN = 0.3, 0.5  # damped momentum update of q (paper C.1)
MIN_STEP_CLIP = 4  # a change of q is at most max(4, N/8) groups
UNIT_STEP_AT = 0.25  # a balance point at least this far away moves q by one whole group
BALANCED_WITHIN = 0.02  # pools whose times differ by less than 2 % of the step are left alone
BALANCED_GROUPS = 0.5  # so are pools whose balance point rounds to the present q: a whole group would overshoot it
HOLD_AFTER_INCREASE, HOLD_AFTER_DECREASE = 1, 2  # steps (paper C.1, "Discrete update")


class Numbers(NamedTuple):
    """What the inner loop computed: balance point, smoothed rates (groups per second), velocity (groups)."""

    q_star: float
    rate_tail: float
    rate_bulk: float
    velocity: float


def hold_after(q_old: int, q_new: int) -> int:
    """Steps to hold a new q until the carried set has followed it; a change of m alone is held as an increase."""
    return HOLD_AFTER_DECREASE if q_new < q_old else HOLD_AFTER_INCREASE


def sane_time(seconds: float | None) -> bool:
    """Whether a pool time can be used: there, a number, positive and finite."""
    return seconds is not None and 0.0 < seconds < math.inf


@dataclass
class BalanceLoop:
    """Smoothed rates and velocity of one split; ``measured`` after each settled step, ``restart`` on every change."""

    n_groups: int
    velocity: float = 0.0
    rates: tuple[float, float] | None = None

    def measured(self, q: int, t_tail_s: float, t_bulk_s: float) -> Numbers:
        """Take in a settled step's pool times (seconds, positive)."""
        new = (q / t_tail_s, (self.n_groups - q) / t_bulk_s)
        old = self.rates or new
        self.rates = (old[0] + EMA_WEIGHT * (new[0] - old[0]), old[1] + EMA_WEIGHT * (new[1] - old[1]))
        rate_tail, rate_bulk = self.rates
        q_star = self.n_groups * rate_tail / (rate_bulk + rate_tail)
        self.velocity = MOMENTUM * self.velocity + GAIN * (q_star - q)
        return Numbers(q_star, rate_tail, rate_bulk, self.velocity)

    @property
    def clip(self) -> int:
        """The largest change of q in one decision, in groups."""
        return max(MIN_STEP_CLIP, self.n_groups // 8)

    def proposal(self, q: int, q_star: float) -> int:
        """The next q: the damped change in whole groups, within the range of q."""
        velocity = min(max(self.velocity, -self.clip), self.clip)
        change = int(math.copysign(math.floor(abs(velocity) + 0.5), velocity))
        distance = q_star - q
        if change == 0 and abs(distance) >= UNIT_STEP_AT:
            change = 1 if distance > 0 else -1
        return min(max(q + change, 1), max(1, self.n_groups // 2))

    def balance(self, q: int, t_tail_s: float, t_bulk_s: float) -> tuple[int, str, Numbers]:
        """The loop alone, without a cost model: the next q, why, and the numbers behind it."""
        numbers = self.measured(q, t_tail_s, t_bulk_s)
        q_new = self.proposal(q, numbers.q_star)
        near = abs(t_tail_s - t_bulk_s) < BALANCED_WITHIN * max(t_tail_s, t_bulk_s)
        if near or abs(numbers.q_star - q) < BALANCED_GROUPS or q_new == q:
            return q, f"balanced at q={q}", numbers
        slower = "bulk" if t_bulk_s > t_tail_s else "tail"
        reason = f"{slower} pool slower ({t_tail_s:.2f} s tail, {t_bulk_s:.2f} s bulk): q {q} -> {q_new}"
        return q_new, reason, numbers

    def makespan(self, q: int) -> float:
        """Seconds a step would take at q if both rates were constant (the paper's prediction for its own test)."""
        assert self.rates is not None
        return max(q / self.rates[0], (self.n_groups - q) / self.rates[1])

    def restart(self) -> None:
        """The split has changed: what was measured under the old one is void."""
        self.rates = None

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity, "rates": self.rates and list(self.rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity = state["velocity"]
        self.rates = (state["rates"][0], state["rates"][1]) if state["rates"] else None
