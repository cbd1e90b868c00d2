"""Replicas for measurements: real vLLM engines, each in a process of its own, that start a load at one instant.

    with start_replicas(EngineSpec(model), places=cpu_places(2)) as replicas:
        done = run_together(replicas, [[(prompt, 100), ...], [(prompt, 30), ...]])

Life of a `ReplicaProcess`: started -> ready -> (loaded -> running -> ready)* -> closed. Its worker (`worker.py`) is
spoken to in JSON lines; a worker that dies or misses a deadline is a UserError which names what was waited for and
shows the end of the worker's log. Nothing waits without a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tailsieve_verl.errors import UserError

Request = tuple[Sequence[int], int]
"""Prompt token ids and the number of tokens to generate."""

Device = Literal["cpu", "gpu"]

#: vLLM imports, loads and warms up in 7 to 20 s here; a large model from a network disk takes minutes.
READY_TIMEOUT_S = 900.0
#: A run's own deadline if the caller has no prediction to derive one from.
RUN_TIMEOUT_S = 3600.0
#: From sending "go" to the common start: long enough that every worker has read it.
LEAD_S = 0.05
LOG_TAIL_LINES = 12

WORKER = (sys.executable, "-m", "tailsieve_verl.replay.worker")

CPU_ENVIRONMENT = {
    "TORCH_COMPILE_DISABLE": "1",  # saves 19 s at the first generation, and costs no speed where decoding is eager
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class EngineSpec:
    """What every replica of a measurement runs; sizes as in vLLM's engine arguments.

    Attributes:
        model: folder of the model.
        device: "cpu" or "gpu".
        max_model_len: prompt and response of a request, in tokens.
        max_num_seqs: requests that decode at once.
        gpu_memory_utilization: as in vLLM; without effect on the CPU.
        kv_gib: GiB of KV cache of a replica on the CPU.
        dtype, enforce_eager: as in vLLM; the CPU is always eager.
        extra: further engine arguments by name, which win.
        separate_core: the engine core in a process of its own, as in vLLM's server; ``None``: only on a GPU, where
            the server overlaps scheduling with the device. On the CPU both share a core and the noise doubles.
        clock: "wall", or "cpu" for the worker's CPU time: on a machine that others use, what the run would take on
            cores of its own. Only for a replica that is one process on one CPU core.
        temperature: of sampling.
    """

    model: Path
    device: Device = "cpu"
    max_model_len: int = 1024
    max_num_seqs: int = 64
    gpu_memory_utilization: float = 0.9
    kv_gib: int = 1
    dtype: str = "auto"
    enforce_eager: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    separate_core: bool | None = None
    clock: Literal["wall", "cpu"] = "wall"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.clock == "cpu" and (self.device != "cpu" or self.separate_core):
            raise UserError("the clock 'cpu' is for replicas on the CPU without an engine core of its own; use 'wall'.")

    def engine_args(self) -> dict[str, Any]:
        """Keyword arguments of vLLM's EngineArgs."""
        arguments: dict[str, Any] = {
            "model": str(self.model),
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "enforce_eager": self.enforce_eager or self.device == "cpu",
            "skip_tokenizer_init": True,  # token ids in, token ids out
            "seed": 0,
        }
        if self.device == "gpu":
            arguments["gpu_memory_utilization"] = self.gpu_memory_utilization
        return {**arguments, **self.extra}


@dataclass(frozen=True)
class Place:
    """Where a replica runs: CPU cores it is pinned to, and GPUs it sees."""

    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()


def cpu_places(replicas: int, cores: Sequence[int] | None = None) -> list[Place]:
    """The cores (those this process may use) dealt evenly: replica i gets its own.

    Raises:
        UserError: fewer cores than replicas.
    """
    free = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    if len(free) < replicas:
        raise UserError(f"{replicas} replicas need a core each, and there are {len(free)}; ask for fewer.")
    each = len(free) // replicas
    return [Place(cores=tuple(free[i * each : (i + 1) * each])) for i in range(replicas)]


