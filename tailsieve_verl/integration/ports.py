"""The router, the agent loops and the replicas behind plain synchronous calls, each with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from tailsieve_verl.integration.client import describe_fatal
from tailsieve_verl.integration.deadline import ReplicaDiedError, RolloutStalledError, within
from tailsieve_verl.integration.prompts import Row
from tailsieve_verl.integration.router import LaunchedGroup, StepLog, StepStatus

T = TypeVar("T")

# The router answers in microseconds; a call that takes this long means its process or node is in trouble.
ROUTER_CALL_TIMEOUT_S = 120.0
# Calls to replicas take milliseconds; one that takes this long is reason to look after the replica.
HEALTH_DURING_CALLS_S = 5.0


class RayRouter:
    """The router actor (see :class:`~.router.TailSieveRouter` for the calls)."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def wait_ready(self) -> None:
        """Wait until the router's process has started, so that the first step does not."""
        self._call("get_status")

    def open_step(self, *args: Any) -> None:
        self._call("open_step", *args)

    def add_groups(self, groups: list[LaunchedGroup]) -> None:
        self._call("add_groups", groups)

    def wait_verdict(self, timeout_s: float) -> StepStatus:
        return self._call("wait_verdict", timeout_s, extra_s=timeout_s)

    def cut(self) -> tuple[str, ...] | None:
        return self._call("cut")

    def forget_in_flight(self, replicas: range) -> None:
        self._call("forget_in_flight", replicas)

    def wait_drained(self, replicas: range, timeout_s: float) -> int:
        return self._call("wait_drained", replicas, timeout_s, extra_s=timeout_s)

    def step_log(self) -> StepLog:
        return self._call("step_log")

    def _call(self, method: str, *args: Any, extra_s: float = 0.0) -> Any:
        timeout = ROUTER_CALL_TIMEOUT_S + extra_s
        try:
            return ray.get(getattr(self._handle, method).remote(*args), timeout=timeout)
        except GetTimeoutError:
            raise RolloutStalledError(f"the router did not answer {method} within {timeout:g} s") from None
        except RayActorError as error:
            raise ReplicaDiedError(f"the router's process died: {error}") from error


class RayAgents:
    """The agent loop workers behind our manager.

    Args:
        manager: a :class:`~.agent_loop.TailSieveAgentLoopManager`.
        submit: hands (uid, row) pairs to the manager as the batch that verl's manager takes.
    """

    def __init__(self, manager: Any, submit: Callable[[list[tuple[str, Row]]], None]) -> None:
        self._manager, self._submit = manager, submit

    def submit(self, rows: list[tuple[str, Row]]) -> None:
        self._named(lambda: self._submit(rows))

    def end_sessions(self, uids: list[str], timeout_s: float) -> dict[str, list[int]]:
        return self._named(lambda: self._manager.cut(uids, timeout_s))

    def check(self) -> None:
        """Raise ReplicaDiedError unless every worker answers."""
        self._named(self._manager.check)

    def _named(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except RayActorError as error:
            raise ReplicaDiedError(f"an agent loop worker died: {error}") from error
        except (GetTimeoutError, TimeoutError) as error:
            raise RolloutStalledError(f"the agent loop workers did not answer in time: {error}") from error


class RayReplicas:
    """The rollout replicas by rank (see :class:`~.replica.TailSieveReplica`)."""

    def __init__(self, replicas: Sequence[Any], timeout_s: float) -> None:
        self._replicas = list(replicas)
        self._timeout_s = timeout_s

    def abort(self, replicas: Sequence[int]) -> None:
        """Abort every request on these replicas, and reject those that arrive before they are resumed.

        Rejected ones come back as aborted. Holding them back instead would leave a turn that was just on its way
        waiting for a resume that waits for it.
        """
        self._each(replicas, "abort_all_requests", reject_request=True)

    def unfinished(self, replicas: Sequence[int]) -> int:
        return sum(self._each(replicas, "unfinished"))

    def resume(self, replicas: Sequence[int]) -> None:
        self._each(replicas, "resume_generation")

    def check(self) -> None:
        """Raise ReplicaDiedError unless every replica answers and its engine is alive."""
        self._each(range(len(self._replicas)), "check")

    def set_draft_depths(self, tables: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Give replicas their depth tables; returns what each now uses."""
        ranks = sorted(tables)
        return dict(zip(ranks, self._each(ranks, "set_draft_depths", each={r: tables[r] for r in ranks}), strict=True))

    def draft_reports(self, replicas: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What each replica's engine drafted since the last report."""
        return dict(zip(replicas, self._each(replicas, "draft_report"), strict=True))

    def _each(
        self, ranks: Sequence[int], method: str, each: Mapping[int, Any] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of these replicas, with an argument of its own for each where ``each`` has them."""

        async def one(rank: int, method: str, **kwargs: Any) -> Any:
            own = () if each is None or method == "check" else (each[rank],)
            try:
                return await getattr(self._replicas[rank], method)(*own, **kwargs)
            except Exception as error:
                fatal = describe_fatal(error)
                if fatal is None:
                    raise
                raise ReplicaDiedError(f"rollout replica {rank} died: {fatal}") from error

        async def everyone() -> list[Any]:
            calls = asyncio.gather(*[one(rank, method, **kwargs) for rank in ranks])
            while method != "check":
                # A call into an engine that dies meanwhile may never return: keep asking for its health.
                done, _ = await asyncio.wait([calls], timeout=HEALTH_DURING_CALLS_S)
                if done:
                    break
                await asyncio.gather(*[one(rank, "check") for rank in ranks])
            return list(await calls)

        what = f"{method} on rollout replicas {list(ranks)}"
        return within(self._timeout_s, what, lambda: asyncio.run(everyone()))
