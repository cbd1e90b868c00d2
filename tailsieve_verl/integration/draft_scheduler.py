"""vLLM scheduler whose draft depths can be replaced while it runs: a table by running batch size.

vLLM reads its own table (`dynamic_sd_lookup`) afresh in every step, so swapping it takes effect from the next step on.
The class is given to vLLM by its `scheduler_cls` setting. `EngineCore` gets two methods, as an engine is reached
only by utility calls that name one; vLLM 0.24 to 0.33 have no other way in.

Invariants
    * A table covers batch sizes 0..max_num_seqs and never exceeds the depth that the engine was launched with.
    * What `draft_report` says was counted in the engine: steps by (batch size, depth scheduled) and their
      times, drafts by tokens proposed and accepted, chances to draft by tokens allowed and accepted (an n-gram drafter
      that finds nothing has had its chance), and a fingerprint of the drafter's weights.
    * Output does not depend on the table: drafts are verified whatever their length.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Container
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from tailsieve_verl.integration.speculation import check_runner
from tailsieve_verl.integration.speculation_checks import installed_vllm

logger = logging.getLogger(__name__)

#: Weights added up at a time: as numbers of 64 bits these take 32 MiB, and a GPU that serves has little room.
PART = 1 << 22


class _DraftDepths:
    """Mixed into vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.launch_depth: int = self.num_spec_tokens  # type: ignore[attr-defined]
        self._scheduled: Counter[tuple[int, int]] = Counter()
        self._drafts: Counter[tuple[int, int]] = Counter()
        self._chances: Counter[tuple[int, int]] = Counter()
        self._allowed = 0  # depth that the step before drafted by,
        self._before: Container[str] = ()  # and the requests that it could draft for
        self._verified = 0  # drafts verified in this step
        self._times: dict[tuple[int, int], list[float]] = {}
        self._ended_s: float | None = None  # end of the last step, while requests are left
        if self.launch_depth and self.dynamic_sd_lookup is None:  # type: ignore[has-type]
            self.set_draft_depths([self.launch_depth])

    def set_draft_depths(self, depths: list[int]) -> list[int]:
        """Use these depths from the next step on; the last one holds for larger batches. Returns the table in force.

        Raises:
            ValueError: no drafter, an empty table, or a depth outside 0..launch depth.
        """
        if not self.launch_depth:
            raise ValueError("the engine was launched without speculation: it has no draft depth to set")
        if not depths or not all(0 <= d <= self.launch_depth for d in depths):
            raise ValueError(f"depths must be in 0..{self.launch_depth} (the depth at launch), got {depths}")
        size = int(self.scheduler_config.max_num_seqs) + 1  # type: ignore[attr-defined]
        self.dynamic_sd_lookup = [int(d) for d in (*depths[:size], *[depths[-1]] * (size - len(depths)))]
        return list(self.dynamic_sd_lookup)

    def draft_report(self) -> dict[str, Any]:
        """What was scheduled and drafted since the last report, and the table in force."""
        report = {
            "launch_depth": self.launch_depth,
            "table": list(self.dynamic_sd_lookup or []),
            "steps": [[batch, depth, count] for (batch, depth), count in sorted(self._scheduled.items())],
            "drafts": [[proposed, taken, count] for (proposed, taken), count in sorted(self._drafts.items())],
            "chances": [[allowed, taken, count] for (allowed, taken), count in sorted(self._chances.items())],
            "times": [[batch, depth, int(n), s] for (batch, depth), (n, s) in sorted(self._times.items())],
        }
        self._scheduled.clear()
        self._drafts.clear()
        self._chances.clear()
        self._times.clear()
        return report

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if output.num_scheduled_tokens:
            self._scheduled[len(output.num_scheduled_tokens), output.num_spec_tokens_to_schedule] += 1
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = scheduler_output.num_scheduled_tokens
        self._verified = 0
        result = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        now = time.perf_counter()
        if self._allowed and self._verified < len(tokens):  # a drafter that always proposes spends no time here
            most = 1 + self.launch_depth  # a chunk of a prompt is longer
            able = sum(count <= most and request in self._before for request, count in tokens.items())
            if able > self._verified:
                self._chances[self._allowed, 0] += able - self._verified
        self._allowed, self._before = scheduler_output.num_spec_tokens_to_schedule, tokens
        # Between two ends lies one step, also where the next one is scheduled before this one has ended. Steps with a
        # prompt in them are left out.
        if self._ended_s is not None and tokens and max(tokens.values()) <= 1 + self.launch_depth:
            cell = self._times.setdefault((len(tokens), scheduler_output.num_spec_tokens_to_schedule), [0, 0.0])
            cell[0] += 1
            cell[1] += now - self._ended_s
        self._ended_s = now if self.get_num_unfinished_requests() else None  # type: ignore[attr-defined]
        return result

    def make_spec_decoding_stats(
        self, stats: Any, num_draft_tokens: int, num_accepted_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        if num_draft_tokens:
            self._drafts[num_draft_tokens, num_accepted_tokens] += 1
            self._chances[max(self._allowed, num_draft_tokens), num_accepted_tokens] += 1
            self._verified += 1
        return super().make_spec_decoding_stats(  # type: ignore[misc]
            stats, num_draft_tokens, num_accepted_tokens, *args, **kwargs
        )


class DraftScheduler(_DraftDepths, Scheduler):
    """vLLM's synchronous scheduler with replaceable depths."""


class AsyncDraftScheduler(_DraftDepths, AsyncScheduler):
    """vLLM's asynchronous scheduler with replaceable depths."""


def make_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Scheduler:
    """What `scheduler_cls` names: the variant that the engine's scheduling asks for.

    Raises:
        SpeculationError: the engine's model runner would not follow the depths.
    """
    check_runner(vllm_config, installed_vllm())
    kind = AsyncDraftScheduler if vllm_config.scheduler_config.async_scheduling else DraftScheduler
    return kind(vllm_config, *args, **kwargs)


def _set_draft_depths(self: EngineCore, depths: list[int]) -> list[int]:
    return self.scheduler.set_draft_depths(depths)  # type: ignore[attr-defined]


def _draft_report(self: EngineCore) -> dict[str, Any]:
    report = self.scheduler.draft_report()  # type: ignore[attr-defined]
    report["drafter"] = []
    if self.model_executor.is_sleeping:  # its memory is not mapped: to read it would kill the GPU's process
        return report
    try:
        report["drafter"] = [w for w in self.model_executor.collective_rpc(drafter_weights) if w is not None]
    except Exception as error:  # a figure that cannot be had must not end the run
        logger.warning("tailsieve: no fingerprint of the drafter's weights: %s: %s", type(error).__name__, error)
    return report


def drafter_weights(worker: Any) -> list[float] | None:
    """Fingerprint of the weights that a worker's drafter has for itself; ``None`` for a drafter without weights.

    Returns:
        Sum, sum of magnitudes, and number of the weights. What is shared with the target (embedding, head) is left out:
        it follows the policy.
    """
    runner = worker.model_runner
    ask = getattr(runner, "get_draft_model", None)  # of both model runners, from about vLLM 0.28 on
    drafter = ask() if ask is not None else getattr(getattr(runner, "drafter", None), "model", None)
    if drafter is None or not hasattr(drafter, "parameters"):
        return None
    shared = {parameter.data_ptr() for parameter in runner.model.parameters()}
    total: Any = 0.0
    size: Any = 0.0
    count = 0
    for parameter in drafter.parameters():
        # Numbers of one byte (float8) have no sum.
        if parameter.data_ptr() in shared or not parameter.is_floating_point() or parameter.element_size() < 2:
            continue
        for part in parameter.flatten().split(PART):
            numbers = part.double()
            total, size = total + numbers.sum(), size + numbers.abs().sum()
        count += parameter.numel()
    return [float(total), float(size), count]


EngineCore.tailsieve_set_draft_depths = _set_draft_depths  # type: ignore[attr-defined]
EngineCore.tailsieve_draft_report = _draft_report  # type: ignore[attr-defined]
