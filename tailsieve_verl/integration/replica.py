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

from tailsieve_verl.integration.speculation import for_replica, runner_environment
from tailsieve_verl.integration.speculation_checks import installed_vllm

#: Requests that may be at a server at once, beside the calls that watch over it. Ray counts both, and verl allows for
#: its own even dispatch; a bulk pool gets more a replica, and a health check or an abort must not wait for them. The
#: number costs nothing: what vLLM runs at once is `max_num_seqs`.
MAX_CONCURRENCY = 100_000


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

    def _preprocess_engine_kwargs(self, engine_kwargs: dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        for name, value in runner_environment(engine_kwargs, installed_vllm()).items():
            os.environ.setdefault(name, value)
        for_replica(engine_kwargs, self.replica_rank)

    def _resolve_sleep_level(self) -> int:
        # Level 2 throws weights away: verl sends the target's again, and nobody sends a drafter's.
        return 1 if self._drafter_has_weights() else super()._resolve_sleep_level()

    def _drafter_has_weights(self) -> bool:
        settings = (self.config.get("engine_kwargs", {}) or {}).get("vllm", {}) or {}
        method = (settings.get("speculative_config") or {}).get("method")
        return method not in (None, "ngram", "suffix")

    async def set_draft_depths(self, depths: list[int]) -> list[int]:
        """Give the engine a depth table; returns the one it now uses."""
        return await self.engine.engine_core.call_utility_async("tailsieve_set_draft_depths", depths)

    async def draft_report(self) -> dict[str, Any]:
        """What the engine drafted since the last report (see ``draft_scheduler``)."""
        return await self.engine.engine_core.call_utility_async("tailsieve_draft_report")


class TailSieveReplica(vLLMReplica):
    """A replica whose engine settings may depend on its rank (``_preprocess_engine_kwargs`` of the server)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(TailSieveHttpServer)

    @property
    def max_concurrency(self) -> int:
        return max(MAX_CONCURRENCY, super().max_concurrency)

    async def unfinished(self) -> int:
        """Requests unfinished on all of the replica's servers."""
        return sum(await asyncio.gather(*[server.unfinished.remote() for server in self.servers]))

    async def check(self) -> list[dict[str, int]]:
        """Raise the server's own error if one of them, or its engine, is dead."""
        return list(await asyncio.gather(*[server.check.remote() for server in self.servers]))

    async def set_draft_depths(self, depths: list[int]) -> list[int]:
        """Give the replica's engine a depth table; returns the one it now uses."""
        return await self.servers[0].set_draft_depths.remote(depths)

    async def draft_report(self) -> dict[str, Any]:
        """What the replica's engine drafted since the last report."""
        return await self.servers[0].draft_report.remote()


@contextmanager
def our_replicas() -> Iterator[None]:
    """Within this context, LLMServerManager builds :class:`TailSieveReplica`."""
    LLMServerManager.rollout_replica_class = TailSieveReplica
    try:
        yield
    finally:
        del LLMServerManager.rollout_replica_class
