"""Callbacks, placements and selectors from the configuration."""

from __future__ import annotations

from tailsieve_verl.callbacks.base import Callback
from tailsieve_verl.config.schema import TailSieveConfig
from tailsieve_verl.config.targets import Target, build_target
from tailsieve_verl.core.custom import PoolPlacement, TailSelector


def build_callbacks(config: TailSieveConfig) -> list[Callback]:
    """The callbacks of a configuration, in order.

    Raises:
        TailSieveConfigError: an unknown class, one that is no Callback, or arguments that it does not take.
    """
    return [build_target(f"callbacks[{i}]", target, Callback) for i, target in enumerate(config.callbacks)]


def build_placement(config: TailSieveConfig, pool: str) -> PoolPlacement | None:
    """The user's placement of the ``tail`` or ``bulk`` pool, ``None`` if it is one of ours; raises as above."""
    key = f"{pool}_placement"
    target = getattr(config, key)
    return build_target(key, target, PoolPlacement) if isinstance(target, Target) else None


def build_selector(config: TailSieveConfig) -> TailSelector | None:
    """The user's tail selector, ``None`` for ours; raises as above."""
    if config.tail_selector is None:
        return None
    selector: TailSelector = build_target("tail_selector", config.tail_selector, TailSelector)
    return selector
