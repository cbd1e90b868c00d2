"""Reward for mathematics: 1 if the last boxed answer equals the right one, 0 else.

    reward.custom_reward_function.path=pkg://tailsieve_verl.rewards.math

An answer counts only if it is boxed, and only up to ``<END>``: a response cut off at its limit has none. The overlength
penalty (Appendix A.3) is verl's own DAPO reward manager, see docs/rewards.md.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any

from tailsieve_verl.rewards.math_pool import MathPool
from tailsieve_verl.rewards.responses import answer_part, last_boxed

logger = logging.getLogger(__name__)

#: Most workers in one process; verl runs several reward processes beside each other.
WORKERS = min(4, os.cpu_count() or 1)

_lock = threading.Lock()
_pool: MathPool | None = None
_told: set[str] = set()


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """verl's reward function.

    Returns:
        ``score`` and ``acc`` (1.0 or 0.0), ``verdict`` (a word or two, why) and ``answer`` (what was boxed).

    Raises:
        RuntimeError: no worker process can be started.
    """
    del kwargs
    answer = last_boxed(answer_part(solution_str))
    verdict = "no answer" if answer is None or not answer.strip() else _judges().judge(str(ground_truth), answer)
    if verdict == "unreadable gold":
        _tell_once(data_source, str(ground_truth), extra_info)
    score = float(verdict == "right")
    return {"score": score, "acc": score, "verdict": verdict, "answer": (answer or "")[:200]}


def _judges() -> MathPool:
    global _pool
    with _lock:
        if _pool is None:
            _pool = MathPool(WORKERS)
            atexit.register(_pool.close)
        return _pool


def _tell_once(data_source: str, gold: str, extra_info: Any) -> None:
    index = extra_info.get("index") if isinstance(extra_info, dict) else None
    name = f"{data_source} row {index}" if index is not None else data_source
    key = f"{name} {gold}"
    with _lock:
        if key in _told:
            return
        _told.add(key)
    logger.warning(
        "tailsieve: the right answer %r of %s cannot be read as mathematics; an answer counts there only if it is the "
        "same text.",
        gold[:200],
        name,
    )
