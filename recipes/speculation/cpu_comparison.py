"""What drafts bring on real vLLM replicas on a CPU, by dispatch and by how depths are chosen: the clock, not a model.

    python recipes/speculation/cpu_comparison.py [--setup counting] [--clock cpu] [--quick] [--out DIR]

Two replicas with a core each. First a grid: the speed-up by draft depth and batch size against engines without a
drafter. It gives the step times and the acceptance from which every depth below is chosen, as `auto` does in a run.
Then the same requests (lengths fixed by ``ignore_eos``) under each way to place them and to draft, in an order that
rotates from repeat to repeat:

    verl's default dispatch      no drafter | the best depth everywhere | depth by running batch (live)
    TailSieve's two pools        no drafter | the best depth everywhere | a depth for each pool | live
    uniform by group and pools   at the same budget, d_bulk + d_tail = 2 d (paper Fig. 6a)

Depths, and how many groups the tail pool gets, follow from the grid and from another draw of the same prompts, never
from the runs that are compared. Setups:

    counting   a made-up target of 8 layers and an EAGLE-3 drafter that agrees with it in about 7 of 10 tokens
    smollm2    SmolLM2-135M on counting prompts, with n-gram drafts

Everything is written as it comes, and the same command goes on where it was stopped:

    DIR/grid.csv, comparison.csv, matched.csv   a row per cell, per way, per budget
    DIR/runs.jsonl, summary.json, comparison.png
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from choosing import BUDGETS, DEEPEST, REPLICAS, SEATS, Chooser, Way, all_ways
from plot import plot

from tailsieve_verl.cli.output import print_table, say, write_csv, write_json
from tailsieve_verl.core.drafting import DraftCounts
from tailsieve_verl.core.speculation import Acceptance, DepthTable, tries
from tailsieve_verl.errors import UserError
from tailsieve_verl.integration.speculation import SCHEDULER
from tailsieve_verl.replay.engine import (
    EngineRun,
    EngineSpec,
    Place,
    ReplicaProcess,
    cpu_places,
    run_together,
    start_replicas,
)
from tailsieve_verl.replay.pick import Picked, pick
from tailsieve_verl.replay.policies import place
from tailsieve_verl.traces.synthetic import LengthModel, synthetic_trace
from tailsieve_verl.workloads import counting
from tailsieve_verl.workloads.drafters import Sizes, make_eagle3, make_target
from tailsieve_verl.workloads.models import ensure_smollm2, ensure_tiny

ROOT = Path(__file__).parents[2]
GROUPS, ROLLOUTS = 16, 4
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 56)
#: Tokens of a request in a grid cell, up to batch size 8 and least: large batches have a steady step time.
GRID_TOKENS, LEAST_TOKENS = 48, 16
#: Scale of the made-up target's logits: it then samples what the drafter says in 7 of 10 tokens.
SHARPNESS = 0.0145
#: The long tail that persists with the prompt, which the two pools are for.
LENGTHS = LengthModel(p50=420, p90=1300, cap=2048, prompt_share=0.8)


@dataclass(frozen=True)
class Setup:
    """What runs: a model, what drafts, and the prompts of N groups as token ids."""

    model: Path
    drafter: dict[str, Any]
    temperature: float
    prompts: list[list[int]]


def counting_setup(cache: Path) -> Setup:
    """A target of 8 layers (0.2 GB), bound by memory at small batches, and a drafter of a tenth of a layer."""
    tokenizer, target, drafter = ensure_tiny(cache / "tiny"), cache / "counting-target", cache / "counting-eagle3"
    sizes = Sizes(hidden=1024, heads=16, layers=8, intermediate=2816, dtype="bfloat16")
    if not target.exists():
        make_target(tokenizer, target, sizes=sizes, disturbed=0.6, sharpness=SHARPNESS)
    if not drafter.exists():
        make_eagle3(target, drafter, sharpness=SHARPNESS)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(16, 500, size=16).tolist() for _ in range(GROUPS)]
    return Setup(target, {"method": "eagle3", "model": str(drafter)}, 1.0, prompts)


def smollm2_setup(cache: Path) -> Setup:
    """SmolLM2 counts; its output repeats itself, so that n-grams of it are found again."""
    from transformers import AutoTokenizer

    model = ensure_smollm2(cache / "smollm2")
    words = AutoTokenizer.from_pretrained(model)
    rows = counting.make_rows(GROUPS, 0, "train")
    prompts = [
        list(words.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)) for row in rows
    ]
    return Setup(model, {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 2}, 0.6, prompts)


SETUPS: dict[str, Callable[[Path], Setup]] = {"counting": counting_setup, "smollm2": smollm2_setup}


class Bench:
    """Two pairs of replicas on the same cores: with a drafter, and without; one pair runs at a time."""

    def __init__(self, setup: Setup, options: argparse.Namespace, stack: ExitStack) -> None:
        self.setup, self.prompts = setup, setup.prompts
        spec = EngineSpec(
            setup.model, device="cpu", max_num_seqs=SEATS, clock=options.clock, temperature=setup.temperature
        )
        drafting = {"speculative_config": {**setup.drafter, "num_speculative_tokens": DEEPEST}}
        places = [Place(cores=p.cores[:1]) for p in cpu_places(REPLICAS)]
        self.plain = stack.enter_context(start_replicas(spec, places))
        drafted = replace(spec, extra={**drafting, "scheduler_cls": SCHEDULER})
        self.drafting = stack.enter_context(start_replicas(drafted, places))

    def run(self, loads: Sequence[Sequence[Any]], tables: Sequence[DepthTable] | None) -> list[EngineRun]:
        replicas: list[ReplicaProcess] = self.plain if tables is None else self.drafting
        depths = None if tables is None else [table.as_list(SEATS) for table in tables]
        return run_together(replicas, loads, timeout_s=600, depths=depths)

    def warm_up(self) -> None:
        """Every batch size once: the first step at one prepares kernels."""
        load = [(self.prompts[i % len(self.prompts)], 1 + i // 2) for i in range(SEATS)]
        self.run([load] * REPLICAS, None)
        for depth in range(DEEPEST + 1):
            self.run([load[:: 1 + depth]] * REPLICAS, [DepthTable.constant(depth)] * REPLICAS)


# ---- the grid ------------------------------------------------------------------------------------------------------


def measure_grid(bench: Bench, options: argparse.Namespace) -> tuple[list[dict[str, Any]], Acceptance]:
    """Each batch size and depth on both replicas at once; the depths in rotating order."""
    depths: list[int | None] = [None, *range(DEEPEST + 1)]
    cells: dict[tuple[int, int | None], list[tuple[float, float]]] = {}
    counts = DraftCounts(DEEPEST)
    for turn in range(options.grid_repeats):
        for batch in options.batch_sizes:
            for depth in depths[turn % len(depths) :] + depths[: turn % len(depths)]:
                tokens = max(LEAST_TOKENS, GRID_TOKENS * 8 // max(batch, 8)) * (1 + (depth or 0) // 2)
                load = [(bench.prompts[(turn + i) % len(bench.prompts)], tokens) for i in range(batch)]
                tables = None if depth is None else [DepthTable.constant(depth)] * REPLICAS
                for run in bench.run([load] * REPLICAS, tables):
                    cells.setdefault((batch, depth), []).append(full_steps(run, batch))
                    if run.drafting:
                        counts.add(run.drafting["steps"], run.drafting["drafts"], chances=run.drafting["chances"])
    rows = []
    for (batch, depth), found in sorted(
        cells.items(), key=lambda cell: (cell[0][0], -1 if cell[0][1] is None else cell[0][1])
    ):
        seconds, rate = (float(np.mean(values)) for values in zip(*found, strict=True))
        plain = float(np.mean([s / r for s, r in cells[batch, None]]))
        rows.append(
            {
                "batch": batch,
                "depth": "none" if depth is None else depth,
                "step_s": seconds,
                "tokens_a_step": rate,
                "speedup": plain / float(np.mean([s / r for s, r in found])),
                "low": plain / max(s / r for s, r in found),
                "high": plain / min(s / r for s, r in found),
            }
        )
    return rows, Acceptance.from_tries(*tries(counts.chances))


def full_steps(run: EngineRun, batch: int) -> tuple[float, float]:
    """Mean seconds of a step with the whole batch decoding, and tokens that a request got in it."""
    steps = np.array(run.steps)
    lasted = np.diff(steps[:, 0], prepend=0.0)
    whole = (steps[:, 1] == batch) & (steps[:, 4] == 0)
    if not whole.any():
        raise UserError(f"no step at batch size {batch} was whole; raise GRID_TOKENS.")
    return float(lasted[whole].mean()), float(steps[whole, 2].sum() / (batch * whole.sum()))


# ---- running -------------------------------------------------------------------------------------------------------


def run_way(bench: Bench, way: Way, load: Picked) -> dict[str, Any]:
    """One run: makespan, time and acceptance of each replica."""
    where = place(way.placement, load.lengths, load.history, REPLICAS)
    loads = [
        [(bench.prompts[g], int(load.lengths[g, s])) for g, s in zip(*np.nonzero(where == r), strict=True)]
        for r in range(REPLICAS)
    ]
    done = bench.run(loads, way.tables)
    lengths = []
    for run in done:
        counts = DraftCounts(DEEPEST)
        if run.drafting:
            counts.add(run.drafting["steps"], run.drafting["drafts"])
        lengths.append(round(counts.acceptance_length, 3))
    return {
        "makespan_s": max(run.seconds for run in done),
        "replica_s": [run.seconds for run in done],
        "acceptance_length": lengths,
        "cpu_share": max(done, key=lambda run: run.seconds).cpu_s / max(run.seconds for run in done),
    }


def compare(bench: Bench, ways: Sequence[Way], load: Picked, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, those in the log not again."""
    log = options.out / "runs.jsonl"
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(run["study"], run["way"], run["placement"], run["repeat"]): run for run in known}
    study = f"{options.setup} {options.clock} {options.longest} {load.lengths.sum()}"
    runs = []
    for repeat in range(options.repeats):
        shift = repeat * len(ways) // options.repeats
        for way in [*ways[shift:], *ways[:shift]]:
            mark = {"study": study, "way": way.name, "placement": way.placement, "repeat": repeat}
            run = done.get(tuple(mark.values()))  # type: ignore[arg-type]
            if run is None:
                run = {**mark, **run_way(bench, way, load)}
                with log.open("a") as file:
                    file.write(json.dumps(run) + "\n")
            runs.append(run)
    return runs


