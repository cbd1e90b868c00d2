"""The child process that answers: one vLLM engine, driven by JSON lines (started as `replay.child` says).

    parent  {"op": "ask", "id": "gsm8k/3/0", "ids": [prompt token ids], "sampling": {SamplingParams' arguments}}
    worker  {"event": "answer", "id": ..., "text": ..., "tokens": 17, "finish": "stop"}
    parent  {"op": "exit"}

Questions may come at any time; answers come as they are finished. The parent bounds how many are under way.
"""

from __future__ import annotations

import os
import queue
from typing import Any

from tailsieve_verl.replay.child import start


def main() -> None:
    _, lines, engine, send = start()
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
                send({"event": "answer", "id": output.request_id, **facts})


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
