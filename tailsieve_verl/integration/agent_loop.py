"""Agent loop manager and worker: group context around every agent loop, quiet ends for cut sessions.

Any agent loop, single- or multi-turn, runs unchanged: the worker sets :data:`~.context.SESSION` in the session's task
and the client reads it there. Towards the router the worker sends two messages a group that nobody waits for: all
responses generated, and all trajectories stored (or failed); and one for each response that is generated again.

A session whose group is cut ends without a trajectory, a partial token or an error log: its requests are aborted or
refused (both arrive as :class:`RolloutCut`), and whatever else it is doing (a tool, a reward) is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

from tailsieve_verl.config.sampling import SamplingConfig, parse_sampling
from tailsieve_verl.integration.context import ROUTED, SESSION, RolloutCut, Session

logger = logging.getLogger(__name__)

# Agent loops may block the worker's event loop for a while (tokenizing, images); not this long.
ALIVE_TIMEOUT_S = 300.0

# verl decorates the class with ray.remote, which hides the plain class; Ray keeps it here.
_WorkerBase: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


#: Why a group failed whose request was refused or aborted and whose cut never came; a group that is cut has no error.
ABORTED = "a request was aborted"


class _Group:
    """A prompt group running in this worker; sets hold session numbers."""

    def __init__(self, sessions: int) -> None:
        self.sessions = sessions
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.generated: set[int] = set()
        self.stored: set[int] = set()
        self.cut = False
        self.error: str | None = None
        self.settled = asyncio.Event()


class TailSieveAgentLoopWorker(_WorkerBase):
    """verl's worker, with the group context, the cut and our sampling parameters."""

    _sampling = SamplingConfig()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._router = self.llm_client._load_balancer
        self._retries = int(self.config.trainer.v1.tailsieve.get("max_retries", 0))
        self._sampling = parse_sampling(self.config.trainer.v1.tailsieve.get("sampling"))
        self._groups: dict[str, _Group] = {}
        self._aborted: dict[str, list[int]] = {}

    async def cut(self, uids: list[str], timeout_s: float) -> dict[str, list[int]]:
        """End the sessions of these groups and wait until they have.

        Returns:
            uid -> sessions that had been generated in full, for the groups that ran in this worker, or that an abort of
            their requests ended before this call came.

        Raises:
            TimeoutError: if a session does not end in time.
        """
        mine = {uid: self._groups[uid] for uid in uids if uid in self._groups}
        for group in mine.values():
            group.cut = True
            for task in group.tasks.values():
                task.cancel()
        if mine:
            waits = [asyncio.create_task(group.settled.wait()) for group in mine.values()]
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            if pending:
                raise TimeoutError(f"{len(pending)} cut prompt groups still run after {timeout_s:g} s")
        early = {uid: self._aborted[uid] for uid in uids if uid in self._aborted}
        self._aborted.clear()
        return early | {uid: sorted(group.generated) for uid, group in mine.items()}

    async def alive(self) -> bool:
        """Answers while the worker's event loop runs."""
        return True

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        sampling_params = {**sampling_params, **self._sampling.parameters(validate=bool(trajectory["validate"]))}
        if not prompt.pop(ROUTED, False):
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            return
        uid = prompt["uid"]
        group = self._groups[uid] = _Group(int(prompt.get("__rollout_n__", self.rollout_config.n)))
        try:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        except Exception as error:  # the store, say: verl lets it go unnoticed in a background task
            logger.exception("tailsieve: a prompt group could not be run")
            group.error = group.error or f"{type(error).__name__}: {error}"
        finally:
            del self._groups[uid]
            if len(group.generated) < group.sessions:
                self._aborted[uid] = sorted(group.generated)
            group.settled.set()
        if not group.cut:
            missing = group.sessions - len(group.stored)
            failure = group.error or (f"{missing} of {group.sessions} responses are missing" if missing else None)
            self._router.group_stored.remote(uid, failure)

    async def _run_agent_loop(self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **kwargs: Any) -> Any:
        group = self._groups.get(kwargs["uid"]) if not trajectory["validate"] else None
        if group is None:
            return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)
        number = int(kwargs["session_id"])
        task = asyncio.current_task()
        assert task is not None
        group.tasks[number] = task
        session = Session(kwargs["uid"], number)
        SESSION.set(session)
        for attempt in range(1 + self._retries):
            try:
                if group.cut:
                    return None
                return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)
            except RolloutCut:
                group.error = group.error or ABORTED
                return None
            except asyncio.CancelledError:
                if not group.cut:
                    raise
                return None
            except Exception as error:
                if group.cut or session.ended:
                    group.error = group.error or ABORTED
                    return None
                said = f"{type(error).__name__}: {error}"
                if attempt == self._retries:
                    group.error = group.error or said
                    raise
                # One flaky tool call must not cost a whole group; the weights are the same, so nothing is off-policy.
                logger.warning("tailsieve: response %d of a group failed (%s), it is generated again", number, said)
                group.generated.discard(number)  # a reward may have failed after the last token
                self._router.session_restarted.remote(kwargs["uid"], number)
        return None

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        group = self._groups.get(kwargs["uid"]) if not validate else None
        if group is None:
            await super()._agent_loop_postprocess(output, validate, **kwargs)
            return
        session = int(kwargs["session_id"])
        running = SESSION.get()
        if group.cut or (running is not None and running.ended):  # the loop may have caught the cut and answered
            raise RolloutCut(kwargs["uid"])
        if not isinstance(output, list) or output:
            group.generated.add(session)
            if len(group.generated) == group.sessions:
                self._router.group_generated.remote(kwargs["uid"])
        await super()._agent_loop_postprocess(output, validate, **kwargs)
        if session in group.generated:
            group.stored.add(session)


class TailSieveAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with our workers, and the broadcast of a cut."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(TailSieveAgentLoopWorker)

    def generate_sequences(self, prompts: Any) -> None:
        """Deal prompts to the workers without waiting for results, as verl's does, which waits for ever.

        Raises:
            ray.exceptions.GetTimeoutError: if a worker does not take its share in time.
        """
        workers = self.agent_loop_workers
        shares = zip(workers, prompts.chunk(len(workers)), strict=False)  # fewer prompts than workers make fewer chunks
        ray.get([worker.generate_sequences.remote(share) for worker, share in shares], timeout=ALIVE_TIMEOUT_S)

    def check(self) -> None:
        """Raise Ray's error if a worker is dead or does not answer."""
        ray.get([worker.alive.remote() for worker in self.agent_loop_workers], timeout=ALIVE_TIMEOUT_S)

    def cut(self, uids: list[str], timeout_s: float) -> dict[str, list[int]]:
        """End the sessions of these groups in all workers; returns uid -> sessions generated in full.

        Raises:
            ray.exceptions.GetTimeoutError, TimeoutError: if a worker does not answer in time.
        """
        calls = [worker.cut.remote(uids, timeout_s) for worker in self.agent_loop_workers]
        generated: dict[str, list[int]] = {}
        for answer in ray.get(calls, timeout=timeout_s + 10):
            generated.update(answer)
        return generated
