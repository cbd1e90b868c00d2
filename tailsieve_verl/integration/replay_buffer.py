"""Our replay buffer: the training batch is exactly the groups the rollout step selected, checked group by group.

Validation keeps verl's own sampling, with a shorter poll.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

logger = logging.getLogger(__name__)

# verl polls validation every 2 s; asking the store costs milliseconds, and grows with the prompts and responses in it.
VALIDATION_POLL_S, VERL_POLL_S = 0.1, 2.0
# So the pause after a poll is this many times as long as the poll took, within these bounds: responses are on their way
# to the same store.
PAUSE_PER_POLL = 10.0
# Looking after the replicas costs a call to each.
VALIDATION_CHECK_S = 20.0


class OffPolicyError(RuntimeError):
    """A group of the batch is incomplete or was not sampled under the current weights."""


class TailSieveReplayBuffer(ReplayBuffer):
    """Replay buffer of the two-pool rollout.

    Args:
        finish_rollout: completes the rollout and returns uid -> responses expected, for the groups of the batch.
        look_after: called now and then while a validation is awaited, with the prompts done and the seconds since the
            last one was; raises if it is no use to wait on.
        kwargs: verl's own arguments.
    """

    def __init__(
        self, finish_rollout: Callable[[], dict[str, int]], look_after: Callable[[int, float], None], **kwargs: Any
    ) -> None:
        super().__init__(poll_interval=VALIDATION_POLL_S, **kwargs)
        self._finish_rollout, self._look_after = finish_rollout, look_after
        self._done, self._done_at, self._checked_at, self._waited_at = -1, 0.0, 0.0, 0.0
        self.batch: dict[str, GroupFacts] = {}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The step's batch; everything else of the partition (trajectories of cut groups) is cleared."""
        if partition_id == "val":
            self._done, self._checked_at = -1, time.monotonic()
            self._waited_at = self._checked_at
            return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        expected = self._finish_rollout()
        items = (tq.kv_list(partition_id) or {}).get(partition_id, {})
        keys = [k for k, tag in items.items() if not tag.get("is_prompt") and k.split("_")[0] in expected]
        self.batch = check_batch({k: items[k] for k in keys}, expected, weights_version=global_steps - 1)
        kept = set(keys)
        rest = [k for k in items if k not in kept]
        if rest:
            tq.kv_clear(keys=rest, partition_id=partition_id)
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[items[k] for k in keys]), {}

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        now = time.monotonic()
        done = len(self.finished_keys[partition_id]) + len(self.failure_keys[partition_id])
        if done != self._done:
            self._done, self._done_at = done, now
        if now - self._checked_at > VALIDATION_CHECK_S:
            self._checked_at = now
            self._look_after(done, now - self._done_at)
        pause = PAUSE_PER_POLL * (now - self._waited_at)
        self.poll_interval = min(max(pause, VALIDATION_POLL_S), VERL_POLL_S)
        last_debug_time = super()._wait_for_next_poll(partition_id, last_debug_time)
        self._waited_at = time.monotonic()
        return last_debug_time


class GroupFacts(NamedTuple):
    """What the store holds of a group: lengths in tokens by session (its last output), and the weights versions."""

    prompt_tokens: list[int]
    response_tokens: list[int]
    min_version: int
    max_version: int


def check_batch(
    tags: dict[str, dict[str, Any]], expected: dict[str, int], weights_version: int
) -> dict[str, GroupFacts]:
    """Check that every group is complete and on-policy; returns uid -> facts.

    Args:
        tags: trajectory key ``{uid}_{session}_{index}`` -> verl's tag.
        expected: uid -> number of responses.
        weights_version: version of the current weights (verl counts weight syncs by training step).

    Raises:
        OffPolicyError: naming the first group that is not.
    """
    sessions: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for key, tag in tags.items():
        uid, session, _ = key.split("_")
        sessions[uid][int(session)] = tag
        versions = (tag.get("min_global_steps"), tag.get("max_global_steps"))
        if versions != (weights_version, weights_version):
            raise OffPolicyError(
                f"response {session} of group {uid} was sampled under weights versions {versions[0]}..{versions[1]}, "
                f"the current one is {weights_version}"
            )
    for uid, count in expected.items():
        if len(sessions[uid]) != count:
            raise OffPolicyError(f"group {uid} has {len(sessions[uid])} of {count} responses")
    return {
        uid: GroupFacts(
            [tag.get("prompt_len", 0) for _, tag in sorted(group.items())],
            [tag.get("response_len", 0) for _, tag in sorted(group.items())],
            weights_version,
            weights_version,
        )
        for uid, group in sessions.items()
    }
