"""How every child process with an engine starts: `replay.worker` and `evaluate.worker` differ in what they are asked.

Its one argument is the JSON of `EngineSpec` and `Place`. It takes JSON lines on standard input and answers with JSON
lines on standard output, the first of them ``{"event": "ready", "facts": {...}}``. Everything that the engine prints
goes to standard error. When the parent is gone (end of input), the process ends, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Child(NamedTuple):
    """What the process was given, the parent's messages, the engine, and how to send the parent one."""

    options: dict[str, Any]
    lines: queue.SimpleQueue[dict[str, Any]]
    engine: Any
    send: Callable[[dict[str, Any]], None]


def start() -> Child:
    """Take over the standard streams, start the engine on its cores, and say that it is ready."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what vLLM prints must not mix with the protocol
    options = json.loads(sys.argv[1])
    if options["cores"]:
        os.sched_setaffinity(0, set(options["cores"]))
    lines = _read_input()

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    engine = _start_engine(options)
    send({"event": "ready", "facts": _facts(engine)})
    return Child(options, lines, engine, send)


def _read_input() -> queue.SimpleQueue[dict[str, Any]]:
    lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(json.loads(line))
        os._exit(1)  # the parent is gone, also in the middle of a run

    threading.Thread(target=read, daemon=True).start()
    return lines


def _start_engine(options: dict[str, Any]) -> Any:
    if options["device"] == "cpu":
        from tailsieve_verl.integration import patches

        patches.alias_vllm_distribution()
        if options["engine_args"].get("speculative_config"):
            patches.keep_cpu_weights()
            patches.expand_float_values()
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(EngineArgs(**options["engine_args"]))


def _facts(engine: Any) -> dict[str, Any]:
    """What the parent wants to know of the engine."""
    import importlib.metadata

    import torch
    import vllm

    config = engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config
    blocks = cache.num_gpu_blocks or 0
    gpu = torch.cuda.is_available()
    versions = {"vllm": vllm.__version__, "torch": torch.__version__}
    versions["transformers"] = importlib.metadata.version("transformers")
    return {
        "block_size": cache.block_size,
        "kv_tokens": blocks * cache.block_size,
        "vocab_size": config.model_config.get_vocab_size(),
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "async_scheduling": bool(scheduler.async_scheduling),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "versions": versions,
        "device": torch.cuda.get_device_name(0) if gpu else "cpu",
    }
