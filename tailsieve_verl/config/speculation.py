"""The settings under ``trainer.v1.tailsieve.speculation``: what drafts, and how deep on each route.

    method   none | mtp | dflash | draft_model | eagle3 | ngram
    depth    per route: a number (the paper), a table by running batch size {1: 5, 8: 2}, or auto

Errors are one sentence each. Nothing here imports verl, ray or vllm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError
from tailsieve_verl.core.speculation import DEEPEST_ALLOWED, DepthTable

SPECULATION = f"{PREFIX}.speculation"
METHODS = ("none", "mtp", "dflash", "draft_model", "eagle3", "ngram")
NEEDS_MODEL = ("dflash", "draft_model", "eagle3")
CONTROLS = ("runtime", "launch")
ALARMS = ("warn", "off")
ROUTES = ("bulk", "tail")
#: Paper 4.2: MTP with 3 draft tokens, DFlash with block size 4, of which one is the token to start from.
DEFAULT_DEPTH = 3
#: Deepest drafts of `auto`: beyond five positions the chance that all are accepted is small at any usual acceptance.
AUTO_DEEPEST = 5
#: Keys of vLLM's speculative_config that have a setting of their own.
OVERRULED = {"method": "method", "model": "model", "num_speculative_tokens": "deepest"}
KEYS = ("method", "model", "depth", "control", "deepest", "on_alarm", "extra")


@dataclass(frozen=True)
class SpeculationConfig:
    """Speculative decoding of a run.

    Attributes:
        method: what drafts; ``none`` leaves the engines alone.
        model: path or name of the drafter, where the method has one.
        bulk, tail: depth by running batch size on each route; ``None`` is auto.
        control: ``runtime`` changes depths while engines run, ``launch`` fixes them by replica.
        deepest: depth that engines are launched with.
        on_alarm: ``warn``, or ``off`` to stop drafting on a route whose acceptance has collapsed.
        extra: further keys of vLLM's speculative_config.
    """

    method: str = "none"
    model: str | None = None
    bulk: DepthTable | None = field(default_factory=lambda: DepthTable.constant(DEFAULT_DEPTH))
    tail: DepthTable | None = field(default_factory=lambda: DepthTable.constant(DEFAULT_DEPTH))
    control: Literal["runtime", "launch"] = "runtime"
    deepest: int = DEFAULT_DEPTH
    on_alarm: Literal["warn", "off"] = "warn"
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def enabled(self) -> bool:
        return self.method != "none"

    @property
    def has_weights(self) -> bool:
        """Whether the drafter has weights that a sleeping engine must not lose."""
        return self.enabled and self.method != "ngram"

    def deep_band(self, m: int | None, replicas: int) -> int | None:
        """Replicas at the top ranks that are launched with the tail route's depth, and so the most that the tail pool
        may have; ``None`` where depths follow a replica's pool, or are the same on both routes.

        Args:
            m: replicas of the tail pool to start with; without one the band is half of the replicas.
            replicas: R.
        """
        if not self.enabled or self.control != "launch" or self.bulk == self.tail:
            return None
        return m or max(1, replicas // 2)


def parse_speculation(raw: Mapping[str, Any] | None) -> SpeculationConfig:
    """Check a plain mapping and fill in defaults.

    Raises:
        TailSieveConfigError: an unknown key, or a value that is wrong.
    """
    values = {key: value for key, value in dict(raw or {}).items() if value is not None}
    for key in values:
        if key not in KEYS:
            raise TailSieveConfigError(f"{SPECULATION}.{key} is not a setting; known keys are {', '.join(KEYS)}.")
    method = _one_of("method", values.get("method", "none"), METHODS)
    model = values.get("model")
    if method in NEEDS_MODEL and not model:
        raise TailSieveConfigError(f"{SPECULATION}.method={method} needs {SPECULATION}.model, the drafter's path.")
    if method not in NEEDS_MODEL and model:
        raise TailSieveConfigError(f"{SPECULATION}.model={model} is not used by method {method}; remove it.")
    depth = values.get("depth", DEFAULT_DEPTH)
    if not isinstance(depth, Mapping) or not set(map(str, depth)) <= set(ROUTES):
        depth = dict.fromkeys(ROUTES, depth)
    tables = {route: _table(route, depth.get(route, DEFAULT_DEPTH)) for route in ROUTES}
    known = [table.deepest for table in tables.values() if table is not None]
    least = max([*known, AUTO_DEEPEST if len(known) < len(ROUTES) else 1])
    deepest = values.get("deepest", least)
    if least > DEEPEST_ALLOWED:
        raise TailSieveConfigError(f"{SPECULATION}.depth={least} must be at most {DEEPEST_ALLOWED} draft tokens.")
    if isinstance(deepest, bool) or not isinstance(deepest, int) or not max([*known, 1]) <= deepest <= DEEPEST_ALLOWED:
        raise TailSieveConfigError(
            f"{SPECULATION}.deepest={deepest} must be a whole number of at least {max([*known, 1])}, the deepest "
            f"draft, and at most {DEEPEST_ALLOWED}."
        )
    control = _one_of("control", values.get("control", "runtime"), CONTROLS)
    if control == "launch" and any(table is None or len(table.entries) > 1 for table in tables.values()):
        raise TailSieveConfigError(
            f"{SPECULATION}.control=launch fixes one depth for each replica; give depth.bulk and depth.tail as numbers."
        )
    extra = values.get("extra", {})
    if not isinstance(extra, Mapping):
        raise TailSieveConfigError(f"{SPECULATION}.extra={extra} must be a mapping of vLLM's speculative_config keys.")
    if extra and method == "none":
        raise TailSieveConfigError(f"{SPECULATION}.extra={extra} is not used by method none; remove it.")
    for key in extra:
        if not isinstance(key, str):
            raise TailSieveConfigError(f"{SPECULATION}.extra has the key {key}; keys of speculative_config are words.")
        if key in OVERRULED:
            raise TailSieveConfigError(
                f"{SPECULATION}.extra.{key} would overrule {SPECULATION}.{OVERRULED[key]}; set that one."
            )
    return SpeculationConfig(
        method=method,
        model=str(model) if model else None,
        **tables,
        control=control,  # type: ignore[arg-type]
        deepest=deepest,
        on_alarm=_one_of("on_alarm", values.get("on_alarm", "warn"), ALARMS),  # type: ignore[arg-type]
        extra=dict(extra),
    )


def _one_of(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    text = {False: "off"}.get(value, value) if isinstance(value, bool) else value  # YAML reads a bare `off` as false
    if text not in allowed:
        raise TailSieveConfigError(f"{SPECULATION}.{key}={value} is unknown; choose one of {', '.join(allowed)}.")
    return text


def _table(route: str, value: Any) -> DepthTable | None:
    """A route's depths; ``None`` for auto."""
    if value == "auto":
        return None
    entries: Any = value
    if isinstance(value, int) and not isinstance(value, bool):
        entries = {1: value}
    try:
        if not isinstance(entries, Mapping) or not all(map(_is_count, (*entries, *entries.values()))):
            raise ValueError
        return DepthTable(tuple(sorted((int(b), int(d)) for b, d in entries.items())))
    except (TypeError, ValueError):
        raise TailSieveConfigError(
            f"{SPECULATION}.depth.{route}={value} must be a number of draft tokens, a table from batch size 1 on like "
            f"{{1: 5, 8: 2}}, or auto."
        ) from None


def _is_count(value: Any) -> bool:
    """A whole number, or one as text (a key of YAML in quotes); a fraction is not cut to one."""
    if isinstance(value, str):
        return value.isdecimal()
    return isinstance(value, int) and not isinstance(value, bool)
