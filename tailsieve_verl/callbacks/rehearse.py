"""A run without verl, Ray and GPUs: the hooks of callbacks over simulated steps, to see what they do before it matters.

Real are the policy, the ledger, the step tracker, the requests and the runner of the hooks; engines and lengths are the
simulator's (paper-like lengths by default). There is no reward, and ``on_save`` and ``on_load`` are not called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailsieve_verl.callbacks.base import Callback, RunInfo
from tailsieve_verl.callbacks.runner import CallbackRunner, names_of
from tailsieve_verl.config.schema import build_policy, parse
from tailsieve_verl.core.ledger import Launch
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.core.metrics import step_metrics
from tailsieve_verl.core.plan import Decision, StepObservation, StepPlan
from tailsieve_verl.integration.guarded import GuardedPolicy
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload, Workload
from tailsieve_verl.traces.synthetic import LengthModel


def rehearse(
    callbacks: Sequence[Callback],
    *,
    steps: int = 20,
    n_groups: int = 64,
    replicas: int = 4,
    settings: Mapping[str, Any] | None = None,
    workload: Workload | None = None,
    noise: float = 0.02,
    folder: str = ".",
    deadline_s: float = 10.0,
    strict: bool = False,
) -> list[Decision]:
    """Run simulated steps under a policy and callbacks; returns the decisions that were carried out.

    Args:
        n_groups, replicas: N and R.
        settings: keys under ``trainer.v1.tailsieve``; the default policy without any.
        workload: prompts and their lengths.
        noise: standard deviation of the log of a step's speed.
        folder, deadline_s, strict: of the run, see :class:`~tailsieve_verl.callbacks.runner.CallbackRunner`.
    """
    policy = GuardedPolicy(build_policy(parse(settings), n_groups, replicas), callbacks=names_of(callbacks))
    runner = CallbackRunner(callbacks, policy, deadline_s=deadline_s, strict=strict)
    load = workload or SyntheticWorkload(LengthModel())
    hooked = _Hooked(policy, runner, LengthMonitor(max_tokens=load.cap))
    rollout = Rollout(hooked, load, Machine(replicas, EngineCosts(DENSE), noise))
    runner.start(RunInfo(n_groups, replicas, load.n, folder, 1, steps))
    try:
        decisions = [rollout.step(number, last=number == steps).decision for number in range(1, steps + 1)]
    except BaseException as error:
        runner.end(f"{type(error).__name__}: {error}")
        raise
    runner.end(None)
    return decisions


class _Hooked:
    """A policy that calls the hooks around its choices, at the places where the trainer does."""

    def __init__(self, policy: GuardedPolicy, runner: CallbackRunner, lengths: LengthMonitor) -> None:
        self.context = policy.context
        self._policy, self._runner, self._lengths = policy, runner, lengths

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        plan = self._policy.plan(step=step, carried=carried, last=last, stream_left=stream_left)
        self._runner.at_step(step)
        self._runner.emit("on_plan", plan)
        return plan

    def observe(self, observation: StepObservation) -> Decision:
        plan, emit = observation.plan, self._runner.emit
        emit("on_dispatch", plan, tuple(Launch(g.prompt, g.route) for g in observation.groups))
        cut = tuple(g.prompt for g in observation.groups if g.status == "cut")
        if cut:
            emit("on_cut", plan, cut, observation.cut_s)
        times = {"tail": observation.t_tail_s, "bulk": observation.t_bulk_s}
        for seconds, pool in sorted((seconds, pool) for pool, seconds in times.items() if seconds is not None):
            emit("on_pool_done", plan, pool, seconds)
        emit("on_step_observed", observation)
        decision = self._runner.emit_decision(self._policy.observe(observation), self._policy.amend)
        metrics = step_metrics(observation, decision, carried_next=len(cut))
        self._lengths.add(observation)
        bias = self._lengths.bias()
        if bias is not None:
            metrics.update({f"bias/{name}": getattr(bias, name) for name in ("mean", "p99", "truncated", "ks")})
        lengths = [tokens for g in observation.groups if g.status == "trained" for tokens in g.tokens]
        metrics.update(step_s=observation.generation_s, length=sum(lengths) / len(lengths))
        emit("on_step_end", plan.step, metrics)
        return decision

    def state_dict(self) -> dict[str, Any]:
        return self._policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy.load_state_dict(state)
