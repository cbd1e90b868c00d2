"""How a request finds its pool: a context variable set around each agent loop, read by the client in the same task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Session(NamedTuple):
    """The prompt group (by the uid of this launch) and the response of it that the current task generates."""

    uid: str
    response: int


SESSION: ContextVar[Session | None] = ContextVar("tailsieve_session", default=None)
"""Set for training rollouts; ``None`` for validation, which is routed over all replicas."""


class RolloutCut(Exception):
    """The session's group was cut, or its request was aborted: the session ends here, quietly."""


ROUTED = "tailsieve_routed"
"""Column of a submitted batch that marks training prompts; popped before the agent loop sees its arguments."""
