"""The child process of a `ReplicaProcess`: one vLLM engine, which runs loads and says when what happened.

It starts and speaks as `replay.child` says; times are seconds of ``time.monotonic``, which processes share:

    worker  {"event": "ready", "facts": {...}}
    parent  {"op": "load", "requests": [[prompt_token_ids, length], ...], "depths": [3, 3, 1, ...]}
    worker  {"event": "armed"}
    parent  {"op": "go", "at": 123.4}
    worker  {"event": "done", "first": [...], "finish": [...], "steps": [[end, running, tokens, context, firsts], ...],
             "preemptions": 0, "cpu_s": 12.3, "drafting": {...}}
    parent  {"op": "exit"}

The engine is vLLM's ``LLMEngine``: all requests are added at the start, then ``step()`` until none is left. Every
request has ``ignore_eos`` and ``max_tokens`` of its length, so that it generates exactly that many; ``min_tokens`` is
not set, since it would put a logits processor into every step that a rollout has not. By default the engine core runs
in this process, so that a step's end is known to the microsecond; ``separate_core`` gives it a process of its own, as
vLLM's server has it, which costs (measured on the CPU) 0.8 to 1.5 ms a step for a tiny model and 2 to 5 % for
SmolLM2-135M. vLLM's statistics stay on (0.06 ms a step there), because they alone tell preemptions.

``depths``, a table of draft depths by running batch size, may be given to engines with our scheduler alone
(``draft_scheduler``); ``drafting`` is then what it counted in the run.

``cpu_s`` is the CPU time of this process in the run. With the clock "cpu" all times are of that kind: what the run
would take on cores of its own, on a machine that others use at the same time.
"""

from __future__ import annotations

import os
import time
from typing import Any

from tailsieve_verl.replay.child import start


def main() -> None:
    options, lines, engine, send = start()
    requests: list[Any] = []
    drafting = False
    while True:
        message = lines.get()
        if message["op"] == "load":
            requests = [(ids, length) for ids, length in message["requests"]]
            engine.reset_prefix_cache()
            drafting = "depths" in message
            if drafting:
                _core(engine, "tailsieve_set_draft_depths", message["depths"])
                _core(engine, "tailsieve_draft_report")  # what was counted before is not of this run
            send({"event": "armed"})
        elif message["op"] == "go":
            done = run(engine, requests, message["at"], options["clock"], options.get("temperature", 1.0))
            if drafting:
                done["drafting"] = _core(engine, "tailsieve_draft_report")
            send({"event": "done", **done})
        else:
            break
    os._exit(0)  # nothing to save; vLLM's own shutdown takes seconds and prints warnings


def _core(engine: Any, name: str, *args: Any) -> Any:
    """A method of the engine core, in this process or in its own."""
    client = engine.engine_core
    core = getattr(client, "engine_core", None)
    return client.call_utility(name, *args) if core is None else getattr(core, name)(*args)


def run(
    engine: Any, requests: list[tuple[list[int], int]], at: float, clock: str = "wall", temperature: float = 1.0
) -> dict[str, Any]:
    """Wait for the start, add all requests, step until all are done; times in seconds since ``at``."""
    now = time.monotonic if clock == "wall" else time.process_time
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = [
        SamplingParams(
            temperature=temperature,
            max_tokens=length,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        for _, length in requests
    ]
    before = _preemptions(engine)
    made = [0] * len(requests)
    first: list[float] = [0.0] * len(requests)
    finish: list[float] = [0.0] * len(requests)
    steps: list[tuple[float, int, int, int, int]] = []
    time.sleep(max(0.0, at - time.monotonic()))
    cpu = time.process_time()
    begin = at if clock == "wall" else cpu
    for i, (ids, _) in enumerate(requests):
        engine.add_request(str(i), {"prompt_token_ids": ids}, params[i])
    while engine.has_unfinished_requests():
        outputs = engine.step()
        end = now() - begin
        running = tokens = context = firsts = 0
        for output in outputs:
            i = int(output.request_id)
            new = len(output.outputs[0].token_ids)
            if new:
                running += 1
                tokens += new
                context += len(requests[i][0]) + made[i]
                if made[i] == 0:
                    first[i] = end
                    firsts += 1
                made[i] += new
            if output.finished:
                finish[i] = end
        steps.append((round(end, 6), running, tokens, context, firsts))
    for i, (_, length) in enumerate(requests):
        if made[i] != length:
            raise RuntimeError(f"request {i} generated {made[i]} tokens instead of {length}")
    cpu = time.process_time() - cpu
    preemptions = _preemptions(engine) - before
    return {"first": first, "finish": finish, "steps": steps, "preemptions": preemptions, "cpu_s": cpu}


def _preemptions(engine: Any) -> int:
    return int(sum(m.value for m in engine.get_metrics() if m.name == "vllm:num_preemptions"))


if __name__ == "__main__":
    main()
