"""Policies compared on the same streams: runs, their summaries, and intervals over seeds.

Invariants
    * Every policy of a seed sees the same stream of prompts, the same lengths and the same slowness of each step.
    * Speed-ups are ratios of summed step times over the same steps, paired by seed; their interval is that of the mean
      log ratio over seeds (Student), so it is absent with one seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.bias import LengthBias, length_bias
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.drafting import PoolDepths, Speculation
from tailsieve_verl.simulate.policies import PolicySpec
from tailsieve_verl.simulate.rollout import Machine, PoolDrafts, Rollout, SimulatedStep
from tailsieve_verl.simulate.workload import Workload

Floats = NDArray[np.float64]

#: Steps of a run whose lower bound is computed; each takes some 25 ms, as long as twenty simulated steps.
BOUND_STEPS = 4
CONFIDENCE = 0.95
#: Running requests up to which a depth of its own is chosen for each batch size; far beyond, drafts do not pay.
LARGEST = 4096
#: The policies that speed-ups are given against (field notes: a reviewer asks for both).
BASELINES = ("uniform_group", "verl_default")


@dataclass(frozen=True)
class Setup:
    """A run to simulate.

    Attributes:
        n_groups: N, prompt groups in an update batch.
        steps: training steps.
        skip: first steps that summaries leave out.
        machine: replicas and their costs; its seed is replaced by the run's.
        workload: the stream for a seed.
        bounds: steps of a run whose lower bound is computed; 0 leaves it out.
        speculation: what drafts are worth, for policies with a depth.
        depths: of policies that say nothing of it.
    """

    n_groups: int
    steps: int
    machine: Machine
    workload: Callable[[int], Workload]
    skip: int = 0
    bounds: int = BOUND_STEPS
    speculation: Speculation | None = None
    depths: PoolDepths | None = None

    def drafts(self, spec: PolicySpec, n: int) -> PoolDrafts:
        """How the pools draft under a policy, with groups of n.

        Raises:
            UserError: a depth without an acceptance.
        """
        depths = spec.depths or self.depths
        if depths is None:
            return PoolDrafts()
        known = self.speculation
        if known is None:
            raise UserError(f"policy {spec.label} has a draft depth, but how many drafts are accepted is not given.")
        largest = self._largest(n)
        bulk, tail = (None if d is None else known.drafting(d, largest) for d in (depths.bulk, depths.tail))
        return PoolDrafts(bulk, tail, known.sampled)

    def fastest(self, n: int, deepest: int) -> DecodeCurve:
        """The decode curve of lower bounds: with the best depth at each batch size where there are drafts."""
        if self.speculation is None:
            return self.machine.costs.curve
        return self.speculation.fastest(self._largest(n), deepest)

    def _largest(self, n: int) -> int:
        """Requests on one replica, at most: all of a step and what a growing split adds."""
        return min(self.machine.costs.max_num_seqs or LARGEST, 2 * self.n_groups * n, LARGEST)


@dataclass(frozen=True)
class Run:
    """One policy on one seed's stream, step by step.

    Attributes:
        seconds: [steps] makespans.
        splits: [steps, 2] tail groups and tail replicas that ran.
        idle: [steps, 2] idle share of the tail pool (NaN without one) and of the bulk pool.
        bound_ratio: mean makespan over mean lower bound, of some steps' batches; NaN without.
        bound: mean lower bound of those steps, seconds.
        bias: lengths trained on against those the same prompts had at first; 0 unless something was generated again.
        preemptions: of the whole run.
        most_requests: on one replica in any step.
        reasons: (step, reason) of each change of the split.
    """

    policy: str
    seed: int
    seconds: Floats
    splits: NDArray[np.int64]
    idle: Floats
    bound: float
    bound_ratio: float
    bias: LengthBias
    preemptions: int
    most_requests: int
    reasons: tuple[tuple[int, str], ...]


def simulate_run(setup: Setup, spec: PolicySpec, seed: int, tick: Callable[[], object] = lambda: None) -> Run:
    """Simulate one policy; ``tick`` is called after each step.

    Raises:
        UserError: settings that do not fit N and R.
    """
    workload = setup.workload(seed)
    policy, placement, records = spec.build(setup.n_groups, setup.machine.replicas)
    machine = Machine(setup.machine.replicas, setup.machine.costs, setup.machine.noise, seed)
    rollout = Rollout(policy, workload, machine, placement, records, setup.drafts(spec, workload.n))
    steps = []
    for number in range(1, setup.steps + 1):
        steps.append(rollout.step(number))
        tick()
    return _summarised(setup, spec, seed, workload, steps)


def _summarised(setup: Setup, spec: PolicySpec, seed: int, workload: Workload, steps: Sequence[SimulatedStep]) -> Run:
    kept = steps[setup.skip :]
    seconds = np.array([s.observation.generation_s for s in steps])
    chosen = np.unique(np.linspace(setup.skip, len(steps) - 1, setup.bounds).astype(int))
    curve = setup.fastest(workload.n, (spec.depths or setup.depths or PoolDepths()).deepest)
    bounds = [
        machine_slowness(setup, seed, int(i) + 1)
        * makespan_lower_bound(
            steps[i].lengths.ravel(), setup.machine.replicas, curve, max_num_seqs=setup.machine.costs.max_num_seqs
        )
        for i in chosen
    ]
    bound = float(np.mean(bounds)) if bounds else math.nan
    consumed = np.concatenate([s.lengths.ravel() for s in kept])
    first = np.concatenate(
        [workload.lengths(s.prompts.tolist(), [0] * s.prompts.size, s.observation.plan.step).ravel() for s in kept]
    )
    return Run(
        policy=spec.label,
        seed=seed,
        seconds=seconds,
        splits=np.array([(s.observation.plan.counts.tail, s.observation.plan.m) for s in steps]),
        idle=np.array([(math.nan if s.idle_tail is None else s.idle_tail, s.idle_bulk) for s in steps]),
        bound=bound,
        bound_ratio=float(seconds[chosen].mean() / bound) if bounds else math.nan,
        bias=length_bias(consumed, first, None, workload.cap),
        preemptions=sum(s.preemptions for s in steps),
        most_requests=max(s.most_requests for s in steps),
        reasons=tuple((s.decision.step, s.decision.reason) for s in steps if s.decision.switched),
    )


def machine_slowness(setup: Setup, seed: int, step: int) -> float:
    """The factor on a step's times in a seed's run."""
    return Machine(setup.machine.replicas, setup.machine.costs, setup.machine.noise, seed).slowness(step)


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; the ends are NaN when there is one value only."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.low) else f"{self.mean:.3f} ±{(self.high - self.low) / 2:.2f}"


def interval(values: Iterable[float], *, log: bool = False) -> Interval:
    """Student's interval of the mean; with ``log`` of the geometric mean.

    Raises:
        ValueError: no value.
    """
    from scipy.stats import t  # slow to import, and not needed for one seed's run

    x = np.log(list(values)) if log else np.array(list(values), dtype=float)
    if not x.size:
        raise ValueError("an interval needs at least one value")
    mean, half = float(x.mean()), math.nan
    if x.size > 1:
        half = float(t.ppf((1 + CONFIDENCE) / 2, x.size - 1) * x.std(ddof=1) / math.sqrt(x.size))
    ends = (mean, mean - half, mean + half)
    return Interval(*(math.exp(e) for e in ends)) if log else Interval(*ends)


@dataclass(frozen=True)
class Comparison:
    """A policy over all seeds; times in seconds, shares in 0..1."""

    policy: str
    step_s: Interval
    speedup: dict[str, Interval]
    over_bound: Interval
    bound_s: float
    idle_tail: float
    idle_bulk: float
    bias_mean: Interval
    bias_p99: Interval
    bias_truncated: Interval
    preemptions: float
    switches: float
    q: float
    m: float


def compare(setup: Setup, runs: Sequence[Run]) -> list[Comparison]:
    """Summaries of all policies, in the order of their first run; baselines that were not run are left out."""
    by_policy: dict[str, dict[int, Run]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, {})[run.seed] = run
    return [_compared(setup, name, mine, by_policy) for name, mine in by_policy.items()]


def baselines(policies: Collection[str]) -> list[str]:
    """Those of these policies that speed-ups are given against: BASELINES, and verl's dispatch with drafts."""
    drafted = [p for p in policies if p.startswith(f"{BASELINES[1]}:depth")]
    return [b for b in BASELINES if b in policies] + drafted


