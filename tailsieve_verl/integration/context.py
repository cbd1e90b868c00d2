"""How a request finds its pool: a context variable set around each agent loop, read by the client in the same task."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Session:
    """The prompt group (by the uid of this launch) and the response of it that the current task generates.

    ``ended`` is set with the first :class:`RolloutCut`: what the agent loop makes of it, nothing of the session counts.
    """

    uid: str
    response: int
    ended: bool = False


SESSION: ContextVar[Session | None] = ContextVar("tailsieve_session", default=None)
"""Set for training rollouts; ``None`` for validation, which is routed over all replicas."""


class RolloutCut(BaseException):
    """The session's group was cut, or its request was aborted: the session ends here, quietly.

    No ``Exception``, as ``asyncio.CancelledError`` is none: an agent loop that answers any error of a turn with what it
    has so far must not take this for one.
    """


ROUTED = "tailsieve_routed"
"""Column of a submitted batch that marks training prompts; popped before the agent loop sees its arguments."""
