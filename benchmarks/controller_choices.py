"""What each deviation of the controller from the letter of the paper is worth, in the closed loop of the tests.

    PYTHONPATH=. python benchmarks/controller_choices.py [seeds]

Loads, curves and the simulated rollout are those of tests/core/closed_loop.py (N = 64, n = 8, R = 8, dense curve).
Every figure is a mean over seeds with its standard deviation.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.history import Scenarios, WorkHistory
from tailsieve_verl.core.policy import FixedPolicy
from tailsieve_verl.core.pool_ends import pool_ends
from tailsieve_verl.core.predict import Predictor
from tests.core.closed_loop import DENSE, LOADS, Load, N, Rollout, context, fixed, run

R, SPLIT = 8, (10, 4)
LETTER = dict.fromkeys(("reoptimise_q", "search_far", "predicted_test", "guard", "reenter"), False)


def show(what: str, values: list[float]) -> None:
    print(f"{what:<86} {np.mean(values):+7.1%} +- {np.std(values):.1%}", flush=True)


def predictions(load: Load) -> dict[str, float]:
    """Relative errors of predictions after 60 steps under a split, by what the prediction is made from."""
    history, rollout, policy = WorkHistory(N), Rollout(load, DENSE), FixedPolicy(context(R), *SPLIT)
    consumed: list[tuple[int, ...]] = []
    for step in range(1, 61):
        observation = rollout.step(policy.plan(step=step, carried=len(rollout.carried)))
        history.observe(observation)
        consumed += [g.tokens for g in observation.groups if g.status == "trained"]
    scenarios = history.scenarios(16, 61)
    assert scenarios is not None
    real = fixed(*SPLIT, load, R, steps=60)
    uniform = np.mean(fixed(0, 0, load, R, steps=60).seconds[10:])
    model = Predictor(scenarios, DENSE, N, R)
    naive = np.array(consumed[-16 * N :], dtype=float).reshape(16, N, -1)
    naive_uniform = Predictor(Scenarios(naive, naive), DENSE, N, R).uniform().mean_s
    finish, _ = pool_ends(scenarios.first, R - SPLIT[1], "request", DENSE)
    rank = np.argsort(finish, axis=1)[:, : N - SPLIT[0]]
    alone = np.take_along_axis(scenarios.first, np.sort(rank, axis=1)[:, :, None], axis=1)
    needed_only = pool_ends(alone, R - SPLIT[1], "request", DENSE)[1].max(axis=1).mean()
    realised = Predictor(Scenarios(scenarios.first, scenarios.first), DENSE, N, R)
    return {
        "uniform, from consumed lengths": naive_uniform / uniform - 1,
        "uniform, from whole pools with imputed stragglers": model.uniform().mean_s / uniform - 1,
        "bulk pool, from N - q groups, against F = N with a cut": needed_only / model.bulk(*SPLIT).mean() - 1,
        "tail pool, from realised lengths, against second runs": realised.tail(*SPLIT).mean()
        / model.tail(*SPLIT).mean()
        - 1,
        "the split itself": model.split(*SPLIT).mean_s / np.mean(real.seconds[10:]) - 1,
    }


def main(seeds: int) -> None:
    for name in ("real", "runaway"):
        rows = [predictions(replace(LOADS[name], seed=seed)) for seed in range(seeds)]
        for what in rows[0]:
            show(f"{name}: predicted over true, {what}", [row[what] for row in rows])
    for name in ("real", "strong"):
        gains: dict[str, list[float]] = {}
        for seed in range(seeds):
            load = replace(LOADS[name], seed=seed)
            base = fixed(0, 0, load, R, placement="group").last(80)
            for what, result in {
                "verl's default dispatch (uniform by request)": fixed(0, 0, load, R),
                "fixed (10, 4), both pools by group": fixed(*SPLIT, load, R, placement="group"),
                "fixed (10, 4), both pools by request": fixed(*SPLIT, load, R),
                "controller, defaults, from (8, 4)": run(Controller(ControllerConfig(8, 4), N, R), load),
                "controller, paper preset, from (8, 4)": run(
                    Controller(ControllerConfig(8, 4, **LETTER), N, R, tail_placement="group", bulk_placement="group"),
                    load,
                ),
                "controller, paper preset, from (1, 4)": run(
                    Controller(ControllerConfig(1, 4, **LETTER), N, R, tail_placement="group", bulk_placement="group"),
                    load,
                ),
                "controller, defaults, from (1, 4)": run(Controller(ControllerConfig(1, 4), N, R), load),
            }.items():
                gains.setdefault(what, []).append(base / result.last(80) - 1)
        for what, values in gains.items():
            show(f"{name}: speed over uniform by group, last 80 of 120 steps, {what}", values)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
