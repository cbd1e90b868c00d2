"""The choices of a run, built from its settings: policy, callbacks, placements; and what a policy continues from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tailsieve_verl.callbacks.build import build_callbacks, build_placement, build_selector
from tailsieve_verl.callbacks.runner import CallbackRunner, names_of
from tailsieve_verl.config.schema import TailSieveConfig, build_policy
from tailsieve_verl.config.targets import Target
from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.integration.guarded import GuardedPlacement, GuardedPolicy, GuardedSelector

logger = logging.getLogger(__name__)


def build_choices(
    settings: TailSieveConfig, n_groups: int, replicas: int
) -> tuple[GuardedPolicy, CallbackRunner, LengthForecast | None]:
    """The policy, the callbacks that may overrule it, and the forecast of a policy by prompt history."""
    callbacks = build_callbacks(settings)
    own = isinstance(settings.policy, Target)
    policy = build_policy(settings, n_groups, replicas)
    guarded = GuardedPolicy(
        policy, callbacks=names_of(callbacks), deadline_s=settings.callback_deadline_s if own else None
    )
    runner = CallbackRunner(
        callbacks, guarded, deadline_s=settings.callback_deadline_s, strict=settings.callbacks_strict
    )
    return guarded, runner, getattr(policy, "forecast", None)


def guarded_placements(settings: TailSieveConfig) -> dict[str, GuardedPlacement]:
    """The user's own placements by pool."""
    return {
        pool: GuardedPlacement(placement, pool, settings.callback_deadline_s)
        for pool in ("tail", "bulk")
        if (placement := build_placement(settings, pool)) is not None
    }


def guarded_selector(settings: TailSieveConfig) -> GuardedSelector:
    """The user's own order of cut groups, or ours."""
    return GuardedSelector(build_selector(settings), settings.callback_deadline_s)


def identity(settings: TailSieveConfig, replicas: int) -> dict[str, Any]:
    """What must be the same for a saved policy state to mean anything."""
    policy = settings.policy
    return {"name": policy.path if isinstance(policy, Target) else policy, "replicas": replicas}


def restore(
    policy: GuardedPolicy,
    saved: Mapping[str, Any],
    mine: Mapping[str, Any],
    *,
    steering: dict[str, Any] | None,
    by_history: bool,
) -> None:
    """Continue with a saved policy if it is the same one, else start it afresh; and with the callbacks' pins.

    Args:
        saved: the :func:`identity` and the ``state`` that a checkpoint has.
        mine: identity of this run's policy.
        steering: saved pins.
        by_history: whether this run has a forecast; without one the controller of a saved selector goes on.
    """
    theirs = {key: saved.get(key) for key in mine}
    same = theirs == mine
    if same:
        state = saved["state"]
        if mine["name"] == "controller" and not by_history:  # a state of one's own may have such a key as well
            state = state.get("controller", state)
        policy.load_state_dict(state)
    else:
        logger.warning(
            "tailsieve: the checkpoint was saved under %s, this run has %s; the policy starts afresh", theirs, mine
        )
    policy.load_steering_state(steering, same=same)
