"""The settings under ``trainer.v1.tailsieve``: fields, defaults, and the check of every value.

Errors are one sentence each: which key, what was wrong, what would be right. Nothing here imports verl, ray or torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError
from tailsieve_verl.config.sampling import SamplingConfig, parse_sampling
from tailsieve_verl.config.speculation import SpeculationConfig, parse_speculation
from tailsieve_verl.config.targets import Target, build_target, load_class, parse_target
from tailsieve_verl.config.used import check_used
from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.custom import PoolPlacement, SplitPolicy
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.core.plan import Granularity
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy, Policy, PolicyContext, check_split
from tailsieve_verl.core.selector import HistorySelector, SelectorConfig
from tailsieve_verl.curves import load_curve

__all__ = ["PREFIX", "TailSieveConfig", "TailSieveConfigError", "build_policy", "parse", "resolve_split"]

SELECTORS = ("cutoff", "history", "auto")
#: What :class:`~tailsieve_verl.core.selector.SelectorConfig` takes.
SCENARIOS_MAX = 1024
POLICIES = ("controller", "inner_loop", "fixed", "uniform_group")
PLACEMENTS = ("group", "request")
SWITCHES = ("reoptimise_q", "search_far", "predicted_test", "guard", "reenter", "record", "callbacks_strict")
#: What a policy of the user's own must have, if it is not derived from SplitPolicy.
POLICY_METHODS = ("plan", "observe", "state_dict", "load_state_dict")
CONTROLLER_SETTINGS = (
    *("reoptimise_q", "search_far", "predicted_test", "guard", "reenter"),
    *("inner_gain", "outer_gain", "enter_gain", "guard_excess", "switch_limit"),
)
#: A year. Python's own waits refuse some 292 years and infinity, and would do so only once the engines run.
LONGEST_S = 365 * 86_400
GAINS = ("inner_gain", "outer_gain", "enter_gain", "guard_excess")


@dataclass(frozen=True)
class TailSieveConfig:
    """Settings of a run.

    Attributes:
        policy: ``controller`` (q and m follow predicted makespans), ``inner_loop`` (q alone follows the pools'
            completion times), ``fixed`` or ``uniform_group``; or a class of one's own by ``_target_``.
        q: groups isolated in the tail pool (at the start, if the policy moves it).
        m: replicas of the tail pool. With q and m null a controller that can leave uniform routing starts there, until
            what it has seen predicts a gain; else null chooses max(1, N // 8) and max(1, R // 2).
        schedule: for ``fixed``: step -> [q, m] from that step on.
        curve: for ``controller``: file with a measured decode curve; null learns it from completions.
        reoptimise_q, search_far, predicted_test, guard, reenter, inner_gain, outer_gain, enter_gain, guard_excess,
            switch_limit: for ``controller``, see :class:`~tailsieve_verl.core.controller.ControllerConfig`.
        selector: who chooses what is kept apart: ``cutoff``, the prompts' ``history`` or ``auto``, see
            :mod:`~tailsieve_verl.core.selector`; the last two need ``policy=controller``.
        history_from: earlier run whose lengths the history begins with: its folder, a history file, or verl's dumps.
        history_q, history_scenarios, history_control_every: see :class:`~tailsieve_verl.core.selector.SelectorConfig`.
        tail_placement, bulk_placement: deal a pool's work by whole ``group`` or by ``request``; or a class.
        tail_selector: class by ``_target_`` that orders the carried groups; null: most unfinished responses first.
        max_retries: how often a failing prompt is generated again before it is dropped.
        stall_deadline_s: the run ends with an error if no response is finished for this long during a rollout.
        sync_deadline_s: the same for a weight sync, an abort, or putting the engines to sleep.
        health_interval_s: how often the replicas are asked whether they are alive while a rollout is awaited.
        record: write ``tailsieve/steps.jsonl`` beside the checkpoints.
        callbacks: classes by ``_target_``, in their order, see :mod:`tailsieve_verl.callbacks`.
        callbacks_strict: a callback that fails ends the run, where it would be switched off with a warning.
        callback_deadline_s: longest that one call of a callback, or of another class by ``_target_``, may take.
        warm_up: parquet file with a batch that is generated before the first step and trained on by nobody.
        sampling: presence penalty and stop strings, see :mod:`~tailsieve_verl.config.sampling`.
        speculation: speculative decoding by route, see :mod:`~tailsieve_verl.config.speculation`.
    """

    policy: str | Target = "controller"
    q: int | None = None
    m: int | None = None
    schedule: dict[int, tuple[int, int]] = field(default_factory=dict)
    curve: str | None = None
    reoptimise_q: bool = ControllerConfig.reoptimise_q
    search_far: bool = ControllerConfig.search_far
    predicted_test: bool = ControllerConfig.predicted_test
    guard: bool = ControllerConfig.guard
    reenter: bool = ControllerConfig.reenter
    inner_gain: float = ControllerConfig.inner_gain
    outer_gain: float = ControllerConfig.outer_gain
    enter_gain: float = ControllerConfig.enter_gain
    guard_excess: float = ControllerConfig.guard_excess
    switch_limit: int = ControllerConfig.switch_limit
    selector: str = "cutoff"
    history_from: str | None = None
    history_q: int = SelectorConfig.q
    history_scenarios: int = SelectorConfig.scenarios
    history_control_every: int = SelectorConfig.control_every
    tail_placement: str | Target = "request"
    bulk_placement: str | Target = "request"
    tail_selector: Target | None = None
    max_retries: int = 2
    stall_deadline_s: float = 14_400.0
    sync_deadline_s: float = 1800.0
    health_interval_s: float = 20.0
    record: bool = True
    callbacks: tuple[Target, ...] = ()
    callbacks_strict: bool = False
    callback_deadline_s: float = 10.0
    warm_up: str | None = None
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


def parse(raw: Mapping[str, Any] | None) -> TailSieveConfig:
    """Check types and names of a plain mapping and fill in defaults.

    Raises:
        TailSieveConfigError: for an unknown key or a value of the wrong kind.
    """
    if raw is not None and not isinstance(raw, Mapping):
        raise TailSieveConfigError(f"{PREFIX}={raw} must be a mapping of settings, for example {{q: 4, m: 1}}.")
    known = {f.name: f for f in fields(TailSieveConfig)}
    values: dict[str, Any] = {}
    for key, value in (raw or {}).items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys are {', '.join(known)}."
            raise TailSieveConfigError(f"{PREFIX}.{key} is not a TailSieve setting; {hint}")
        values[key] = _converted(key, value)
    _one_of("policy", values.get("policy", known["policy"].default), POLICIES)
    _one_of("selector", values.get("selector", known["selector"].default), SELECTORS)
    if values.get("selector", "cutoff") != "cutoff" and values.get("policy", "controller") != "controller":
        raise TailSieveConfigError(
            f"{PREFIX}.selector={values['selector']} needs {PREFIX}.policy=controller; change one of them."
        )
    check_used(values, {name: f.default for name, f in known.items()})
    for key in ("tail_placement", "bulk_placement"):
        _one_of(key, values.get(key, known[key].default), PLACEMENTS)
    return TailSieveConfig(**values)


def resolve_split(config: TailSieveConfig, n_groups: int, replicas: int) -> tuple[int, int]:
    """The starting (q, m) for a run of N groups on R replicas, checked.

    Raises:
        TailSieveConfigError: if q or m is out of range.
    """
    if config.policy == "uniform_group" or replicas == 1 or n_groups == 1:
        return 0, 0
    if isinstance(config.policy, Target) or (
        config.policy == "controller" and config.reenter and config.q is None and config.m is None
    ):
        return 0, 0
    q = max(1, n_groups // 8) if config.q is None else config.q
    m = max(1, replicas // 2) if config.m is None else config.m
    _checked_split(f"{PREFIX}.q and {PREFIX}.m", q, m, n_groups, replicas)
    return q, m


def build_policy(config: TailSieveConfig, n_groups: int, replicas: int) -> Policy:
    """The policy a configuration asks for. One replica, or one group a batch, leaves nothing to route: uniform."""
    q, m = resolve_split(config, n_groups, replicas)
    uniform_group = config.policy == "uniform_group"
    context = PolicyContext(
        n_groups=n_groups,
        replicas=replicas,
        tail_placement=_dealt("tail_placement", config.tail_placement),
        bulk_placement="group" if uniform_group else _dealt("bulk_placement", config.bulk_placement),
    )
    if isinstance(config.policy, Target):
        policy: Policy = build_target("policy", config.policy, SplitPolicy, context, methods=POLICY_METHODS)
        if not isinstance(getattr(policy, "context", None), PolicyContext):
            policy.context = context  # four methods are enough
        return policy
    if config.policy == "controller" and replicas > 1 and n_groups > 1:
        controller = Controller(
            ControllerConfig(
                q,
                m,
                most_m=config.speculation.deep_band(config.m, replicas),
                **{name: getattr(config, name) for name in CONTROLLER_SETTINGS},
            ),
            n_groups,
            replicas,
            tail_placement=context.tail_placement,
            bulk_placement=context.bulk_placement,
            curve=None if config.curve is None else _loaded(config.curve),
        )
        if config.selector == "cutoff":
            return controller
        if config.history_q > n_groups // 2:
            raise TailSieveConfigError(
                f"{PREFIX}.history_q={config.history_q} must be at most half of the {n_groups} groups of a batch."
            )
        return HistorySelector(
            controller,
            SelectorConfig(
                config.selector,  # type: ignore[arg-type]  # checked by parse
                config.history_q,
                config.history_scenarios,
                config.history_control_every,
            ),
        )
    if config.policy == "inner_loop" and q:
        return InnerLoopPolicy(context, q, m)
    schedule = dict(config.schedule) if replicas > 1 and n_groups > 1 else {}
    for step, split in schedule.items():
        _checked_split(f"{PREFIX}.schedule at step {step}", *split, n_groups, replicas)
    return FixedPolicy(context, q, m, schedule)


def _dealt(key: str, placement: str | Target) -> Granularity:
    """How predictions take a placement to deal its pool."""
    if isinstance(placement, Target):
        return _checked_like(key, load_class(key, placement, PoolPlacement).like)
    return _checked_like(key, placement)


def _checked_like(key: str, value: str) -> Granularity:
    _one_of(key, value, PLACEMENTS)
    return "group" if value == "group" else "request"


def _loaded(path: str) -> DecodeCurve:
    try:
        return load_curve(path)
    except (OSError, ValueError) as error:
        raise TailSieveConfigError(f"{PREFIX}.curve={path} cannot be used: {error}.") from None


def _checked_split(where: str, q: int, m: int, n_groups: int, replicas: int) -> None:
    try:
        check_split(q, m, n_groups, replicas)
    except ValueError as error:
        raise TailSieveConfigError(f"{where}: {error}.") from None


def _one_of(key: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed and not isinstance(value, Target):
        raise TailSieveConfigError(f"{PREFIX}.{key}={value} is unknown; choose one of {', '.join(allowed)}.")


def _converted(key: str, value: Any) -> Any:
    if key in ("q", "m"):
        return None if value is None else _whole(key, value, minimum=0)
    if key in ("max_retries", "history_q"):
        return _whole(key, value, minimum=0)
    if key == "switch_limit":
        return _whole(key, value, minimum=1)
    if key == "history_scenarios":
        if _whole(key, value, minimum=1) > SCENARIOS_MAX:
            raise TailSieveConfigError(f"{PREFIX}.{key}={value} must be at most {SCENARIOS_MAX}.")
        return value
    if key == "history_control_every":
        return _whole(key, value, minimum=2)
    if key in GAINS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise TailSieveConfigError(f"{PREFIX}.{key}={value} must be a share between 0 and 1, for example 0.03.")
        return float(value)
    if key == "warm_up":
        if value is not None and not (isinstance(value, str) and value.endswith(".parquet")):
            raise TailSieveConfigError(f"{PREFIX}.warm_up={value} must be the path of a .parquet file, or null.")
        return value
    if key == "curve":
        if value is not None and not isinstance(value, str):
            raise TailSieveConfigError(f"{PREFIX}.curve={value} must be the path of a .json or .csv file, or null.")
        return value
    if key == "history_from":
        if value is not None and not (isinstance(value, str) and value):
            raise TailSieveConfigError(f"{PREFIX}.history_from={value} must be a path, or null.")
        return value
    if key.endswith("_s"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_S:
            raise TailSieveConfigError(
                f"{PREFIX}.{key}={value} must be a positive number of seconds, at most {LONGEST_S:g}."
            )
        return float(value)
    if key in SWITCHES:
        if not isinstance(value, bool):
            raise TailSieveConfigError(f"{PREFIX}.{key}={value} must be true or false.")
        return value
    if key == "schedule":
        return _schedule(value)
    if key in ("policy", "tail_placement", "bulk_placement", "tail_selector") and isinstance(value, Mapping):
        return parse_target(key, value)
    if key == "tail_selector" and value is not None:
        return parse_target(key, value)
    if key == "callbacks":
        return _callbacks(value)
    if key == "speculation":
        if value is not None and not isinstance(value, Mapping):
            raise TailSieveConfigError(f"{PREFIX}.speculation={value} must be a mapping, for example {{method: mtp}}.")
        return parse_speculation(value)
    if key == "sampling":
        if value is not None and not isinstance(value, Mapping):
            raise TailSieveConfigError(f"{PREFIX}.sampling={value} must be a mapping, for example {{stop: ['<END>']}}.")
        return parse_sampling(value)
    return value


def _whole(key: str, value: Any, *, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise TailSieveConfigError(f"{PREFIX}.{key}={value} must be a whole number of at least {minimum}.")
    return value


def _callbacks(value: Any) -> tuple[Target, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TailSieveConfigError(
            f"{PREFIX}.callbacks={value} must be a list, for example [{{_target_: my_package.MyCallback, steps: 20}}]."
        )
    return tuple(parse_target(f"callbacks[{i}]", entry) for i, entry in enumerate(value))


def _schedule(value: Any) -> dict[int, tuple[int, int]]:
    schedule: dict[int, tuple[int, int]] = {}
    if value is not None and not isinstance(value, Mapping):
        raise TailSieveConfigError(
            f"{PREFIX}.schedule={value} must be a mapping of step: [q, m], for example {{5: [4, 1]}}."
        )
    for step, split in (value or {}).items():
        number = int(step) if isinstance(step, str) and step.isdecimal() else step
        entry = (number, *split) if isinstance(split, Sequence) and not isinstance(split, str) else ()
        # Not int(part): it would cut 4.7 to 4, and take "41" for [4, 1].
        if len(entry) != 3 or not all(isinstance(part, int) and not isinstance(part, bool) for part in entry):
            raise TailSieveConfigError(
                f"{PREFIX}.schedule has {step}: {split}; write each entry as step: [q, m], for example 5: [4, 1]."
            )
        if number < 1:
            raise TailSieveConfigError(f"{PREFIX}.schedule has step {number}; steps count from 1.")
        schedule[number] = (entry[1], entry[2])
    return schedule


assert all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(TailSieveConfig))
