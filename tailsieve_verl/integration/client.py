"""The LLM client of the agent loops: adds group and session to the acquire call, and tokens to the release call.

Against verl's client it makes the same calls at the same times: one awaited acquire and one release that nobody waits
for. No prompt token is sent to the router.
"""

from __future__ import annotations

from typing import Any

from ray.exceptions import ActorDiedError
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from tailsieve_verl.integration.context import SESSION, RolloutCut, Session

# The engine is gone for good after this error; it is matched by name because vLLM is not imported here.
FATAL_ERRORS = ("EngineDeadError",)


class TailSieveLLMClient(LLMServerClient):
    """Client whose requests carry their prompt group (from :data:`SESSION`) to the router."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._handles: dict[str, Any] | None = None
        self._releases: dict[str, str] = {}

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        del extra  # the router needs neither the prompt nor the sampling parameters
        if self._handles is None:
            self._handles = await self._load_balancer.get_handles.remote()
        session = SESSION.get()
        if session is None:
            server_id = await self._load_balancer.acquire_server.remote(request_id)
        else:
            server_id = await self._load_balancer.acquire_server.remote(request_id, session.uid, session.response)
        if server_id is None:
            raise _cut(session, request_id)
        return server_id, self._handles[server_id]

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        # Called before generate() returns; the release itself is sent there, where the tokens are known.
        self._releases[str(request_id)] = server_id

    async def generate(self, request_id: str, **kwargs: Any) -> TokenOutput:  # type: ignore[override]
        """As verl's; raises :class:`RolloutCut` instead of returning an aborted training response."""
        output: TokenOutput | None = None
        error: str | None = None
        try:
            output = await super().generate(request_id, **kwargs)
        except Exception as exc:
            error = describe_fatal(exc)
            raise
        finally:
            self._send_release(request_id, output, error)
        session = SESSION.get()
        if output.stop_reason == "aborted" and session is not None:
            raise _cut(session, request_id)
        return output

    def _send_release(self, request_id: str, output: TokenOutput | None, error: str | None) -> None:
        server_id = self._releases.pop(request_id, None)
        if server_id is None:
            return
        tokens = len(output.token_ids) if output is not None else 0
        session = SESSION.get()
        if session is None:
            self._load_balancer.release_server.remote(server_id)
        else:
            self._load_balancer.release_server.remote(server_id, session.uid, session.response, tokens, error)


def _cut(session: Session | None, request_id: str) -> RolloutCut:
    if session is not None:
        session.ended = True
    return RolloutCut(request_id)


def describe_fatal(error: BaseException) -> str | None:
    """Name an error that means the replica is gone; ``None`` for errors of a single request or of the network."""
    cause = getattr(error, "cause", None)
    for candidate in (error, cause):
        if isinstance(candidate, ActorDiedError) or type(candidate).__name__ in FATAL_ERRORS:
            return f"{type(candidate).__name__}: {str(candidate).splitlines()[0] if str(candidate) else ''}"
    return None
