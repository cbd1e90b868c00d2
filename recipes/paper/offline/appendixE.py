"""Appendix E: length bias of what is trained, at a stable allocation and through changes of q.

    python recipes/paper/offline/appendixE.py [--out DIR] [--quick] [--seed N]

Many streams run the same schedule: q = 4, then 12, then 4, then uniform. Each step's batch is compared with the batch
that uniform routing trains in that step on the same stream: the difference of mean lengths, relative to the mean of the
population. The policy is frozen, so that uniform's batches have the population's distribution.

    all prompt   every response of a prompt equally long: the appendix's ideal selector, but for who ran beside whom
    persistent   64.8 % of the variance the prompt's (Appendix B)
    chance       no prompt longer than another
    runaways     short answers of which 0.1 % run to the limit, whatever their prompt
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from offline_common import (
    COLOURS,
    GROUP,
    LOADS,
    NamedCurve,
    Options,
    curve_notes,
    decode_curves,
    new_figure,
    parse_options,
    save,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

N, REPLICAS, M = 64, 8, 2
LOW, HIGH = 4, 12
UP, DOWN, LEAVE, STEPS = 11, 21, 31, 36
SCHEDULE = {UP: (HIGH, M), DOWN: (LOW, M), LEAVE: (0, 0)}
MODEL = "Qwen3.5-35B-A3B"
CASES = {
    "all prompt": replace(LOADS["code"], prompt_share=1.0),
    "persistent": LOADS["code"],
    "chance": replace(LOADS["code"], prompt_share=0.0),
    "runaways": LOADS["code, cut by chance"],
}
#: Moments of the schedule, as steps from 1. A change acts in the step of that number.
MOMENTS = {
    "first step": [1],
    f"stable, q={LOW}": list(range(4, UP)),
    f"q {LOW} -> {HIGH}": [UP],
    "one step after the rise": [UP + 1],
    "two after": [UP + 2],
    f"stable, q={HIGH}": list(range(UP + 3, DOWN)),
    f"q {HIGH} -> {LOW}": [DOWN],
    "one step after the fall": [DOWN + 1],
    "two after the fall": [DOWN + 2],
    "to uniform": [LEAVE],
    "one step after that": [LEAVE + 1],
}


def deviations(model: LengthModel, named: NamedCurve, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean tokens and truncated share of each batch, less those of uniform's batch of the step; [STEPS] each."""
    load = SyntheticWorkload(model, GROUP, seed=seed, data_set=(STEPS + 1) * N)
    policy = FixedPolicy(PolicyContext(N, REPLICAS), LOW, M, SCHEDULE)
    rollout = Rollout(policy, load, Machine(REPLICAS, named.costs), records=False)
    mean, truncated = np.zeros(STEPS), np.zeros(STEPS)
    for t in range(STEPS):
        batch = rollout.step(t + 1).lengths
        uniform = load.lengths(range(t * N, (t + 1) * N), [0] * N, t + 1)  # all of them finish, in stream order
        mean[t] = batch.mean() - uniform.mean()
        truncated[t] = (batch >= load.cap).mean() - (uniform >= load.cap).mean()
    return mean, truncated


def run(options: Options) -> None:
    """All loads, many streams."""
    (named,) = decode_curves([MODEL])
    seeds = options.pick(500, 12)
    rows, points = [], []
    figure = new_figure(13, 3.6)
    panels = figure.subplots(1, len(CASES), sharey=True)
    with progress() as bar:
        task = bar.add_task("streams", total=len(CASES) * seeds)
        for axes, (case, model), colour in zip(panels, CASES.items(), COLOURS, strict=False):
            found = []
            for s in range(seeds):
                found.append(deviations(model, named, options.seed + s))
                bar.advance(task)
            mean, truncated = (np.array(column) for column in zip(*found, strict=True))
            mean = mean / model.mean * 100
            for moment, steps in MOMENTS.items():
                at = np.array(steps) - 1
                level, error = _level(mean[:, at])
                share, share_error = _level(truncated[:, at] * 100)
                rows.append(
                    {
                        "load": case,
                        "moment": moment,
                        "mean_%": level,
                        "error_%": error,
                        "truncated_pp": share,
                        "error_pp": share_error,
                    }
                )
            level, error = mean.mean(axis=0), mean.std(axis=0, ddof=1) / np.sqrt(seeds)
            axes.fill_between(range(1, STEPS + 1), level - 2 * error, level + 2 * error, color=colour, alpha=0.3)
            axes.plot(range(1, STEPS + 1), level, color=colour, marker=".")
            axes.axhline(0, color="black", lw=0.8)
            for step in SCHEDULE:
                axes.axvline(step, color=COLOURS[7], ls=":", lw=1)
            axes.set(title=case, xlabel="step")
            points += [
                {"load": case, "step": t + 1, "mean_%": float(level[t]), "error_%": float(error[t])}
                for t in range(STEPS)
            ]
    panels[0].set_ylabel("mean length against uniform, %")
    notes = [
        *curve_notes([named]),
        f"N = {N}, n = {GROUP}, R = {REPLICAS}, m = {M}; {seeds} streams; "
        "deviations from uniform's batch of the same step, with their standard errors over streams",
        f"stable: steps 4-{UP - 1} and {UP + 3}-{DOWN - 1}; dotted in the picture: the steps in which q changes",
    ]
    shown = [
        {
            "moment": moment,
            **{
                case: next(
                    f"{row['mean_%']:+.2f} +- {row['error_%']:.2f}"
                    for row in rows
                    if (row["load"], row["moment"]) == (case, moment)
                )
                for case in CASES
            },
        }
        for moment in MOMENTS
    ]
    save(options, "appendixE", rows, figure, "Appendix E, mean length against uniform, %", notes, points, shown)


def _level(values: np.ndarray) -> tuple[float, float]:
    """Mean, and its standard error over streams, of [streams, steps]."""
    each = values.mean(axis=1)
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(each.size))


if __name__ == "__main__":
    run(parse_options(__doc__))