def gpu_places(replicas: int, gpus_each: int = 1) -> list[Place]:
    """The first GPUs, or those of CUDA_VISIBLE_DEVICES, ``gpus_each`` (the tensor parallel size) a replica.

    Raises:
        UserError: CUDA_VISIBLE_DEVICES lists too few, or other things than numbers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        free = list(range(replicas * gpus_each)) if not visible else [int(gpu) for gpu in visible.split(",")]
    except ValueError:
        raise UserError(f"CUDA_VISIBLE_DEVICES={visible} must list GPU numbers, for example 0,1.") from None
    if len(free) < replicas * gpus_each:
        raise UserError(f"{replicas} replicas need {replicas * gpus_each} GPUs; CUDA_VISIBLE_DEVICES={visible}.")
    return [Place(gpus=tuple(free[i * gpus_each : (i + 1) * gpus_each])) for i in range(replicas)]


@dataclass(frozen=True)
class EngineRun:
    """What one replica did with its load of n requests; seconds since the common start.

    Attributes:
        first, finish: [n] seconds of each request's first and last token.
        steps: [S][5] for each engine step: its end in seconds, running requests that got a token, tokens they got,
            tokens of context these held before, requests that got their first token.
        preemptions: how often vLLM threw a request's cache away.
        cpu_s: CPU time of the worker.
        drafting: what the engine drafted, as ``draft_scheduler`` counts it; of an engine with that scheduler.
    """

    first: tuple[float, ...]
    finish: tuple[float, ...]
    steps: tuple[tuple[float, int, int, int, int], ...]
    preemptions: int = 0
    cpu_s: float = 0.0
    drafting: Mapping[str, Any] | None = None

    @property
    def seconds(self) -> float:
        """Until the last token; 0 without requests."""
        return max(self.finish, default=0.0)


class ReplicaProcess:
    """One engine in a child process (see the module)."""

    def __init__(self, spec: EngineSpec, place: Place, rank: int = 0, *, worker: Sequence[str] | None = None) -> None:
        self.rank, self._clock, self.facts = rank, spec.clock, dict[str, Any]()
        self._log = tempfile.NamedTemporaryFile(prefix=f"tailsieve-replica{rank}-", suffix=".log", delete=False)  # noqa: SIM115
        options: dict[str, Any] = {"device": spec.device, "cores": place.cores, "clock": spec.clock}
        options |= {"temperature": spec.temperature, "engine_args": spec.engine_args()}
        self._process = subprocess.Popen(
            [*(worker or WORKER), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(spec, place),
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the engine can be used; `facts` are then known."""
        self.facts = {**self._expect("ready", "to start vLLM", timeout_s)["facts"], "clock": self._clock}

    def load(self, requests: Sequence[Request], timeout_s: float = 60.0, depths: Sequence[int] | None = None) -> None:
        """Hand over the requests of the next run and empty the prefix cache; ``depths`` by running batch size."""
        message: dict[str, Any] = {"op": "load", "requests": [[list(ids), int(length)] for ids, length in requests]}
        self._send(message if depths is None else {**message, "depths": list(depths)})
        self._expect("armed", "to take its requests", timeout_s)

    def go(self, at: float) -> None:
        """Start the run at ``at`` seconds of ``time.monotonic``."""
        self._send({"op": "go", "at": at})

    def collect(self, timeout_s: float = RUN_TIMEOUT_S, since: float | None = None) -> EngineRun:
        """Wait for the end of the run, ``timeout_s`` seconds from ``since`` (``time.monotonic``; default now)."""
        message = self._expect("done", "to finish its requests", timeout_s, since)
        steps = tuple((float(s[0]), int(s[1]), int(s[2]), int(s[3]), int(s[4])) for s in message["steps"])
        first, finish = tuple(message["first"]), tuple(message["finish"])
        preemptions, cpu_s = int(message["preemptions"]), float(message.get("cpu_s", 0.0))
        return EngineRun(first, finish, steps, preemptions, cpu_s, message.get("drafting"))

    def close(self) -> None:
        """End the worker and what it started; the log of one that ended well is removed. May be called twice."""
        if self._process.poll() is None:
            with contextlib.suppress(UserError):
                self._send({"op": "exit"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its session: the worker, and vLLM's own children
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        if self._process.returncode == 0:
            Path(self._log.name).unlink(missing_ok=True)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise UserError(self._gone(f"to take {message['op']!r}")) from None

    def _expect(self, event: str, what: str, timeout_s: float, since: float | None = None) -> dict[str, Any]:
        deadline = (time.monotonic() if since is None else since) + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise UserError(
                    f"replica {self.rank} was given {timeout_s:g} s {what} and is not done; {self._tail()}"
                ) from None
            if line is None:
                raise UserError(self._gone(what))
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a stray line of a library
            if isinstance(message, dict) and message.get("event") == event:
                return message

    def _gone(self, what: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        return f"replica {self.rank}'s worker ended (status {code}) when it was {what}; {self._tail()}"

    def _tail(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
        # A traceback ends with its reason; what a dying process prints after it (leak reports) is left out.
        errors = [i for i, line in enumerate(lines) if "Error" in line]
        end = errors[-1] + 1 if errors else len(lines)
        tail = "\n".join(lines[max(0, end - LOG_TAIL_LINES) : end])
        return f"its log {self._log.name} ends with:\n{tail}" if tail else f"its log {self._log.name} is empty."


def _environment(spec: EngineSpec, place: Place) -> dict[str, str]:
    separate = spec.device == "gpu" if spec.separate_core is None else spec.separate_core
    forced = {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(separate)), "PYTHONUNBUFFERED": "1"}
    if spec.device == "gpu":
        forced["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
        return {**os.environ, **forced}
    forced["VLLM_CPU_KVCACHE_SPACE"] = str(spec.kv_gib)
    if place.cores:
        forced["OMP_NUM_THREADS"] = str(len(place.cores))
        forced["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, place.cores))
    return {**CPU_ENVIRONMENT, **os.environ, **forced}


@contextlib.contextmanager
def start_replicas(
    spec: EngineSpec,
    places: Sequence[Place],
    *,
    worker: Sequence[str] | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Iterator[list[ReplicaProcess]]:
    """Start a replica at each place, all at once, and end them when the block is left.

    Raises:
        UserError: a worker that does not become ready.
    """
    replicas: list[ReplicaProcess] = []
    try:
        for rank, place in enumerate(places):
            replicas.append(ReplicaProcess(spec, place, rank, worker=worker))
        for replica in replicas:
            replica.wait_ready(ready_timeout_s)
        yield replicas
    finally:
        for replica in replicas:
            replica.close()


def run_together(
    replicas: Sequence[ReplicaProcess],
    loads: Sequence[Sequence[Request]],
    timeout_s: float = RUN_TIMEOUT_S,
    depths: Sequence[Sequence[int]] | None = None,
) -> list[EngineRun]:
    """Every replica's load, submitted at one instant; a replica with an empty load does nothing.

    Args:
        depths: a draft depth table for each replica, by running batch size from 0; its engine must have our scheduler.

    Raises:
        UserError: a worker that dies, or is not done after ``timeout_s`` seconds.
        ValueError: another number of loads than replicas.
    """
    if len(loads) != len(replicas):
        raise ValueError(f"loads must be one for each of {len(replicas)} replicas, got {len(loads)}")
    busy = [(replica, load) for replica, load in zip(replicas, loads, strict=True) if len(load)]
    for replica, load in busy:
        replica.load(load, depths=None if depths is None else depths[replica.rank])
    at = time.monotonic() + LEAD_S
    for replica, _ in busy:
        replica.go(at)
    done = {replica.rank: replica.collect(timeout_s, since=at) for replica, _ in busy}
    return [done.get(replica.rank, EngineRun((), (), ())) for replica in replicas]
