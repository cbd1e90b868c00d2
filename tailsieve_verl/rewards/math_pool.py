"""Worker processes for mathematical answers: a deadline for each answer, and a new worker for one that misses it.

Why not the library's own time-outs, threads or a process pool: rewards are computed in threads, where signals cannot be
set; an integer power of a million digits is one C call that no signal ends; and the standard pool cannot kill a worker
that hangs, so a few such answers would leave it without any.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import tailsieve_verl

#: Seconds until a worker must have imported what it needs; several start at once on a busy machine.
START_S = 180.0
#: Seconds by the clock for one answer. Limits of CPU time end it much earlier; generous, so that a busy machine changes
#: no verdict.
ANSWER_S = 60.0


class WorkerGone(RuntimeError):
    """The worker died, or did not answer in time."""


class _Worker:
    def __init__(self) -> None:
        root = str(Path(tailsieve_verl.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailsieve_verl.rewards.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt at the terminal is for its caller
        )
        self._buffer = b""
        if self._line(START_S) != "ready":
            raise WorkerGone("a worker for mathematical answers did not start")

    def ask(self, gold: str, answer: str, deadline_s: float) -> str:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerGone("dead") from None
        return self._line(deadline_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a request that could not be written any more
                    pipe.close()

    def _line(self, deadline_s: float) -> str:
        """The next JSON line of the worker."""
        assert self._process.stdout is not None
        end = time.monotonic() + deadline_s
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self.kill()
                raise WorkerGone("late")
            data = os.read(descriptor, 1 << 16)
            if not data:
                self.kill()
                raise WorkerGone("dead")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return str(json.loads(line))


class MathPool:
    """Judges answers from any thread; workers are started when they are needed.

    Args:
        size: most workers at once; further callers wait for their turn, at most the deadlines of those ahead.
        answer_s: seconds for one answer.
    """

    def __init__(self, size: int, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._turns = threading.BoundedSemaphore(size)
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def judge(self, gold: str, answer: str) -> str:
        """A verdict of :func:`~tailsieve_verl.rewards.math_answers.judge`, or ``timeout``.

        Raises:
            WorkerGone: no worker can be started, so that no answer can be judged.
        """
        with self._turns:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                worker = _Worker()
            try:
                verdict = worker.ask(gold, answer, self._answer_s)
            except WorkerGone:
                worker.kill()
                return "timeout"
            except BaseException:
                worker.kill()
                raise
            self._idle.put(worker)
            return verdict

    def close(self) -> None:
        """End the idle workers."""
        while True:
            try:
                self._idle.get_nowait().kill()
            except queue.Empty:
                return
