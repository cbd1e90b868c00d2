"""Speculative decoding of the replicas: launch settings, and the depth table that each replica's pool asks for.

    trainer set-up     launch_settings -> rollout.engine_kwargs.vllm of every replica
    server start       runner_environment: the model runner that follows depths, where vLLM would choose another
    before a step      DepthControl.apply(plan): replicas whose table differs from their pool's get it, and say so
    after a rollout    DepthControl.read(plan): what the engines drafted, asked for before they are put to sleep
    after a step       DepthControl.collect(plan): the same by pool -> metrics, alarms, next tables

Invariants
    * A step starts only after every replica has confirmed the table of its pool; another answer is an error.
    * What is reported was counted by the engines, never taken from the configuration.
    * A planner that fails leaves the tables as they are, with a warning.
    * An alarm is raised once for a fall; with ``on_alarm=off`` the route stops drafting and stays so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packaging.version import Version

from tailsieve_verl.config.speculation import ROUTES, SPECULATION, SpeculationConfig
from tailsieve_verl.core.draft_planner import DraftPlanner
from tailsieve_verl.core.drafting import AcceptanceWatch, DraftCounts, WeightsWatch
from tailsieve_verl.core.plan import StepPlan
from tailsieve_verl.core.speculation import DepthTable
from tailsieve_verl.integration.speculation_checks import RUNNER, V2_HONOURS_DEPTH

logger = logging.getLogger(__name__)

SCHEDULER = "tailsieve_verl.integration.draft_scheduler.make_scheduler"
#: Key in engine_kwargs with the launch depth of each replica; our server takes it out again before vLLM sees it.
DEPTHS_KEY = "tailsieve_launch_depths"


class SpeculationError(RuntimeError):
    """An engine does not do what it was told."""


def seats(rollout: Mapping[str, Any]) -> int:
    """Largest running batch of an engine: verl lets ``engine_kwargs.vllm`` overrule ``max_num_seqs``."""
    own = ((rollout.get("engine_kwargs") or {}).get("vllm") or {}).get("max_num_seqs")
    return int(rollout["max_num_seqs"] if own is None else own)


class DraftPort(Protocol):
    """The engines' side, called synchronously; one entry for each replica asked."""

    def set_draft_depths(self, tables: Mapping[int, list[int]]) -> dict[int, list[int]]: ...
    def draft_reports(self, replicas: Sequence[int]) -> dict[int, dict[str, Any]]: ...


def launch_settings(config: SpeculationConfig, replicas: int, m: int) -> dict[str, Any]:
    """What to add to ``rollout.engine_kwargs.vllm``.

    Args:
        m: replicas of the deep band under ``control=launch``: the top ranks, where the tail pool is.
    """
    if not config.enabled:
        return {}
    spec: dict[str, Any] = {"method": config.method, "num_speculative_tokens": config.deepest, **config.extra}
    if config.model:
        spec["model"] = config.model
    settings: dict[str, Any] = {"speculative_config": spec}
    if config.control == "runtime":
        settings["scheduler_cls"] = SCHEDULER
    else:
        assert config.bulk is not None
        assert config.tail is not None
        settings[DEPTHS_KEY] = [config.bulk(1)] * (replicas - m) + [config.tail(1)] * m
    if config.has_weights:
        settings["load_format"] = "auto"  # verl's default, dummy, would leave the drafter with random weights
    return settings


def for_replica(engine_kwargs: dict[str, Any], rank: int) -> None:
    """Put in one replica's launch depth; depth 0 launches it without a drafter."""
    depths = engine_kwargs.pop(DEPTHS_KEY, None)
    if depths is None:
        return
    spec = dict(engine_kwargs["speculative_config"])
    spec["num_speculative_tokens"] = int(depths[rank])
    if spec["num_speculative_tokens"]:
        engine_kwargs["speculative_config"] = spec
    else:
        del engine_kwargs["speculative_config"]


def runner_environment(engine_kwargs: Mapping[str, Any], vllm: Version) -> dict[str, str]:
    """Variables to set where the user has not, before an engine is configured with our settings.

    vLLM takes its model runner V2 by itself for many models (0.28: every dense one without linear attention), but on a
    GPU only. Below 0.32 it ignores depths set at run time, and verl sends an MTP head's weights to runner V1's alone.
    """
    spec, runtime = engine_kwargs.get("speculative_config") or {}, engine_kwargs.get("scheduler_cls") == SCHEDULER
    if not runtime and DEPTHS_KEY not in engine_kwargs:  # speculation is not ours
        return {}
    return {RUNNER: "0"} if spec.get("method") == "mtp" or (runtime and vllm < V2_HONOURS_DEPTH) else {}


def check_runner(vllm_config: Any, vllm: Version) -> None:
    """Whether an engine's model runner follows depths set at run time, from what vLLM has made of its settings.

    Raises:
        SpeculationError: it does not, or the drafter cannot do without the one that does not.
    """
    if vllm >= V2_HONOURS_DEPTH:
        return
    names = ("_is_dflash2_draft", "_dflash_needs_multi_kv_group")  # of 0.28; a vLLM without them has no such drafter
    if getattr(vllm_config, "use_v2_model_runner", False) or any(getattr(vllm_config, n, bool)() for n in names):
        raise SpeculationError(
            f"this model or drafter runs on vLLM's model runner V2, which ignores draft depths set at run time before "
            f"vLLM {V2_HONOURS_DEPTH} ({vllm} is installed); set {SPECULATION}.control=launch, or upgrade vLLM."
        )


