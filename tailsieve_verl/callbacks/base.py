"""The base class of callbacks, and the handle by which they ask for changes.

    on_run_start   once, before the first step of the process
    on_load        after a resume, with what on_save returned
      on_plan              the step's plan is made; its prompts are about to be launched
      on_dispatch          they have been launched
      on_cut, on_pool_done when the rollout is over, in order of the times they are told
      on_step_observed     the raw facts of the rollout
      on_decision          the next step's split; a veto is still in time
      on_save              if a checkpoint is written
      on_step_end          the weights are updated: reward, lengths, bias, times
    on_run_end     once, also when the run ends with an error

Invariants
    * Everything passed in is frozen: plans, observations, decisions, tuples, read-only mappings. What a hook returns is
      ignored (but for ``on_save``); a change is asked for through ``self.run``, and takes effect with the next step.
    * Hooks are called one at a time, in the order of the configuration; observers after the others, so that they see
      the decision that is carried out.
    * No hook runs while the trainer aborts requests or moves weights, and none runs inside the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from tailsieve_verl.core.ledger import Launch
from tailsieve_verl.core.plan import Decision, StepObservation, StepPlan


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run when it starts.

    Attributes:
        n_groups, replicas, sessions: N, R, and n, responses in a group.
        folder: ``trainer.default_local_dir``.
        first_step, last_step: steps of this process, both included.
    """

    n_groups: int
    replicas: int
    sessions: int
    folder: str
    first_step: int
    last_step: int


class RunHandle(Protocol):
    """How a callback asks for changes: of the next step's split, and of nothing else (``core/steering.py``).

    Every call returns whether the request was taken; one that makes no sense is refused with a warning that says why.
    ``why`` appears in the decision's reason.
    """

    def pin(self, *, q: int | None = None, m: int | None = None, why: str) -> bool:
        """Hold q, m or both until :meth:`unpin`; replaces this callback's earlier pin."""

    def uniform(self, *, why: str) -> bool:
        """Hold the run at uniform routing until :meth:`unpin`."""

    def unpin(self) -> bool:
        """Take this callback's pin back; those of others stay."""

    def veto(self, *, why: str) -> bool:
        """Keep the present split for the next step, whatever was decided."""


class Callback:
    """Base of all callbacks; every hook does nothing. See the module docstring for when each is called.

    Attributes:
        observer: it only watches: it is called after the callbacks that may ask for changes, and may not ask itself.
        run: the handle; set before the first hook.
    """

    observer: ClassVar[bool] = False
    run: RunHandle

    def on_run_start(self, info: RunInfo) -> None:
        """The run, or the resumed run, begins. Open files and ports here, not in the constructor: that one is called
        once more to check the configuration."""

    def on_plan(self, plan: StepPlan) -> None:
        """A step is planned."""

    def on_dispatch(self, plan: StepPlan, groups: tuple[Launch, ...]) -> None:
        """The step's groups were handed to the agent loops: prompt (serial number) and route of each."""

    def on_cut(self, plan: StepPlan, stragglers: tuple[int, ...], cut_s: float) -> None:
        """The cut fired ``cut_s`` seconds after the step was opened; ``stragglers`` are the prompts carried on."""

    def on_pool_done(self, plan: StepPlan, pool: Literal["tail", "bulk"], seconds: float) -> None:
        """A pool generated its last needed group this long after the step was opened."""

    def on_step_observed(self, observation: StepObservation) -> None:
        """The rollout is over and its books are closed."""

    def on_decision(self, decision: Decision) -> None:
        """The policy has decided on the next step. Observers see what is carried out, others what those before them
        left of it."""

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """The training step is over; ``metrics`` as in docs/metrics.md, with ``reward``, ``length`` and ``step_s``."""

    def on_save(self) -> Mapping[str, Any] | None:
        """State for the checkpoint, plain JSON data; ``None`` if there is none."""
        return None

    def on_load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`on_save` returned."""

    def on_run_end(self, failure: str | None) -> None:
        """The run is over; ``failure`` says with which error, ``None`` if it was not one."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