def rows_of(ways: Sequence[Way], runs: Sequence[dict[str, Any]], base: str) -> list[dict[str, Any]]:
    """A row per way: median and extremes of the makespan, speed-up over ``base``, acceptance lengths by replica."""
    times = {way.name: [run["makespan_s"] for run in runs if run["way"] == way.name] for way in ways}
    rows = []
    for way in ways:
        mine = [run for run in runs if run["way"] == way.name]
        bulk, tail = np.median([run["acceptance_length"] for run in mine], axis=0)
        median = float(np.median(times[way.name]))
        rows.append(
            {
                "way": way.name,
                "placement": way.placement,
                "depths": "none" if way.tables is None else " | ".join(map(str, way.tables)),
                "median_s": median,
                "low_s": min(times[way.name]),
                "high_s": max(times[way.name]),
                "speedup": float(np.median(times[base])) / median,
                "acceptance_bulk": float(bulk),
                "acceptance_tail": float(tail),
                "runs": len(mine),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="default: outputs/speculation-<setup>")
    parser.add_argument("--setup", choices=list(SETUPS), default="counting")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--longest", type=int, default=320, help="tokens that a response may have")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU time, on a busy machine")
    parser.add_argument("--quick", action="store_true", help="short lengths, one repeat: does it work?")
    options = parser.parse_args()
    options.grid_repeats, options.batch_sizes = 2, BATCH_SIZES
    if options.quick:
        options.repeats, options.longest, options.grid_repeats, options.batch_sizes = 1, 64, 1, (1, 8, 32)
    options.out = options.out or ROOT / "outputs" / f"speculation-{options.setup}"
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    cache = ROOT / ".cache" / "models"
    cache.mkdir(parents=True, exist_ok=True)
    setup = SETUPS[options.setup](cache)
    trace = synthetic_trace(LENGTHS, prompts=60, samples=8, seed=1)
    scale = options.longest / 2048
    load = pick(trace.tokens, trace.prompt, groups=GROUPS, rollouts=ROLLOUTS, scale=scale, max_tokens=options.longest)
    with ExitStack() as stack:
        bench = Bench(setup, options, stack)
        bench.warm_up()
        say(f"ready after {time.monotonic() - began:.0f} s")
        grid, acceptance = grid_of(bench, options)
        write_csv(options.out / "grid.csv", grid)
        chooser = Chooser(grid, acceptance, load)
        say(f"grid after {time.monotonic() - began:.0f} s; live depth by running batch: {chooser.live}")
        ways = all_ways(chooser)
        runs = compare(bench, ways, load, options)
    report(options, grid, acceptance, chooser, ways, runs, time.monotonic() - began)


