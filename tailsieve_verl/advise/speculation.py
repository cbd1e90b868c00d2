"""What drafts would be worth on a dump's workload: how deep, under which dispatch, and when not at all.

    Study (dump, machine, split) + acceptance --study_drafts--> DraftFindings --draft_sentences--> words

Every figure is a speed-up over the routing now without drafts, with its interval over the simulated runs; how sure the
dump is of the lengths is the advice's own interval. A prompt that is generated again is as long as it was the first
time, so that nothing is gained by shorter answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailsieve_verl.advise.advice import MIN_GAIN, Advice, times
from tailsieve_verl.advise.fit import WorkloadFit
from tailsieve_verl.advise.run import SKIP, Question, Study
from tailsieve_verl.advise.workload import DumpWorkload
from tailsieve_verl.simulate.drafting import Speculation
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.study import Interval, Setup, interval, simulate_run

#: Depths of the baseline in the comparison under one budget (paper, Fig. 6(a)); beyond, verifying costs too much at the
#: batch sizes of a rollout.
BUDGETS = (1, 2, 3)


@dataclass(frozen=True)
class Budget:
    """Two pools against one depth everywhere, d_bulk + d_tail = 2 d_base.

    Attributes:
        base: d_base; uniform: the routing now with it; same: the best split with it on both routes.
        bulk, tail: the best pair; routes: the split with it.
    """

    base: int
    uniform: Interval
    same: Interval
    bulk: int
    tail: int
    routes: Interval


@dataclass(frozen=True)
class DraftFindings:
    """Speed-ups over the routing now without drafts.

    Attributes:
        rates: acceptance by draft position.
        table: best depth by running batch size, as ``b:d``; "0" if drafts pay nowhere.
        depth: best depth that is the same for every batch.
        now_fixed, now_live: the routing now with that depth, and with the table.
        tailsieve_fixed, tailsieve_live: the same under TailSieve.
        tailsieve: TailSieve without drafts.
        budgets: comparisons under one budget.
    """

    rates: tuple[float, ...]
    table: str
    depth: int
    now_fixed: Interval
    now_live: Interval
    tailsieve: Interval
    tailsieve_fixed: Interval
    tailsieve_live: Interval
    budgets: tuple[Budget, ...]

    @property
    def pays(self) -> bool:
        return self.now_live.mean >= MIN_GAIN

    @property
    def routed(self) -> bool:
        """Whether TailSieve with drafts is worth having over the routing now with drafts."""
        return self.tailsieve_live.mean >= MIN_GAIN * self.now_live.mean


def study_drafts(
    fit: WorkloadFit, ask: Question, study: Study, known: Speculation, tick: Callable[[], object] = lambda: None
) -> DraftFindings:
    """Simulate; `tick` is called `draft_ticks(known)` times."""
    seeds = range(ask.seed, ask.seed + ask.seeds)
    streams = {seed: DumpWorkload(fit, seed=seed, held=True) for seed in seeds}
    setup = Setup(fit.n_groups, ask.steps, study.machine, streams.__getitem__, SKIP, 0, known)

    def seconds(policy: str, depth: str = "") -> np.ndarray:
        """Of all steps kept, [seeds]."""
        settings = [part for part in (policy.partition(":")[2], depth) if part]
        spec = parse_policy(policy.partition(":")[0] + (":" + ",".join(settings) if settings else ""))
        found = [simulate_run(setup, spec, seed).seconds[SKIP:].sum() for seed in seeds]
        tick()
        return np.array(found)

    now = seconds(ask.now)

    def gain(found: np.ndarray) -> Interval:
        return interval(now / found, log=True)

    q, m = study.split.q, study.split.m
    ours = "tailsieve" if study.findings.q is None else f"tailsieve:q={q},m={m}"
    fixed = {d: seconds(ask.now, f"depth={d}") for d in range(1, known.deepest + 1)}
    depth = min(fixed, key=lambda d: float(fixed[d].sum()))
    budgets = []
    for base in BUDGETS:
        pairs = {
            bulk: seconds(f"fixed:q={q},m={m}", f"depth.bulk={bulk},depth.tail={2 * base - bulk}")
            for bulk in range(2 * base + 1)
        }
        bulk = min(pairs, key=lambda d: float(pairs[d].sum()))
        uniform = fixed[base] if base in fixed else seconds(ask.now, f"depth={base}")
        budgets.append(Budget(base, gain(uniform), gain(pairs[base]), bulk, 2 * base - bulk, gain(pairs[bulk])))
    return DraftFindings(
        rates=known.acceptance.rates,
        table=str(known.best(2 * fit.n_groups * fit.n)),
        depth=depth,
        now_fixed=gain(fixed[depth]),
        now_live=gain(seconds(ask.now, "depth=auto")),
        tailsieve=gain(seconds(ours)),
        tailsieve_fixed=gain(seconds(ours, f"depth={depth}")),
        tailsieve_live=gain(seconds(ours, "depth=auto")),
        budgets=tuple(budgets),
    )


def draft_ticks(known: Speculation) -> int:
    """Calls of `tick` in `study_drafts`."""
    beyond = sum(base > known.deepest for base in BUDGETS)
    return 5 + known.deepest + beyond + sum(2 * base + 1 for base in BUDGETS)


def draft_sentences(found: DraftFindings, advice: Advice, now: str) -> list[str]:
    """The answer on drafts, most important first."""
    rates = ", ".join(f"{rate:.2g}" for rate in found.rates)
    if not found.pays:
        return [
            f"Drafts do not pay at an acceptance of {rates}: the best depths ({found.table}) make {now} "
            f"{times(found.now_live)} as fast, {MIN_GAIN:.2f}x is the least worth having."
        ]
    words = [
        f"Drafts pay: accepted with {rates}, depth by running batch makes {now} {times(found.now_live)} as fast, one "
        f"depth for all batches, {found.depth}, {times(found.now_fixed)}.",
        f"Best depths, from so many running requests on: {found.table}.",
    ]
    if advice.verdict != "leave" and found.routed:
        words.append(f"Under TailSieve with the same depths it is {times(found.tailsieve_live)}.")
    else:
        words.append(
            f"TailSieve would make it {times(found.tailsieve_live)}, second attempts as long as the first "
            f"({times(found.tailsieve)} without drafts)" + ("." if found.routed else ": no more worth having.")
        )
    words += [
        f"With one depth for all batches, {b.base} everywhere is {b.uniform.mean:.2f}x under {now} and "
        f"{b.same.mean:.2f}x on two pools; {b.bulk} bulk and {b.tail} tail, the best with that sum, "
        f"{b.routes.mean:.2f}x."
        for b in found.budgets
    ]
    return [*words, f"To try it, with your drafter's method: {draft_override(found, advice, now)}"]


def draft_override(found: DraftFindings, advice: Advice, now: str) -> str:
    """What to append to the run's command line: TailSieve where it pays, else the routing now, with live depth."""
    route = advice.override if found.routed else None  # None too where the advice is to leave TailSieve off
    if route is None:
        own = {"verl_default": "policy=fixed q=0 m=0", "uniform_group": "policy=uniform_group"}[now]
        route = "+tailsieve=default " + " ".join(f"trainer.v1.tailsieve.{part}" for part in own.split())
    live = " ".join(f"trainer.v1.tailsieve.speculation.depth.{pool}=auto" for pool in ("bulk", "tail"))
    return f"{route} trainer.v1.tailsieve.speculation.method=mtp {live}"


def draft_rows(found: DraftFindings, now: str) -> list[tuple[str, object, str]]:
    """Figures for tables: name, value or interval, meaning."""
    rows: list[tuple[str, object, str]] = [
        ("draft_depth", found.depth, f"best depth that is the same for every batch; by running batch: {found.table}"),
        ("now_fixed_depth", found.now_fixed, f"{now} with that depth, over {now} without drafts"),
        ("now_live_depth", found.now_live, f"{now} with depth by running batch"),
        ("tailsieve_fixed_depth", found.tailsieve_fixed, "TailSieve with that depth"),
        ("tailsieve_live_depth", found.tailsieve_live, "TailSieve with depth by running batch"),
    ]
    for b in found.budgets:
        pair = f"d_bulk + d_tail = {2 * b.base}"
        rows += [
            (f"budget_{2 * b.base}_now", b.uniform, f"{pair}: {b.base} + {b.base} under {now}"),
            (f"budget_{2 * b.base}_same", b.same, f"{pair}: {b.base} + {b.base} on two pools"),
            (f"budget_{2 * b.base}_routes", b.routes, f"{pair}: {b.bulk} + {b.tail} on two pools, the best pair"),
        ]
    return rows
