"""A policy that cannot lose a run: if it raises, the run goes on under uniform dispatch, with a warning.

Only the policy is guarded. The books (ledger, step tracker, batch check) are not: if they break, the data can no longer
be trusted, and the run must stop.
"""

from __future__ import annotations

import logging
from typing import Any

from tailsieve_verl.core.plan import Decision, StepObservation, StepPlan
from tailsieve_verl.core.policy import FixedPolicy, Policy, PolicyContext

logger = logging.getLogger(__name__)


class GuardedPolicy:
    """Passes everything to ``policy`` until it raises, then stays uniform for the rest of the process's life."""

    def __init__(self, policy: Policy) -> None:
        self.context: PolicyContext = policy.context
        self._policy: Policy = policy
        self.failure: str | None = None

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        try:
            return self._policy.plan(step=step, carried=carried, last=last, stream_left=stream_left)
        except Exception as error:
            self._give_up("plan", step, error)
            return self._policy.plan(step=step, carried=carried, last=last, stream_left=stream_left)

    def observe(self, observation: StepObservation) -> Decision:
        try:
            return self._policy.observe(observation)
        except Exception as error:
            self._give_up("judge", observation.plan.step, error)
            reason = f"the policy failed ({self.failure}): uniform from here on"
            return Decision(observation.plan.step, 0, 0, settled=False, switched=True, reason=reason)

    def state_dict(self) -> dict[str, Any]:
        """The policy's own state; ``failed`` alone once it has failed, so that a resume starts it afresh."""
        return self._policy.state_dict() if self.failure is None else {"failed": self.failure}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "failed" in state:
            logger.warning(
                "tailsieve: the policy had failed before the checkpoint (%s); it starts afresh", state["failed"]
            )
            return
        try:
            self._policy.load_state_dict(state)
        except Exception as error:
            self._give_up("restore its state for the step after", 0, error)

    def _give_up(self, what: str, step: int, error: Exception) -> None:
        if self.failure is not None:
            raise error  # uniform itself failed: that is a bug in the accounting
        self.failure = f"{type(error).__name__}: {error}"
        logger.warning(
            "tailsieve: the policy could not %s step %d (%s); the run goes on under uniform dispatch",
            what,
            step,
            self.failure,
            exc_info=error,
        )
        self._policy = FixedPolicy(self.context, 0, 0)