@dataclass
class DepthControl:
    """Keeps every replica at its pool's table (module docstring).

    Args:
        max_num_seqs: largest running batch of an engine.
        deep_band: replicas at the top ranks launched with the tail route's depth (`SpeculationConfig.deep_band`).
    """

    config: SpeculationConfig
    port: DraftPort
    max_num_seqs: int
    deep_band: int | None = None
    tables: dict[str, DepthTable] = field(default_factory=dict)
    watches: dict[str, AcceptanceWatch] = field(default_factory=lambda: {r: AcceptanceWatch() for r in ROUTES})
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)  # of the last step, by replica
    _in_force: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        full = DepthTable.constant(self.config.deepest)
        self.tables = {route: getattr(self.config, route) or full for route in ROUTES}
        self._moving = [route for route in ROUTES if getattr(self.config, route) is None]
        self._planner = DraftPlanner(self.config.deepest, self.max_num_seqs) if self._moving else None
        self._weights = WeightsWatch(frozen=self.config.model is not None)

    def apply(self, plan: StepPlan) -> None:
        """Give each replica its pool's table.

        Raises:
            SpeculationError: an engine reports another table than it was given.
        """
        if self.config.control != "runtime":
            return
        wanted = {}
        for route, ranks in (("tail", plan.tail_replicas), ("bulk", plan.bulk_replicas)):
            wanted.update({rank: self.tables[route].as_list(self.max_num_seqs) for rank in ranks})
        changed = {rank: table for rank, table in wanted.items() if self._in_force.get(rank) != table}
        if not changed:
            return
        for rank, table in self.port.set_draft_depths(changed).items():
            if list(table) != changed[rank]:
                raise SpeculationError(
                    f"rollout replica {rank} drafts by {list(table)[:8]}... after it was told {changed[rank][:8]}..."
                )
        self._in_force.update(changed)

    def in_force(self, plan: StepPlan) -> tuple[str, ...]:
        """Name of the table that each replica follows in a step, [R]: what the controller tells their curves by."""
        deep = plan.m if self.deep_band is None else self.deep_band
        return (str(self.tables["bulk"]),) * (plan.replicas - deep) + (str(self.tables["tail"]),) * deep

    def read(self, plan: StepPlan) -> None:
        """Ask the engines what they drafted; while they are awake, as a sleeping one has no weights to look at."""
        if self.config.control == "runtime":
            self.reports = self.port.draft_reports([*plan.tail_replicas, *plan.bulk_replicas])

    def collect(self, plan: StepPlan) -> dict[str, float]:
        """Metrics of the step that was read; raises alarms and moves tables that are ``auto``."""
        pools = {"tail": list(plan.tail_replicas), "bulk": list(plan.bulk_replicas)}
        metrics: dict[str, float] = {}
        if self.config.control != "runtime":
            return metrics
        if alarm := self._weights.see({rank: report.get("drafter", []) for rank, report in self.reports.items()}):
            logger.warning("tailsieve: speculation: %s; output stays right, but drafts may be of no use.", alarm)
        total = DraftCounts(self.config.deepest)
        for route, ranks in pools.items():
            counts = DraftCounts(self.config.deepest)
            for rank in ranks:
                report = self.reports[rank]
                for sums in (counts, total):
                    sums.add(report["steps"], report["drafts"], report["times"], report["chances"])
            if not counts.steps:
                continue
            metrics[f"spec_depth/{route}"] = counts.mean_depth
            if counts.drafted:
                metrics[f"spec_accept_length/{route}"] = counts.acceptance_length
                metrics[f"spec_accept_rate/{route}"] = counts.acceptance_rate
                self._watch(route, counts)
        if self._planner is not None and total.steps:
            try:
                table = self._planner.observe(total)
            except Exception as error:  # output does not depend on the table: the run goes on with the present ones
                logger.warning("tailsieve: depth=auto keeps its present tables from here on: %s", error, exc_info=error)
                self._planner, self._moving = None, []
                return metrics
            for route in self._moving:
                self.tables[route] = table
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Plain data; tables that do not move come from the configuration."""
        return {"planner": None if self._planner is None else self._planner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._planner is not None and state.get("planner"):
            self._planner.load_state_dict(state["planner"])
            for route in self._moving:
                self.tables[route] = self._planner.table

    def _watch(self, route: str, counts: DraftCounts) -> None:
        alarm = self.watches[route].see(counts)
        if not alarm:
            return
        off = self.config.on_alarm == "off"
        what = "drafting is switched off there" if off else "it is left on (speculation.on_alarm=warn)"
        logger.warning("tailsieve: speculation on the %s route: %s; %s.", route, alarm, what)
        if off:
            self.tables[route] = DepthTable.constant(0)
            self._moving = [other for other in self._moving if other != route]
