"""Loads and runs that close the loop around a policy, on the package's simulator.

A prompt's n-th attempt has the same lengths whatever the policy, so that runs under different policies see the same
stream (common random numbers).
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from tailsieve_verl.core.plan import Decision, StepPlan
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.simulate import rollout as simulate
from tailsieve_verl.simulate.costs import DENSE, EXPERTS
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine

__all__ = ["DENSE", "EXPERTS", "LOADS", "Load", "N", "Rollout", "Run", "context", "fixed", "run"]

N, SESSIONS, LIMIT = 64, 8, 16_384
LONGEST = 11_800  # of the paper's real workload, before its upper half is stretched
#: Median and 90th percentile of the paper's real workload (Table A.3).
MEDIAN, P90 = 1160.0, 4115.0


@dataclass(frozen=True)
class Load:
    """Log-normal lengths with a prompt's level; the part above the median stretched so that P90/P50 is ``ratio``.

    Attributes:
        ratio: P90/P50.
        prompt, response: standard deviations of the log level of a prompt, and of a response about it.
        runaway: chance that a response runs to the limit, whatever its prompt.
        drift: relative change of all lengths a step.
    """

    ratio: float = P90 / MEDIAN
    prompt: float = 0.86
    response: float = 0.48
    runaway: float = 0.0
    median: float = MEDIAN
    drift: float = 0.0
    seed: int = 0

    n = SESSIONS
    cap = LIMIT

    def lengths(self, prompts, attempts, step):
        return np.array([_one(self, p, a, step if self.drift else 0) for p, a in zip(prompts, attempts, strict=True)])

    def prompt_tokens(self, prompts):
        return np.zeros(len(prompts))

    def identity(self, prompts):
        return np.asarray(prompts)

    def one(self, prompt, attempt, step):
        # Not (seed, prompt, 0): numpy takes trailing zeros for nothing, and the first attempt would repeat the level.
        rng = np.random.default_rng((self.seed, prompt, 1 + attempt))
        level = np.random.default_rng((self.seed, prompt)).normal() * self.prompt
        values = self.median * np.exp(level + rng.normal(size=SESSIONS) * self.response)
        values = np.minimum(values, LONGEST * self.median / MEDIAN)
        natural = np.exp(1.2816 * np.hypot(self.prompt, self.response))
        stretch = (self.ratio - 1.0) / (natural - 1.0)
        values = np.where(values > self.median, self.median + stretch * (values - self.median), values)
        values = values * (1.0 + self.drift) ** step
        values[rng.random(SESSIONS) < self.runaway] = LIMIT
        return np.maximum(np.rint(values), 1)


@lru_cache(maxsize=100_000)
def _one(load, prompt, attempt, step):
    return load.one(prompt, attempt, step)


LOADS = {
    "weak": Load(ratio=1.5),
    "real": Load(),
    "strong": Load(ratio=6.0),
    "runaway": Load(ratio=1.5, median=400.0, prompt=0.3, response=0.3, runaway=0.001),
}


@dataclass
class Run:
    """Step times and decisions of a run."""

    seconds: list[float] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    splits: list[tuple[int, int]] = field(default_factory=list)
    consumed: list[float] = field(default_factory=list)

    def last(self, steps):
        return float(np.mean(self.seconds[-steps:]))

    @property
    def switches(self):
        return [d.step for d in self.decisions if d.switched]


class _Given:
    """A policy that is told its plan."""

    plan_: StepPlan | None = None

    def plan(self, **_):
        return self.plan_

    def observe(self, observation):
        return None


class Rollout:
    """The simulator's rollout, step by step with plans from outside."""

    def __init__(self, load, curve, noise=0.0, records=True):
        self.machine = Machine(0, EngineCosts(curve), noise, load.seed)
        self.rollout = simulate.Rollout(_Given(), load, self.machine, records=records)

    @property
    def carried(self):
        return self.rollout.ledger.carried

    def step(self, plan, curve=None):
        """Run one step and return its observation."""
        costs = EngineCosts(curve) if curve else self.machine.costs
        self.rollout.policy.plan_ = plan
        self.rollout.machine = replace(self.machine, replicas=plan.replicas, costs=costs)
        return self.rollout.step(plan.step).observation


def run(policy, load, curve=DENSE, steps=120, noise=0.0, records=True, curve_at=None):
    """Close the loop for some steps."""
    rollout, result = Rollout(load, curve, noise, records), Run()
    for step in range(1, steps + 1):
        plan = policy.plan(step=step, carried=len(rollout.carried))
        observation = rollout.step(plan, curve_at and curve_at(step))
        result.seconds.append(observation.generation_s)
        result.splits.append((plan.counts.tail, plan.m))
        result.decisions.append(policy.observe(observation))
    return result


def context(replicas, placement="request"):
    return PolicyContext(N, replicas, placement, placement)


def fixed(q, m, load, replicas, curve=DENSE, steps=120, noise=0.0, placement="request"):
    """A fixed split, without records."""
    return run(FixedPolicy(context(replicas, placement), q, m), load, curve, steps, noise, records=False)
