"""From a dump to the findings: simulate what runs now and TailSieve on the dump's workload, with intervals.

    WorkloadFit --screen--> best fixed split (q, m) --simulate_run, seeds--> gain, bias      (the values)
                --halves of the prompts, simulate_run---------------------> their spread     (advise/intervals.py)

The split is screened on other steps than it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailsieve_verl.advise.advice import Findings
from tailsieve_verl.advise.fit import TAIL, WorkloadFit, describe, halved, prompt_share
from tailsieve_verl.advise.intervals import Pair, around, expected_gain, risk
from tailsieve_verl.advise.match import match_steps, scaled
from tailsieve_verl.advise.steplog import StepLog
from tailsieve_verl.advise.workload import DumpWorkload
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import PolicySpec, parse_policy
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.study import BOUND_STEPS, Comparison, Interval, Run, Setup, compare, simulate_run

BASELINES = ("verl_default", "uniform_group")
#: Tail shares of N and of R that are screened.
TAIL_GROUPS = (0.0, 0.02, 0.04, 0.06, 0.09, 0.125, 0.17, 0.22, 0.28, 0.35, 0.45)
TAIL_REPLICAS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75)
#: Steps of a screened split, the first of which are its transition; their stream is far from the judged runs'.
SCREEN_STEPS, TRANSITION, SCREEN_SEED = 16, 2, 1_000_003
#: Steps after which the slower splits are given up, and the share that goes on: the optimum is flat, and of splits that
#: are far from it five steps tell enough.
FIRST_LOOK, LEADERS = 7, 0.25
#: First steps of a judged run that are left out: the controller starts without a decode curve.
SKIP = 4


@dataclass(frozen=True)
class Question:
    """The machine that is asked about, and how much to simulate.

    Attributes:
        replicas: R; costs: of one replica; made_up: whether their curve is a shipped shape.
        now: routing of the run as it is, one of BASELINES.
        steps: training steps of a simulated run; seeds: runs on the dump as it is; halves: runs on halves
            of its prompts.
        seed: the first seed.
    """

    replicas: int
    costs: EngineCosts
    made_up: bool = False
    now: str = BASELINES[0]
    steps: int = 40
    seeds: int = 4
    halves: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 2:
            raise UserError(f"replicas={self.replicas} leaves nothing to route: leave TailSieve off.")
        if self.now not in BASELINES:
            raise UserError(f"now={self.now} is not what plain verl runs: choose {' or '.join(BASELINES)}.")
        if self.steps <= 2 * SKIP or self.seeds < 1 or self.halves < 2:
            raise UserError(
                f"steps={self.steps}, seeds={self.seeds}, halves={self.halves} is too little: "
                f"at least {2 * SKIP + 1} steps, 1 seed and 2 halves."
            )


@dataclass(frozen=True)
class Split:
    """The best fixed split of those screened, and its speed-up over uniform routing by request there."""

    q: int
    m: int
    gain: float


@dataclass(frozen=True)
class Study:
    """Findings, the comparison of policies behind them, and what they were found on."""

    findings: Findings
    table: tuple[Comparison, ...]
    machine: Machine
    split: Split


@dataclass(frozen=True)
class _Runs:
    """One seed's runs on one stream; held: TailSieve with second attempts as long as the first."""

    now: Run
    ours: Run
    held: Run
    fixed: Run

    def pair(self, other: str) -> Pair:
        return self.now.seconds[SKIP:], getattr(self, other).seconds[SKIP:]


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
    machine = Machine(ask.replicas, ask.costs if match is None else scaled(ask.costs, match.scale))
    split = best_split(fit, machine, ask.seed)
    pays = split.gain > 1
    tick()
    settings = (("q", split.q), ("m", split.m))
    ours, fixed = PolicySpec("tailsieve", settings if pays else ()), PolicySpec("fixed", settings)

    def runs(on: WorkloadFit, seed: int, others: Sequence[str] = ()) -> tuple[_Runs, list[Run]]:
        bounds = BOUND_STEPS if on is fit else 0  # nobody reads those of halves
        streams = {held: DumpWorkload(on, seed=seed, held=held) for held in (False, True)}

        def run(spec: PolicySpec, held: bool = False) -> Run:
            result = simulate_run(
                Setup(fit.n_groups, ask.steps, machine, lambda _: streams[held], SKIP, bounds), spec, seed
            )
            tick()
            return result

        now = parse_policy(ask.now)
        return _Runs(run(now), run(ours), run(ours, True), run(fixed)), [run(parse_policy(name)) for name in others]

    found = [runs(fit, seed, [b for b in BASELINES if b != ask.now]) for seed in range(ask.seed, ask.seed + ask.seeds)]
    values, other = [mine for mine, _ in found], [run for _, rest in found for run in rest]
    halves = [halved(fit, ask.seed + k) for k in range(ask.halves)]
    spread = [runs(on, seed)[0] for seed, on in enumerate(halves, start=ask.seed)]
    fixed_pairs = [r.pair("fixed") for r in spread]
    gain, held = (
        expected_gain([r.pair(name) for r in values], [[r.pair(name) for r in spread], fixed_pairs])
        for name in ("ours", "held")
    )
    mean, p99, truncated = (
        around([getattr(r.ours.bias, name) for r in values], [getattr(r.ours.bias, name) for r in spread], least=least)
        for name, least in (("mean", -1.0), ("p99", -1.0), ("truncated", -math.inf))
    )
    findings = Findings(
        lengths=describe(fit),
        icc=_share(fit, halves, tail=False),
        tail_icc=_share(fit, halves, tail=True),
        n_groups=fit.n_groups,
        replicas=ask.replicas,
        now=ask.now,
        q=split.q if pays else None,
        m=split.m if pays else None,
        gain=gain,
        held=held,
        risk=risk(gain, ask.halves),
        bias_mean=mean,
        bias_p99=p99,
        bias_truncated=truncated,
        now_s=float(np.mean([r.now.seconds[SKIP:].mean() for r in values])),
        tailsieve_s=float(np.mean([r.ours.seconds[SKIP:].mean() for r in values])),
        room=float(np.mean([r.now.bound_ratio for r in values])),
        idle=float(np.mean([r.now.idle[SKIP:, 1].mean() for r in values])),
        uniform=float(np.mean([(r.ours.splits[SKIP:, 1] == 0).mean() for r in values])),
        match=match,
        made_up=ask.made_up,
    )
    shown = [one for r in values for one in (r.now, r.ours, r.fixed)]
    setup = Setup(fit.n_groups, ask.steps, machine, lambda s: DumpWorkload(fit, seed=s), SKIP)
    return Study(findings, tuple(compare(setup, shown + other)), machine, split)


