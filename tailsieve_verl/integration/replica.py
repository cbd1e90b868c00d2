"""Our vLLM replica: verl's, plus a count of unfinished requests, a health check, and room for per-replica settings.

verl creates it for the actor's rollout only (reward and teacher replicas stay verl's own), through the attribute
``LLMServerManager.rollout_replica_class`` that verl provides for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class TailSieveHttpServer(vLLMHttpServer):
    """vLLM server actor of a replica."""

    async def unfinished(self) -> int:
        """Requests the engine has not finished (0 on nodes that hold no engine)."""
        return len(self.engine.output_processor.request_states) if self.node_rank == 0 else 0

    async def check(self) -> dict[str, int]:
        """Raise if the engine is dead; else this process and its engine's weights version."""
        if self.node_rank == 0:
            await self.engine.check_health()
        return {"pid": os.getpid(), "version": -1 if self.global_steps is None else int(self.global_steps)}


class TailSieveReplica(vLLMReplica):
    """A replica whose engine settings may depend on its rank (``_preprocess_engine_kwargs`` of the server)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(TailSieveHttpServer)

    async def unfinished(self) -> int:
        """Requests unfinished on all of the replica's servers."""
        return sum(await asyncio.gather(*[server.unfinished.remote() for server in self.servers]))

    async def check(self) -> list[dict[str, int]]:
        """Raise the server's own error if one of them, or its engine, is dead."""
        return list(await asyncio.gather(*[server.check.remote() for server in self.servers]))


@contextmanager
def our_replicas() -> Iterator[None]:
    """Within this context, LLMServerManager builds :class:`TailSieveReplica`."""
    LLMServerManager.rollout_replica_class = TailSieveReplica
    try:
        yield
    finally:
        del LLMServerManager.rollout_replica_class
