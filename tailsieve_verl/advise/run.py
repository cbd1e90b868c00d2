"""From a dump to the findings: simulate what runs now and TailSieve on the dump's workload, with intervals.

    WorkloadFit --screen--> best fixed split (q, m) --simulate_run, seeds--> gain, bias
                --resampled prompts, simulate_run-------------------------> their spread

An interval (95 %, Student) is centred on the runs with the dump itself; its width comes from the runs on resampled
dumps. These scatter because the dump is small, and because a simulated run is short. For the gain the second part is
known, from the scatter of the steps inside each run, and only what is left of it in the mean over the seeds counts: the
interval is that of the expected gain. For the length bias it is that of one run. The split is screened on other steps
than it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailsieve_verl.advise.advice import Findings
from tailsieve_verl.advise.fit import TAIL, WorkloadFit, describe, prompt_share, resampled
from tailsieve_verl.advise.match import match_steps, scaled
from tailsieve_verl.advise.steplog import StepLog
from tailsieve_verl.advise.workload import DumpWorkload
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import PolicySpec, parse_policy
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.study import CONFIDENCE, Comparison, Interval, Run, Setup, compare, simulate_run

BASELINES = ("verl_default", "uniform_group")
#: Tail shares of N and of R that are screened.
TAIL_GROUPS = (0.0, 0.02, 0.04, 0.06, 0.09, 0.125, 0.17, 0.22, 0.28, 0.35, 0.45)
TAIL_REPLICAS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75)
#: Steps of a screened split, the first of which are its transition.
SCREEN_STEPS, TRANSITION = 16, 2
#: First steps of a judged run that are left out: the controller starts without a decode curve.
SKIP = 4


@dataclass(frozen=True)
class Question:
    """The machine that is asked about, and how much to simulate.

    Attributes:
        replicas: R; costs: of one replica; made_up: whether their curve is a shipped shape.
        now: routing of the run as it is, one of BASELINES.
        steps: training steps of a simulated run; seeds: runs on the dump as it is; resamples: on resampled ones.
        seed: the first seed.
    """

    replicas: int
    costs: EngineCosts
    made_up: bool = False
    now: str = BASELINES[0]
    steps: int = 40
    seeds: int = 4
    resamples: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 2:
            raise UserError(f"replicas={self.replicas} leaves nothing to route: leave TailSieve off.")
        if self.now not in BASELINES:
            raise UserError(f"now={self.now} is not what plain verl runs: choose {' or '.join(BASELINES)}.")
        if self.steps <= 2 * SKIP or self.seeds < 1 or self.resamples < 2:
            raise UserError(
                f"steps={self.steps}, seeds={self.seeds}, resamples={self.resamples} is too little: "
                f"at least {2 * SKIP + 1} steps, 1 seed and 2 resamples."
            )


@dataclass(frozen=True)
class Study:
    """Findings, and the comparison of policies behind them."""

    findings: Findings
    table: tuple[Comparison, ...]


def study_dump(
    fit: WorkloadFit, ask: Question, log: StepLog | None = None, tick: Callable[[], object] = lambda: None
) -> Study:
    """Simulate; `tick` is called `ticks(ask)` times.

    Raises:
        UserError: one group a step, or a log of other steps.
    """
    if fit.n_groups < 2:
        raise UserError("a step has one prompt group, which leaves nothing to route: leave TailSieve off.")
    match = None if log is None else match_steps(fit, log, ask.costs, ask.replicas, ask.now)
    costs = ask.costs if match is None else scaled(ask.costs, match.scale)
    machine = Machine(ask.replicas, costs)
    split = best_split(fit, machine, ask.seed)
    tick()
    now = parse_policy(ask.now)
    ours = PolicySpec("tailsieve", () if split is None else (("q", split[0]), ("m", split[1])))
    others = [parse_policy(name) for name in BASELINES if name != ask.now]
    if split is not None:
        others.append(parse_policy(f"fixed:q={split[0]},m={split[1]}"))

    def run(on: WorkloadFit, spec: PolicySpec, seed: int, held: bool = False) -> Run:
        setup = Setup(fit.n_groups, ask.steps, machine, lambda s: DumpWorkload(on, seed=s, held=held), SKIP)
        result = simulate_run(setup, spec, seed)
        tick()
        return result

    seeds = range(ask.seed, ask.seed + ask.seeds)
    runs = [(run(fit, now, s), run(fit, ours, s), run(fit, ours, s, held=True)) for s in seeds]
    further = [run(fit, spec, s) for s in seeds for spec in others]
    again = [resampled(fit, ask.seed + k) for k in range(ask.resamples)]
    spread = [
        (run(on, now, s), run(on, ours, s), run(on, ours, s, held=True)) for s, on in enumerate(again, start=ask.seed)
    ]
    gain, held = (_gain([(r[0], r[k]) for r in runs], [(r[0], r[k]) for r in spread]) for k in (1, 2))
    bias = {
        name: _around(*([getattr(r[1].bias, name) for r in some] for some in (runs, spread)), floor=floor)
        for name, floor in (("mean", -1.0), ("p99", -1.0), ("truncated", -math.inf))
    }
    setup = Setup(fit.n_groups, ask.steps, machine, lambda s: DumpWorkload(fit, seed=s), SKIP)
    table = compare(setup, [r for pair in runs for r in pair[:2]] + further)
    splits = np.concatenate([r[1].splits[SKIP:] for r in runs])
    findings = Findings(
        lengths=describe(fit),
        icc=_share_around(fit, again, tail=False),
        tail_icc=_share_around(fit, again, tail=True),
        n_groups=fit.n_groups,
        replicas=ask.replicas,
        now=ask.now,
        q=None if split is None else split[0],
        m=None if split is None else split[1],
        gain=gain,
        held=held,
        risk=_risk(gain, ask.resamples),
        bias_mean=bias["mean"],
        bias_p99=bias["p99"],
        bias_truncated=bias["truncated"],
        now_s=float(np.mean([r[0].seconds[SKIP:].mean() for r in runs])),
        tailsieve_s=float(np.mean([r[1].seconds[SKIP:].mean() for r in runs])),
        room=float(np.mean([r[0].bound_ratio for r in runs])),
        idle=float(np.mean([r[0].idle[SKIP:, 1].mean() for r in runs])),
        uniform=float(np.mean(splits[:, 1] == 0)),
        match=match,
        made_up=ask.made_up,
    )
    return Study(findings, tuple(table))


def ticks(ask: Question) -> int:
    """Calls of `tick` in `study_dump`, at most."""
    return 1 + 3 * (ask.seeds + ask.resamples) + len(BASELINES) * ask.seeds


def best_split(fit: WorkloadFit, machine: Machine, seed: int) -> tuple[int, int] | None:
    """The fixed split with the least mean makespan on the dump; None if uniform routing by request beats all."""
    q_choices = sorted({min(max(1, round(share * fit.n_groups)), fit.n_groups - 1) for share in TAIL_GROUPS})
    m_choices = sorted({min(max(1, round(share * machine.replicas)), machine.replicas - 1) for share in TAIL_REPLICAS})
    splits = [(0, 0), *((q, m) for q in q_choices for m in m_choices)]
    seconds = [_screened(fit, machine, *split, seed) for split in splits]
    best = int(np.argmin(seconds))
    return splits[best] if best else None


def _screened(fit: WorkloadFit, machine: Machine, q: int, m: int, seed: int) -> float:
    policy = FixedPolicy(PolicyContext(fit.n_groups, machine.replicas), q, m)
    rollout = Rollout(policy, DumpWorkload(fit, seed=seed + 1_000_003), machine, records=False)
    steps = [rollout.step(number).observation.generation_s for number in range(1, SCREEN_STEPS + 1)]
    return float(np.mean(steps[TRANSITION:]))


def _gain(runs: Sequence[tuple[Run, Run]], spread: Sequence[tuple[Run, Run]]) -> Interval:
    """Expected speed-up (module docstring): geometric mean over `runs`, uncertainty from `spread`."""
    logs = np.array([_log_ratio(*pair) for pair in spread])
    total, chance = float(logs.var(ddof=1)), float(np.mean([_chance(*pair) for pair in spread]))
    variance = max(total - chance * (1 - 1 / len(runs)), total / len(runs))
    mean = float(np.mean([_log_ratio(*pair) for pair in runs]))
    half = _student(logs.size) * math.sqrt(variance)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _log_ratio(now: Run, then: Run) -> float:
    return float(np.log(now.seconds[SKIP:].sum() / then.seconds[SKIP:].sum()))


def _chance(now: Run, then: Run) -> float:
    """Variance of a run's log ratio that its finite number of steps makes."""
    a, b = now.seconds[SKIP:], then.seconds[SKIP:]
    return float(np.var(a / a.mean() - b / b.mean(), ddof=1) / a.size)