def _compared(setup: Setup, name: str, mine: dict[int, Run], all_runs: dict[str, dict[int, Run]]) -> Comparison:
    runs = list(mine.values())
    kept = slice(setup.skip, None)
    speedup = {}
    for baseline in baselines(all_runs):
        theirs = all_runs.get(baseline, {})
        ratios = [theirs[s].seconds[kept].sum() / run.seconds[kept].sum() for s, run in mine.items() if s in theirs]
        if ratios:
            speedup[baseline] = interval(ratios, log=True)
    idle = np.concatenate([run.idle[kept] for run in runs])
    tail = idle[~np.isnan(idle[:, 0]), 0]
    splits = np.concatenate([run.splits[kept] for run in runs])
    return Comparison(
        policy=name,
        step_s=interval(run.seconds[kept].mean() for run in runs),
        speedup=speedup,
        over_bound=interval(run.bound_ratio for run in runs),
        bound_s=float(np.mean([run.bound for run in runs])),
        idle_tail=float(tail.mean()) if tail.size else math.nan,
        idle_bulk=float(idle[:, 1].mean()),
        bias_mean=interval(run.bias.mean for run in runs),
        bias_p99=interval(run.bias.p99 for run in runs),
        bias_truncated=interval(run.bias.truncated for run in runs),
        preemptions=float(np.mean([run.preemptions for run in runs])),
        switches=float(np.mean([len(run.reasons) for run in runs])),
        q=float(splits[:, 0].mean()),
        m=float(splits[:, 1].mean()),
    )