def ticks(ask: Question) -> int:
    """Calls of `tick` in `study_dump`."""
    return 1 + 4 * (ask.seeds + ask.halves) + (len(BASELINES) - 1) * ask.seeds


def best_split(fit: WorkloadFit, machine: Machine, seed: int) -> Split:
    """The fixed split with the least mean makespan on the dump, of those that lead after some steps."""
    q_choices = sorted({min(max(1, round(share * fit.n_groups)), fit.n_groups - 1) for share in TAIL_GROUPS})
    m_choices = sorted({min(max(1, round(share * machine.replicas)), machine.replicas - 1) for share in TAIL_REPLICAS})
    screens = [_Screen(fit, machine, q, m, seed) for q in q_choices for m in m_choices]
    for screen in screens:
        screen.run(FIRST_LOOK)
    screens = sorted(screens, key=_Screen.seconds)[: math.ceil(len(screens) * LEADERS)]
    for screen in screens:
        screen.run(SCREEN_STEPS)
    best, uniform = min(screens, key=_Screen.seconds), _Screen(fit, machine, 0, 0, seed)
    uniform.run(SCREEN_STEPS)
    return Split(best.q, best.m, uniform.seconds() / best.seconds())


class _Screen:
    """A fixed split on the steps that splits are chosen by."""

    def __init__(self, fit: WorkloadFit, machine: Machine, q: int, m: int, seed: int) -> None:
        self.q, self.m = q, m
        policy = FixedPolicy(PolicyContext(fit.n_groups, machine.replicas), q, m)
        self._rollout = Rollout(policy, DumpWorkload(fit, seed=seed + SCREEN_SEED), machine, records=False)
        self._seconds: list[float] = []

    def run(self, steps: int) -> None:
        """Go on until so many steps are done."""
        while len(self._seconds) < steps:
            self._seconds.append(self._rollout.step(len(self._seconds) + 1).observation.generation_s)

    def seconds(self) -> float:
        """Mean makespan so far, the transition left out."""
        return float(np.mean(self._seconds[TRANSITION:]))


def _share(fit: WorkloadFit, halves: Sequence[WorkloadFit], *, tail: bool) -> Interval | None:
    """Prompt share of the lengths, or of being in the longest tenth; None where nothing varies."""
    limit = np.quantile(fit.lengths, 1 - TAIL, method="higher")
    shares = [prompt_share(on.lengths >= limit if tail else on.lengths, on.step) for on in (fit, *halves)]
    if shares[0] is None:
        return None
    return around([shares[0]], [share for share in shares[1:] if share is not None], least=0.0, most=1.0)
