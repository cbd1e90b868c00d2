"""Figure 3: how many of the truly long groups a partial rollout's unfinished groups contain (2.3).

    python recipes/paper/offline/fig3.py [--out DIR] [--quick] [--seed N]

A round launches N (1 + rho) groups, whole groups dealt over R replicas, and is cut when N are done. The candidates are
the groups unfinished then. The paper does not say what it calls a ground-truth long-tail group, so three meanings are
given; each names the K longest of the launched groups:

    this round   by the longest response the group would have had, had this round run to its end
    prompt       by the prompt's mean length over many regenerations: what the signal is for
    next round   by the longest response when the prompt is generated once more

"same size" is K = rho N, as many as there are candidates; then capture is precision too, and chance gives rho/(1+rho).
"""

from __future__ import annotations

import numpy as np
from offline_common import (
    COLOURS,
    GROUP,
    LOADS,
    Options,
    curve_notes,
    decode_curves,
    mean_spread,
    new_figure,
    parse_options,
    save,
    start,
    traces_folder,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.simulate.workload import SyntheticWorkload, TraceWorkload, Workload
from tailsieve_verl.traces.files import read_trace

N, REPLICAS = 64, 8
RHO = (0.05, 0.10, 0.25)
TRUTHS = ("this round", "prompt", "next round")
#: A set whose size does not grow with rho: 3 % of N.
TOP = 2
#: Generations of a prompt whose mean length stands for its level.
AGAIN = 12
MODEL = "Qwen3.5-35B-A3B"


def workloads() -> dict:
    """A stream for a seed, by load: the synthetic ones, and a real one whose tail is little the prompt's, if there."""
    found = {
        label: (lambda seed, model=model: SyntheticWorkload(model, GROUP, seed=seed, data_set=1024))
        for label, model in LOADS.items()
    }
    folder = traces_folder()
    if folder is not None and (folder / "lengths_rg_llama3b_math.csv").is_file():
        trace = read_trace(folder / "lengths_rg_llama3b_math.csv", source="all", checkpoint="step_400")
        found["Llama-3B math trace"] = lambda seed: TraceWorkload(trace, GROUP, seed=seed)
    return found


def one_round(workload: Workload, rho: float, named) -> tuple[set[int], dict[str, np.ndarray]]:
    """Candidates of one round, and all launched prompts by falling length under each truth."""
    left_over = round(rho * N)
    rollout = start(f"fixed:q={left_over},m=1,bulk_placement=group", workload, N, REPLICAS, named)
    rollout.step(1)  # nothing is carried yet: all replicas run N + q fresh groups
    prompts = np.arange(N + left_over)
    generated = [workload.lengths(prompts.tolist(), [attempt] * prompts.size, 1) for attempt in range(AGAIN + 1)]
    scores = {
        "this round": generated[0].max(axis=1),
        "prompt": np.mean(generated[1:], axis=(0, 2)),
        "next round": generated[1].max(axis=1),
    }
    mixed = np.random.default_rng(0).permutation(prompts)  # many reach the limit: ties are broken by chance
    return set(rollout.ledger.carried), {
        truth: mixed[np.argsort(-score[mixed], kind="stable")] for truth, score in scores.items()
    }


def run(options: Options) -> None:
    """Repeat rounds, count captures."""
    (named,) = decode_curves([MODEL])
    seeds, rounds = options.pick(5, 1), options.pick(40, 4)
    rows, points, curves = [], [], {}
    loads = workloads()
    with progress() as bar:
        task = bar.add_task("rounds", total=len(loads) * len(RHO) * seeds * rounds)
        for load, stream in loads.items():
            for rho in RHO:
                size = round(rho * N)
                hits = np.zeros((len(TRUTHS), seeds, rounds, size))
                for s in range(seeds):
                    for r in range(rounds):
                        workload = stream(options.seed + 1000 * s + r)
                        candidates, order = one_round(workload, rho, named)
                        for t, truth in enumerate(TRUTHS):
                            hits[t, s, r] = [prompt in candidates for prompt in order[truth][:size].tolist()]
                        bar.advance(task)
                captured = np.cumsum(hits, axis=3) / np.arange(1, size + 1)
                per_seed = captured.mean(axis=2)
                row = {"load": load, "rho": rho, "candidates": size}
                for t, truth in enumerate(TRUTHS):
                    row[truth] = mean_spread(per_seed[t, :, -1], 2)
                    if truth != "next round":
                        row[f"{truth}, top {TOP}"] = mean_spread(per_seed[t, :, TOP - 1], 2)
                rows.append(row)
                curves[load, rho] = per_seed.mean(axis=1)
                for k in range(size):
                    means = {truth: float(curves[load, rho][t, k]) for t, truth in enumerate(TRUTHS)}
                    points.append({"load": load, "rho": rho, "longest": k + 1, **means})
    shown = list(dict.fromkeys(load for load, _ in curves))
    figure = new_figure(3.1 * len(shown), 3.6)
    for axes, load in zip(np.atleast_1d(figure.subplots(1, len(shown), sharey=True)), shown, strict=True):
        for rho, colour in zip(RHO, COLOURS, strict=False):
            share = np.arange(1, curves[load, rho].shape[1] + 1) / (N + round(rho * N)) * 100
            for t, (truth, style) in enumerate(zip(TRUTHS[:2], ("-", "--"), strict=True)):
                label = f"rho {rho:.0%}, {truth}"
                axes.plot(share, curves[load, rho][t] * 100, color=colour, ls=style, marker=".", ms=3, label=label)
        axes.set(title=load, xlabel="longest groups, % of launched", ylim=(0, 102))
    figure.axes[0].set_ylabel("captured, %")
    figure.axes[-1].legend(fontsize=7)
    notes = [
        *curve_notes([named]),
        f"N = {N}, n = {GROUP}, R = {REPLICAS}; {seeds} seeds of {rounds} rounds; mean +- deviation over seeds",
        f"each truth: captured share of the rho N longest groups; top {TOP}: of the {TOP} longest, whatever rho",
    ]
    save(options, "fig3", rows, figure, "Figure 3, share of long groups among the unfinished", notes, points)


if __name__ == "__main__":
    run(parse_options(__doc__))