def _student(values: int) -> float:
    """Standard errors to either end of a 95 % interval that so many values tell."""
    from scipy.stats import t  # slow to import

    return float(t.ppf((1 + CONFIDENCE) / 2, values - 1))


def _share_around(fit: WorkloadFit, again: Sequence[WorkloadFit], *, tail: bool) -> Interval | None:
    """Prompt share of the lengths, or of being in the longest tenth."""
    limit = np.quantile(fit.lengths, 1 - TAIL, method="higher")
    shares = [prompt_share(on.lengths >= limit if tail else on.lengths, on.step) for on in (fit, *again)]
    spread = [share for share in shares[1:] if share is not None]
    if shares[0] is None:
        return None
    found = _around([shares[0]], spread)
    return Interval(found.mean, max(found.low, 0.0), min(found.high, 1.0))


def _risk(gain: Interval, resamples: int) -> float:
    """Probability that a gain is below 1, by the distribution that its interval comes from."""
    from scipy.stats import t

    half = math.log(gain.high / gain.mean)
    if not half > 0:
        return float(gain.mean < 1)
    return float(t.cdf(-math.log(gain.mean) / half * _student(resamples), resamples - 1))


def _around(centre: Sequence[float], spread: Sequence[float], *, floor: float = -math.inf) -> Interval:
    """The mean of `centre`, as uncertain as one of `spread` is."""
    mean, half = float(np.mean(centre)), math.nan
    if len(spread) > 1:
        half = _student(len(spread)) * float(np.std(spread, ddof=1))
    return Interval(mean, max(mean - half, floor), mean + half)
