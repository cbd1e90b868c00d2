"""Replicas that answer questions: each is kept fed, answers come back in whatever order they are finished."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.engine import READY_TIMEOUT_S, EngineSpec, Place, ReplicaProcess

WORKER = (sys.executable, "-m", "tailsieve_verl.evaluate.worker")
#: Questions a replica holds beyond what it decodes, so that it never waits for the next one.
AHEAD = 8
#: Between two looks at the replicas' outputs.
POLL_S = 0.02


@dataclass(frozen=True)
class Question:
    """A request: its name, prompt token ids, and vLLM's sampling parameters by name."""

    id: str
    ids: Sequence[int]
    sampling: dict[str, Any]


class AnsweringReplica(ReplicaProcess):
    """A replica of `worker.py`."""

    def ask(self, question: Question) -> None:
        self._send({"op": "ask", "id": question.id, "ids": list(question.ids), "sampling": question.sampling})

    def answers(self) -> Iterator[dict[str, Any]]:
        """What has come since the last call; does not wait.

        Raises:
            UserError: the worker has ended.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._lines.get_nowait()
                if line is None:
                    raise UserError(self._gone("to answer"))
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # a stray line of a library
                if isinstance(message, dict) and message.get("event") == "answer":
                    yield message


def answers(
    questions: Sequence[Question],
    spec: EngineSpec,
    places: Sequence[Place],
    *,
    stall_s: float,
    worker: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Ask all questions; answers as dicts with ``id``, ``text``, ``tokens`` and ``finish``, as they come.

    Args:
        spec, places: what the replicas run, and where.
        stall_s: seconds without any answer after which the evaluation ends with an error.
        worker: command of the child process, for tests.

    Raises:
        UserError: a replica that does not start, dies, or stalls. Answers given before are not lost to the caller.
    """
    waiting = deque(questions)
    replicas: list[AnsweringReplica] = []
    try:
        for rank, place in enumerate(places[: max(1, len(questions))]):
            replicas.append(AnsweringReplica(spec, place, rank, worker=worker or WORKER))
        for replica in replicas:
            replica.wait_ready(READY_TIMEOUT_S)
        under_way = [0] * len(replicas)
        last = time.monotonic()
        while waiting or any(under_way):
            for rank, replica in enumerate(replicas):
                while waiting and under_way[rank] < spec.max_num_seqs + AHEAD:
                    replica.ask(waiting.popleft())
                    under_way[rank] += 1
                for answer in replica.answers():
                    under_way[rank] -= 1
                    last = time.monotonic()
                    yield answer
            if time.monotonic() - last > stall_s:
                raise UserError(
                    f"no answer has come for {stall_s:.0f} s, with {sum(under_way)} under way; the answers so far are "
                    f"kept, run the same command again or raise --stall."
                )
            time.sleep(POLL_S)
    finally:
        for replica in replicas:
            replica.close()
