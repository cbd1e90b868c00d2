"""The main job on a machine without a GPU: real GRPO with TailSieve, in about six minutes on two cores.

Stock verl (``python -m verl.trainer.main_ppo``), Ray, two vLLM replicas of one core each, SmolLM2-135M-Instruct with
its real weights, and the counting task. TailSieve is the one override ``+tailsieve=default``.

    python examples/cpu_demo/demo.py                                   # as above
    python examples/cpu_demo/demo.py --preset fixed trainer.v1.tailsieve.q=2   # another preset, further overrides
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

from tailsieve_verl.workloads import counting
from tailsieve_verl.workloads.cpu_run import CpuRun, environment
from tailsieve_verl.workloads.models import ensure_smollm2

CACHE = Path(__file__).resolve().parents[2] / ".cache"
# A run takes five to seven minutes on two cores. A worker that dies at start-up can leave verl waiting: end it then.
TIME_LIMIT_S = 14 * 60
HEARTBEAT_S = 20


def prepare(steps: int, name: str) -> CpuRun:
    """Model and data in the cache, and an empty folder for the run."""
    model = CACHE / "models" / "smollm2"
    if not model.exists():
        print("demo: converting SmolLM2-135M-Instruct from its GGUF file, once")
        model.parent.mkdir(parents=True, exist_ok=True)
    ensure_smollm2(model)
    data = CACHE / "data" / "counting"
    counting.write(data, train=64, val=8, seed=0)
    out = CACHE / "runs" / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return CpuRun(model=model, data=data, out=out, steps=steps)


def launch(run: CpuRun, *overrides: str) -> int:
    """Run verl, show TailSieve's lines, keep everything in ``run.log``; returns the exit status."""
    log = run.out / "run.log"
    command = run.command(f"hydra.run.dir={run.out}/hydra", *overrides)
    print(f"demo: {' '.join(command[:3])} ... {' '.join(overrides)}   (whole output: {log})", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment(), start_new_session=True,
        )  # fmt: skip
        shown = Thread(target=_show, args=(process, file), daemon=True)
        shown.start()
        try:
            code = process.wait(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"demo: ended after {TIME_LIMIT_S // 60} minutes without a result", flush=True)
            code = 124
        except KeyboardInterrupt:
            code = 130
        if code:
            _end(process)
        shown.join(timeout=10)
    if code:
        print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-30:]), file=sys.stderr)
        print(f"demo: the run failed with status {code}; the whole output is in {log}", file=sys.stderr)
    return code


def _show(process: subprocess.Popen[str], file) -> None:  # type: ignore[no-untyped-def]
    assert process.stdout is not None
    last, lines = time.monotonic(), 0
    print("demo: starting Ray, the trainer and two vLLM engines (about a minute)", flush=True)
    for line in process.stdout:
        file.write(line)
        file.flush()
        _, mark, text = line.partition("[tailsieve]")
        if mark:
            print(f"{mark}{text}", end="", flush=True)
            last, lines = time.monotonic(), lines + 1
        elif time.monotonic() - last > HEARTBEAT_S:
            print("demo: ... training" if lines else "demo: ... starting", flush=True)
            last = time.monotonic()


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=20)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="default", help="TailSieve preset (default: default)")
    parser.add_argument("--steps", type=int, default=8, help="training steps (default: 8)")
    parser.add_argument("overrides", nargs="*", help="further Hydra overrides")
    args = parser.parse_args()
    start = time.monotonic()
    run = prepare(args.steps, f"demo-{args.preset}")
    # The default starts uniform and splits once it predicts a gain, which two replicas rarely give: start with a split.
    split = ["trainer.v1.tailsieve.q=1"] if args.preset == "default" else []
    code = launch(run, f"+tailsieve={args.preset}", *split, *args.overrides)
    if code == 0:
        minutes = (time.monotonic() - start) / 60
        print(f"demo: done in {minutes:.1f} minutes; the run's record is {run.out}/tailsieve/steps.jsonl")
    return code


if __name__ == "__main__":
    sys.exit(main())
