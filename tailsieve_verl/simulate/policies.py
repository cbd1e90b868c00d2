"""The policies a simulation compares, by name: presets of a real run, and oracles that know all lengths.

uniform_group                    the paper's baseline, whole groups dealt over all replicas
verl_default                     verl's own: single requests dealt over all replicas
fixed:q=8,m=2                    a split that stays (defaults: N/8, R/2)
inner_loop:m=2                   the paper's inner loop alone (its "fixed replica allocation")
history, auto                    the presets `history` and `auto`: placement by prompt history
tailsieve, paper                 the presets `default` and `paper`; settings after the colon, as in the run
uniform_oracle, seer_oracle, streamrl_oracle:m=2    placements with realised lengths known (paper A.2)

Any of them drafts with the setting depth=3, or depth.bulk=3,depth.tail=5 (`simulate.drafting`); without it none does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from tailsieve_verl.config.schema import TailSieveConfigError, build_policy, parse
from tailsieve_verl.core.controller import Controller
from tailsieve_verl.core.placement import Placement, SeerOracle, StreamRLOracle, UniformOracle
from tailsieve_verl.core.policy import FixedPolicy, Policy, PolicyContext
from tailsieve_verl.core.selector import HistorySelector
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.drafting import PoolDepths, parse_depth

#: Preset of a run that a name stands for, with the settings that make it that policy.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform_group": ("uniform_group", {}),
    "verl_default": ("fixed", {"q": 0, "m": 0}),
    "fixed": ("fixed", {}),
    "inner_loop": ("default", {"policy": "inner_loop"}),
    "tailsieve": ("default", {}),
    "paper": ("paper", {}),
    "history": ("history", {}),
    "auto": ("auto", {}),
}
ORACLES: dict[str, Callable[..., Placement]] = {
    "uniform_oracle": UniformOracle,
    "seer_oracle": SeerOracle,
    "streamrl_oracle": StreamRLOracle,
}
NAMES = (*PRESETS, *ORACLES)
#: Settings of a real run that a simulation does not look at.
RUN_ONLY = (
    *("history_from", "tail_selector", "callbacks", "callbacks_strict", "callback_deadline_s"),
    *("max_retries", "stall_deadline_s", "sync_deadline_s", "health_interval_s"),
    *("record", "warm_up", "sampling", "speculation"),
)
#: Settings that are not the policy's but the engines': draft depth of both pools, or of one.
DEPTHS = ("depth", "depth.bulk", "depth.tail")


@dataclass(frozen=True)
class PolicySpec:
    """A policy by name and settings; builds a fresh one for each run."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The name with its settings, as it was written."""
        return self.name + (":" + ",".join(f"{k}={v}" for k, v in self.settings) if self.settings else "")

    @property
    def own(self) -> dict[str, Any]:
        """Settings of the policy itself."""
        return {key: value for key, value in self.settings if key not in DEPTHS}

    @property
    def depths(self) -> PoolDepths | None:
        """Draft depth of each pool; None if the policy says nothing of it.

        Raises:
            UserError: a depth that is none.
        """
        given = {key: parse_depth(value) for key, value in self.settings if key in DEPTHS}
        if not given:
            return None
        both = given.get("depth")
        return PoolDepths(given.get("depth.bulk", both), given.get("depth.tail", both))

    def build(self, n_groups: int, replicas: int) -> tuple[Policy, Placement | None, bool]:
        """The policy, a placement that overrules its pools, and whether it needs group records.

        Raises:
            UserError: a setting that is unknown or out of range.
        """
        if self.name in ORACLES:
            return _uniform(n_groups, replicas), _oracle(self, replicas), False
        preset, fixed = PRESETS[self.name]
        for key in self.own:
            if key in fixed or key in ("policy", "selector"):
                raise UserError(f"policy {self.label}: {key} is what {self.name} stands for; choose another policy.")
            if key in RUN_ONLY:
                raise UserError(f"policy {self.label}: {key} is of real runs, a simulation ignores it; leave it out.")
        try:
            config = parse({**_preset(preset), **fixed, **self.own})
            policy = build_policy(config, n_groups, replicas)
        except TailSieveConfigError as error:
            raise UserError(f"policy {self.label}: {error}") from None
        return policy, None, isinstance(policy, Controller | HistorySelector)


def parse_policy(text: str) -> PolicySpec:
    """Read ``name`` or ``name:key=value,key=value``.

    Raises:
        UserError: an unknown name, or settings that are not key=value.
    """
    name, _, rest = text.partition(":")
    if name not in NAMES:
        raise UserError(f"policy {name!r} is unknown; choose among {', '.join(NAMES)}.")
    settings = []
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"policy {text!r}: write settings as {name}:key=value,key=value.")
        settings.append((key.strip(), _value(value)))
    return PolicySpec(name, tuple(settings))


def parse_policies(texts: Sequence[str]) -> list[PolicySpec]:
    """Specs in order, each once."""
    return list(dict.fromkeys(parse_policy(text) for text in texts))


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


@cache
def _preset(name: str) -> dict[str, Any]:
    """Settings of a preset file, as a run gets them."""
    folder = files("tailsieve_verl") / "config" / "tailsieve"
    settings: dict[str, Any] = {}
    for part in ("base", name):
        loaded = OmegaConf.create((folder / f"{part}.yaml").read_text(encoding="utf-8"))
        found = OmegaConf.select(loaded, "trainer.v1.tailsieve")
        if found is not None:
            settings |= OmegaConf.to_container(found)  # type: ignore[arg-type,operator]
    return settings


def _uniform(n_groups: int, replicas: int) -> Policy:
    return FixedPolicy(PolicyContext(n_groups, replicas), 0, 0)


def _oracle(spec: PolicySpec, replicas: int) -> Placement:
    settings = spec.own
    if spec.name == "streamrl_oracle":
        settings.setdefault("m", max(1, replicas // 2))
    try:
        placement = ORACLES[spec.name](**settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"policy {spec.label}: {error}.") from None
    if settings.get("m", 1) >= replicas:
        raise UserError(f"policy {spec.label}: m must be below the {replicas} replicas.")
    return placement
