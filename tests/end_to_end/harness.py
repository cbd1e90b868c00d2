"""Starts real runs of ``python -m verl.trainer.main_ppo`` on the CPU, bounded in time, and cleans up after them."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import pandas as pd

from tailsieve_verl.workloads import counting
from tailsieve_verl.workloads.cpu_run import CpuRun, environment
from tailsieve_verl.workloads.models import ensure_tiny

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".cache" / "models" / "tiny"
N, GROUP = 8, 4
# Two replicas have to import vLLM, load and warm up on two cores that may be busy.
RUN_TIMEOUT_S = 600


def write_data(folder, prompts=96, seed=5, tool_every=16, tool_s=4.0, chat_every=1000):
    """Prompts with lengths of their own: most short, every eighth long, every ``tool_every``-th with a slow tool.

    With ``chat_every``, every so many have a conversation of many turns instead.
    """
    rng = np.random.default_rng(seed)
    for split, rows in (
        ("train", counting.make_rows(prompts, seed, "train")),
        ("test", counting.make_rows(6, seed, "test")),
    ):
        for i, row in enumerate(rows):
            length = int(rng.integers(6, 20)) + (90 if i % 8 == 3 else 0)
            row["extra_info"] |= {"length": length, "tool_s": tool_s}
            row["agent_name"] = "length"
            if split == "train" and i % tool_every == 5 % tool_every:
                row["agent_name"] = "tool"
            elif split == "train" and i % chat_every == 9 % chat_every:
                row["agent_name"] = "chat"
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
    return folder


class Run:
    """A run in a process group of its own; every process it starts carries a mark in its environment."""

    def __init__(self, out: Path, data: Path, *extra: str, steps: int, n_groups: int = N):
        self.out, self.mark = out, uuid.uuid4().hex
        # Directly in the system's folder: the length of a socket's path is limited.
        self.ray = Path(tempfile.mkdtemp(prefix="tailsieve-"))
        ensure_tiny(MODEL)
        cpu = CpuRun(MODEL, data, out, n_groups=n_groups, n=GROUP, steps=steps, max_response=128, lr=1e-3)
        command = cpu.command(
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={Path(__file__).with_name('loops.yaml')}",
            f"reward.custom_reward_function.path={Path(__file__).with_name('reward.py')}",
            f"hydra.run.dir={out}/hydra",
            # Ray's forwarding of the workers' output to the driver breaks lines in two: their files are read instead.
            "+ray_kwargs.ray_init.log_to_driver=False",
            f"+ray_kwargs.ray_init._temp_dir={self.ray}",
            *extra,
        )
        self.log_path = out.with_suffix(".log")
        self.workers_log_path = out.with_suffix(".workers.log")
        out.parent.mkdir(parents=True, exist_ok=True)
        env = {**environment(), "TAILSIEVE_TEST_RUN": self.mark, "PYTHONPATH": str(ROOT)}
        self._file = self.log_path.open("a")
        self.process = subprocess.Popen(
            command, stdout=self._file, stderr=subprocess.STDOUT, env=env, cwd=ROOT, start_new_session=True
        )
        self.started = time.monotonic()

    @property
    def log(self) -> str:
        """What the run printed: its workers, a file each, and last its driver."""
        return self._workers_log() + self.log_path.read_text(errors="replace")

    def _workers_log(self) -> str:
        earlier = self.workers_log_path.read_text() if self.workers_log_path.exists() else ""
        files = sorted(self.ray.glob("session_2*/logs/worker-*"), key=lambda file: file.stat().st_mtime)
        return earlier + "".join(file.read_text(errors="replace") for file in files)

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> int:
        try:
            return self.process.wait(timeout=timeout_s)
        finally:
            self.kill()

    def wait_for(self, condition, what: str, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Wait until ``condition()`` holds while the run is alive."""
        while not condition():
            assert self.process.poll() is None, f"the run ended while waiting for {what}:\n{self.log[-3000:]}"
            assert time.monotonic() - self.started < timeout_s, f"no {what} within {timeout_s} s"
            time.sleep(0.1)

    def checkpoint(self) -> int:
        """Step of the latest complete checkpoint, 0 before the first."""
        path = self.out / "latest_checkpointed_iteration.txt"
        text = path.read_text().strip() if path.exists() else ""
        return int(text or 0)

    def processes(self) -> list[int]:
        """Pids of the run's processes, found by the mark."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._environment(int(entry.name)).get("TAILSIEVE_TEST_RUN") == self.mark:
                found.append(int(entry.name))
        return found

    def engine_of(self, replica: int) -> list[int]:
        """Pids of vLLM's engine core of a replica."""
        return [
            pid
            for pid in self.processes()
            if self._environment(pid).get("VERL_REPLICA_RANK") == str(replica)
            and "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        ]

    def kill(self) -> None:
        """End everything the run started, at once."""
        for _ in range(20):
            pids = self.processes()
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self.process.wait(timeout=30)
        self._file.close()
        self.workers_log_path.write_text(self._workers_log())
        shutil.rmtree(self.ray, ignore_errors=True)

    @staticmethod
    def _environment(pid: int) -> dict[str, str]:
        try:
            raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            return {}
        return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)
