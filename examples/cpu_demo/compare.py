"""The paper's end-to-end comparison, small and for real: policies side by side on two tasks, one run after the other.

Real GRPO by verl, Ray and two vLLM replicas with SmolLM2-135M: the counting task, whose answers have a long tail that
is the prompt's own, and short arithmetic, whose long answers are chance. The same model, data, seeds and prompt order
in every run. A run that is finished is kept, so that the same command goes on where it was stopped. Writes
docs/cpu-comparison.md with its picture, from the runs' own logs (tailsieve compare).

    python examples/cpu_demo/compare.py            # 12 steps of every policy on both tasks, more than an hour
    python examples/cpu_demo/compare.py --quick    # two runs of 3 steps with a tiny model, minutes, another page
    python examples/cpu_demo/compare.py --tasks counting --policies uniform tailsieve
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent))

from demo import CACHE, launch  # the script beside this one
from page import write_page

from tailsieve_verl.errors import UserError
from tailsieve_verl.workloads import arithmetic, counting
from tailsieve_verl.workloads.cpu_run import CpuRun
from tailsieve_verl.workloads.models import ensure_smollm2, ensure_tiny

TASKS: dict[str, tuple[ModuleType, int]] = {
    "counting": (counting, 160),
    "arithmetic": (arithmetic, 48),
}  # and response limit
_OURS = "trainer.v1.tailsieve"
_NGRAM = [f"{_OURS}.speculation.method=ngram", f"+{_OURS}.speculation.extra.prompt_lookup_max=3"]
POLICIES = {
    "uniform": ["+tailsieve=uniform_group"],
    "uniform_again": ["+tailsieve=uniform_group"],  # how far two runs of the same differ
    "verl": ["+tailsieve=fixed", f"{_OURS}.q=0", f"{_OURS}.m=0"],  # request by request, as verl deals a batch
    "fixed": ["+tailsieve=fixed", f"{_OURS}.policy=inner_loop", f"{_OURS}.q=1", f"{_OURS}.m=1"],
    "tailsieve": ["+tailsieve=default"],
    "plain_verl": [],  # without TailSieve at all
    "ngram_uniform": ["+tailsieve=uniform_group", *_NGRAM],
    "ngram": ["+tailsieve=default", *_NGRAM],
    "ngram_auto": ["+tailsieve=default", *_NGRAM, *(f"{_OURS}.speculation.depth.{at}=auto" for at in ("tail", "bulk"))],
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cpu-comparison.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="training steps a run (default: 12, quick 3)")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS))
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES))
    parser.add_argument("--frozen", action="store_true", help="learning rate 0: every policy serves the same model")
    parser.add_argument("--fresh", action="store_true", help="run again what is there already")
    parser.add_argument("--quick", action="store_true", help="check that everything works, with a tiny random model")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"the page to write (default: docs/{PAGE.name})")
    args = parser.parse_args()
    args.steps = args.steps or (3 if args.quick else 12)
    args.tasks = args.tasks or (["counting"] if args.quick else list(TASKS))
    args.policies = args.policies or (["uniform", "tailsieve"] if args.quick else list(POLICIES))
    if args.quick and args.page == PAGE:
        args.page = CACHE / "runs" / "quick" / PAGE.name
    command = " ".join(["python", "examples/cpu_demo/compare.py", *sys.argv[1:]])
    failed = []
    for task in args.tasks:
        for policy in args.policies:
            if not run_one(task, policy, args.steps, quick=args.quick, frozen=args.frozen, fresh=args.fresh):
                failed.append(f"{task} under {policy}")
    folders = {
        task: [(policy, folder(task, policy, args.quick, args.frozen)) for policy in args.policies]
        for task in args.tasks
    }
    model = "a tiny random model" if args.quick else "SmolLM2-135M"
    try:
        write_page(args.page, folders, steps=args.steps, command=command, model=model, frozen=args.frozen)
    except UserError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    print(f"compare: written to {args.page}")
    if failed:
        print(f"compare: failed, and compared as far as they went: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def folder(task: str, policy: str, quick: bool, frozen: bool) -> Path:
    group = "quick" if quick else "compare-frozen" if frozen else "compare"
    return CACHE / "runs" / group / task / policy


def run_one(task: str, policy: str, steps: int, *, quick: bool, frozen: bool, fresh: bool) -> bool:
    """One run, unless it is there already; whether it is there now."""
    out = folder(task, policy, quick, frozen)
    run = prepare(task, out, steps, quick)
    if frozen:
        run = replace(run, lr=0.0)
    module, _ = TASKS[task]
    overrides = [
        f"reward.custom_reward_function.path={module.__file__}",
        f"trainer.rollout_data_dir={out}/rollouts",
        # Wrong under speculation (docs/speculation.md): off in every run, so that all do the same work.
        "actor_rollout_ref.rollout.calculate_log_probs=False",
        *POLICIES[policy],
    ]
    asked = [*run.overrides(), *overrides]
    mark = out / "finished.json"
    if not fresh and mark.is_file() and json.loads(mark.read_text()) == asked:
        print(f"compare: {task} under {policy} is there already: {out}")
        return True
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    print(f"compare: {task} under {policy}", flush=True)
    if launch(run, *overrides):
        return False
    mark.write_text(json.dumps(asked))
    return True


def prepare(task: str, out: Path, steps: int, quick: bool) -> CpuRun:
    """Model and data in the cache."""
    models = CACHE / "models"
    models.mkdir(parents=True, exist_ok=True)
    model = ensure_tiny(models / "tiny") if quick else ensure_smollm2(models / "smollm2")
    module, limit = TASKS[task]
    data = CACHE / "data" / f"compare-{task}"
    module.write(data, train=128, val=8, seed=0)
    sizes = {"n_groups": 4, "n": 2, "max_response": 32} if quick else {"max_response": limit}
    return CpuRun(model=model, data=data, out=out, steps=steps, **sizes)


if __name__ == "__main__":
    sys.exit(main())