def grid_of(bench: Bench, options: argparse.Namespace) -> tuple[list[dict[str, Any]], Acceptance]:
    """The grid in the folder, or a new one."""
    path = options.out / "grid.json"
    mark = f"{options.setup} {options.clock} {options.grid_repeats} {options.batch_sizes}"
    if path.exists():
        found = json.loads(path.read_text())
        if found["mark"] == mark:
            return found["rows"], Acceptance(tuple(found["acceptance"]))
    rows, acceptance = measure_grid(bench, options)
    write_json(path, {"mark": mark, "rows": rows, "acceptance": acceptance.rates})
    return rows, acceptance


def report(
    options: argparse.Namespace,
    grid: list[dict[str, Any]],
    acceptance: Acceptance,
    chooser: Chooser,
    ways: list[Way],
    runs: list[dict[str, Any]],
    seconds: float,
) -> None:
    """Write and show everything."""
    budgets = [way for way in ways if way.name.startswith("budget")]
    main_ways = [way for way in ways if way not in budgets]
    comparison = rows_of(main_ways, runs, "verl default, no drafter")
    matched = []
    for d in BUDGETS:
        mine = [way for way in budgets if way.name.startswith(f"budget {d}:")]
        matched += rows_of(mine, runs, f"budget {d}: uniform {d}/{d}")
    write_csv(options.out / "comparison.csv", comparison)
    write_csv(options.out / "matched.csv", matched)
    spread = float(np.median([(row["high_s"] - row["low_s"]) / row["median_s"] for row in comparison + matched]))
    write_json(
        options.out / "summary.json",
        {
            "setup": options.setup,
            "clock": options.clock,
            "acceptance": acceptance.rates,
            "live": str(chooser.live),
            "speedup": {row["way"]: row["speedup"] for row in comparison},
            "spread_median": spread,
            "cpu_share_median": float(np.median([run["cpu_share"] for run in runs])),
            "seconds": seconds,
        },
    )
    plot(options.out / "comparison.png", grid, comparison, matched)
    print_table(comparison, "The same requests, against verl's default dispatch without a drafter")
    rates = ", ".join(f"{rate:.2f}" for rate in acceptance.rates)
    print_table(
        matched,
        "At the same budget of drafts, against uniform dispatch by group (Fig. 6a)",
        [
            f"Acceptance by position: {rates}. Spread of the repeats: median {spread:.1%}. {seconds:.0f} s.",
            f"Written to {options.out}.",
        ],
    )


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from there")
