"""The child process that answers: one vLLM engine, driven by JSON lines (the protocol of `replay.worker`, other verbs).

    parent  {"op": "ask", "id": "gsm8k/3/0", "ids": [prompt token ids], "sampling": {SamplingParams' arguments}}
    worker  {"event": "answer", "id": ..., "text": ..., "tokens": 17, "finish": "stop"}
    parent  {"op": "exit"}

Questions may come at any time; answers come as they are finished. The parent bounds how many are under way.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from typing import Any

from tailsieve_verl.replay.worker import _facts, _read_input, _send, _start_engine


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what vLLM prints must not mix with the protocol
    options = json.loads(sys.argv[1])
    if options["cores"]:
        os.sched_setaffinity(0, set(options["cores"]))
    lines = _read_input()
    engine = _start_engine(options)
    _send(channel, {"event": "ready", "facts": _facts(engine)})
    while True:
        busy = engine.has_unfinished_requests()
        for message in _waiting(lines, wait=not busy):
            if message["op"] == "exit":
                os._exit(0)
            engine.add_request(message["id"], {"prompt_token_ids": message["ids"]}, _parameters(message["sampling"]))
        for output in engine.step():
            if output.finished:
                answer = output.outputs[0]
                finish = {"length": "length"}.get(str(answer.finish_reason), "stop")
                facts = {"text": answer.text, "tokens": len(answer.token_ids), "finish": finish}
                _send(channel, {"event": "answer", "id": output.request_id, **facts})


def _waiting(lines: queue.SimpleQueue[dict[str, Any]], *, wait: bool) -> list[dict[str, Any]]:
    """Everything that has come; at least one message if ``wait``."""
    found = [lines.get()] if wait else []
    while True:
        try:
            found.append(lines.get_nowait())
        except queue.Empty:
            return found


def _parameters(sampling: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**sampling, output_kind=RequestOutputKind.FINAL_ONLY)


if __name__ == "__main__":
    main()
