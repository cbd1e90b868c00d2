"""A small simulated rollout that closes the loop around a policy: loads, one step by the core's own parts, a run.

Times follow the decode model, every request admitted at once. A prompt's n-th attempt has the same lengths whatever the
policy, so that runs under different policies see the same stream (common random numbers).
"""

from dataclasses import dataclass, field

import numpy as np

from tailsieve_verl.core.bias import tail_order
from tailsieve_verl.core.decode import DecodeCurve, finish_times
from tailsieve_verl.core.dispatch import pool_slot
from tailsieve_verl.core.plan import Decision, GroupRecord, StepObservation
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.core.step import StepTracker

N, SESSIONS, LIMIT = 64, 8, 16_384
LONGEST = 11_800  # of the paper's real workload, before its upper half is stretched
#: A dense model on one GPU: 6 ms a token alone, memory-bound up to some ten requests, about 0.2 ms for each further.
DENSE = DecodeCurve(
    [1, 4, 8, 16, 32, 64, 128, 256, 512], [0.006, 0.0064, 0.007, 0.0085, 0.0115, 0.0175, 0.03, 0.055, 0.105]
)
#: Small batches touch few experts: tau rises early and flattens.
EXPERTS = DecodeCurve(
    [1, 4, 8, 16, 32, 64, 128, 256, 512], [0.004, 0.007, 0.009, 0.0115, 0.0145, 0.019, 0.027, 0.042, 0.07]
)

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

    def lengths(self, prompt, attempt, step):
        rng = np.random.default_rng((self.seed, prompt, attempt))
        level = np.random.default_rng((self.seed, prompt)).normal() * self.prompt
        values = self.median * np.exp(level + rng.normal(size=SESSIONS) * self.response)
        values = np.minimum(values, LONGEST * self.median / MEDIAN)
        natural = np.exp(1.2816 * np.hypot(self.prompt, self.response))
        stretch = (self.ratio - 1.0) / (natural - 1.0)
        values = np.where(values > self.median, self.median + stretch * (values - self.median), values)
        values = values * (1.0 + self.drift) ** step
        values[rng.random(SESSIONS) < self.runaway] = LIMIT
        return np.maximum(np.rint(values), 1)


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


@dataclass
class Rollout:
    """Runs steps of a policy; keeps the carried prompts as the ledger would."""

    load: Load
    curve: DecodeCurve
    noise: float = 0.0
    records: bool = True
    drawn: int = 0
    carried: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)

    def step(self, plan, curve=None):
        """Run one step and return its observation."""
        curve = curve or self.curve
        counts = plan.counts
        factor = 1.0
        if self.noise:
            factor = float(np.exp(np.random.default_rng((7, self.load.seed, plan.step)).normal() * self.noise))
        fresh = list(range(self.drawn, self.drawn + counts.fresh))
        self.drawn += counts.fresh
        tail, residual = self.carried[: counts.tail], self.carried[counts.tail :]
        assert len(residual) == counts.residual
        lengths = {}
        for prompt in (*tail, *residual, *fresh):
            attempt = self.attempts.pop(prompt, 0)
            lengths[prompt] = self.load.lengths(prompt, attempt, plan.step)
        pools = [(tail, plan.tail_replicas, plan.tail_placement)] if tail else []
        pools.append((residual + fresh, plan.bulk_replicas, plan.bulk_placement))
        replica, end, ranked = {}, {}, {}
        for groups, ranks, placement in pools:
            where = np.array([
                [ranks[pool_slot(order, s, SESSIONS, len(ranks), placement)] for s in range(SESSIONS)]
                for order in range(len(groups))
            ])  # fmt: skip
            tokens = np.array([lengths[prompt] for prompt in groups])
            done = np.zeros(tokens.shape)
            for rank in ranks:
                mine = where == rank
                if mine.any():
                    done[mine] = finish_times(tokens[mine], curve) * factor
                    ranked[rank] = np.append(0.0, np.sort(done[mine])), np.append(0.0, np.sort(tokens[mine]))
            for i, prompt in enumerate(groups):
                replica[prompt], end[prompt] = where[i], done[i]
        routes = dict.fromkeys(tail, "tail") | dict.fromkeys(residual, "residual") | dict.fromkeys(fresh, "fresh")
        tracker = StepTracker(counts.batch, [(str(p), route) for p, route in routes.items()])
        for prompt in sorted(routes, key=lambda p: end[p].max()):
            now = float(end[prompt].max())
            tracker.generated(str(prompt), now)
            tracker.stored(str(prompt))
            if tracker.cut_s is None and tracker.verdict().action == "cut":
                tracker.cut(now)
        cut_s = tracker.cut_s
        stragglers = [p for p in fresh if tracker.groups[str(p)].cut]
        reached = {}
        for prompt in stragglers:
            by_cut = [np.floor(np.interp(cut_s, *ranked[rank])) for rank in replica[prompt]]
            reached[prompt] = np.where(end[prompt] <= cut_s, lengths[prompt], by_cut)
            self.attempts[prompt] = 1
        order = tail_order(
            [int((end[p] > cut_s).sum()) for p in stragglers], [int(reached[p].sum()) for p in stragglers]
        )
        self.carried = [stragglers[i] for i in order]
        groups = ()
        if self.records:
            cut = set(stragglers)
            groups = tuple(
                GroupRecord(
                    prompt=p,
                    key=f"prompt {p}",
                    route=route,
                    status="cut" if p in cut else "trained",
                    replicas=tuple(int(r) for r in replica[p]),
                    started_s=(0.0,) * SESSIONS,
                    finished_s=tuple(float(t) for t in (np.minimum(end[p], cut_s) if p in cut else end[p])),
                    tokens=tuple(int(t) for t in (reached[p] if p in cut else lengths[p])),
                    complete=tuple(bool(t <= cut_s) for t in end[p]) if p in cut else (True,) * SESSIONS,
                    generated_s=None if p in cut else float(end[p].max()),
                )
                for p, route in routes.items()
            )
        return StepObservation(
            plan, tracker.pool_time_s(tail=True), tracker.pool_time_s(tail=False), cut_s, 0.0, groups
        )


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
