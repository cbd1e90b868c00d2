"""Three plain verl runs that differ in their tails only, and what `tailsieve advise` says of each.

    persistent   SmolLM2 explains things in one to three sentences; one prompt in 24 asks for a long story
    flat         the same with a response limit of 16 tokens, which every answer reaches
    chance       the same prompts for a model whose answers are long by chance alone (chance_model.py)

No run has a TailSieve preset, and none updates its policy. Each leaves its responses in `trainer.rollout_data_dir` and
its step times in verl's file logger; `advise` reads both. About eight minutes on two CPU cores.

    python examples/advise/run_three.py                  # all three
    python examples/advise/run_three.py --only chance    # one
    python examples/advise/run_three.py --no-runs        # advise again on dumps that are there
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from chance_model import ensure_chance  # the script beside this one

from tailsieve_verl.workloads import counting
from tailsieve_verl.workloads.cpu_run import CpuRun, environment
from tailsieve_verl.workloads.models import ensure_smollm2

CACHE = Path(__file__).resolve().parents[2] / ".cache"
#: The machine that the advice is asked for: the runs have two replicas and 24 groups a step.
MACHINE = ("--replicas", "8", "--groups", "64", "--curve", "dense")
TIME_LIMIT_S = 8 * 60
N, SAMPLES = 24, 4
#: Steps in an epoch: one step more asks again what was asked before.
PASSES = 7
#: Of 24 prompts, how many ask for what; SmolLM2 answers with about 30 tokens, and a story runs to any limit. Lists of
#: tips do not end now and then, by chance, so there are none.
KINDS = (
    (8, "Explain in one sentence what {} is."),
    (8, "Explain in two sentences what {} is."),
    (7, "Explain in three sentences what {} is."),
    (1, "Write a long story about {}."),
)
THINGS = (
    "a tree", "a river", "a school", "music", "a lamp", "snow", "a market", "bread", "a mountain", "a clock",
    "a bicycle", "rain", "a forest", "money", "a poem", "a harbour", "a garden", "a bridge", "a window", "a kitchen",
    "a library", "wind", "a farm", "a ship", "gold", "a hospital", "a planet", "a desert", "glass", "a museum",
    "a train", "honey", "a chair", "a door", "a horse", "milk", "a candle", "a hammer", "a cloud", "salt", "a village",
    "a road", "a camera", "a violin", "a spoon", "iron", "a castle", "a lake", "a pencil", "paper", "a star", "a wheel",
    "wool", "a fish", "a rose", "tea",
)  # fmt: skip
BEINGS = ("a dragon", "two sisters", "a lost dog", "a king", "an old sailor", "a wolf", "a small robot")


@dataclass(frozen=True)
class Case:
    """A run: its model, response limit, temperature and training steps."""

    name: str
    model: Path
    max_response: int
    temperature: float
    steps: int


def cases() -> dict[str, Case]:
    """The three runs; their models are made once."""
    models = CACHE / "models"
    models.mkdir(parents=True, exist_ok=True)
    found = [
        Case("persistent", ensure_smollm2(models / "smollm2"), 160, 0.1, PASSES + 1),
        Case("flat", ensure_smollm2(models / "smollm2"), 16, 0.1, 4),
        Case("chance", ensure_chance(models / "chance"), 512, 1.0, 4),
    ]
    return {case.name: case for case in found}


def write_data(folder: Path) -> None:
    """168 questions whose answers differ in length by what is asked, in verl's schema; no question twice."""
    import pandas as pd

    texts = []
    for count, text in KINDS:
        subjects = THINGS if "what" in text else BEINGS
        texts += [text.format(subject) for subject in subjects[: PASSES * count]]
    rows = counting.make_rows(len(texts), 0, "train")
    for row, text in zip(rows, texts, strict=True):
        row["prompt"] = [{"role": "user", "content": text}]
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")


def run(case: Case) -> int:
    """One plain verl run; everything it says goes to run.log. Returns the exit status."""
    out, data = CACHE / "runs" / f"advise-{case.name}", CACHE / "data" / "advise"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    write_data(data)
    verl = CpuRun(
        model=case.model, data=data, out=out, n_groups=N, n=SAMPLES, steps=case.steps, lr=0.0,
        max_response=case.max_response, temperature=case.temperature,
    )  # fmt: skip
    command = verl.command(
        f"hydra.run.dir={out}/hydra",
        f"trainer.rollout_data_dir={out}/rollouts",
        'trainer.logger=["console","file"]',
        # No update of the actor and no second look at its probabilities: the policy stays as it is, a step is short.
        "trainer.critic_warmup=1000",
        "algorithm.rollout_correction.bypass_mode=True",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
    )
    log = out / "run.log"
    print(f"{case.name}: verl runs, {case.steps} steps (its output: {log})", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env={**environment(), "VERL_FILE_LOGGER_PATH": f"{out}/metrics.jsonl"},
        )  # fmt: skip
        try:
            code = process.wait(timeout=TIME_LIMIT_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(process.pid, signal.SIGTERM)
            code = 124
    if code:
        print(f"{case.name}: the run failed with status {code}; see {log}", file=sys.stderr)
    return code


def advise(case: Case, *options: str) -> int:
    """Ask for MACHINE; further options overrule it."""
    out = CACHE / "runs" / f"advise-{case.name}"
    command = [
        sys.executable, "-m", "tailsieve_verl.cli.main", "advise", f"{out}/rollouts", "--model", str(case.model),
        "--max-tokens", str(case.max_response), *MACHINE, *options,
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=("persistent", "flat", "chance"), help="these runs only")
    parser.add_argument("--no-runs", action="store_true", help="only advise on the dumps that are there")
    parser.add_argument("options", nargs="*", help="further options of tailsieve advise, after --")
    args = parser.parse_args()
    known = cases()
    for name in args.only or known:
        start = time.monotonic()
        if not args.no_runs:
            if code := run(known[name]):
                return code
            print(f"{name}: verl was done after {time.monotonic() - start:.0f} s", flush=True)
        if code := advise(known[name], *args.options):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
