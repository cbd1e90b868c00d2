"""Reward for code: 1 if every test of the prompt passes against the program of the response, 0 else.

    reward.custom_reward_function.path=pkg://tailsieve_verl.rewards.code

The right answer of a row is its test file (pytest style, importing from ``solution``). Programs run as
:mod:`~tailsieve_verl.rewards.sandbox` says; docs/rewards.md says what that keeps out, and what it does not.
"""

from __future__ import annotations

import logging
import os
import threading
from importlib.util import find_spec
from typing import Any

from tailsieve_verl.errors import UserError
from tailsieve_verl.rewards.responses import python_code
from tailsieve_verl.rewards.sandbox import Limits, Outcome, run_tests

logger = logging.getLogger(__name__)

#: Programs at once in one process; verl runs several reward processes, each with many threads.
_turns = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 2))
_lock = threading.Lock()
_told: set[str] = set()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,
    cpu_s: int = Limits.cpu_s,
    wall_s: float = Limits.wall_s,
    memory_mb: int = Limits.memory >> 20,
    **kwargs: Any,
) -> dict[str, Any]:
    """verl's reward function; the limits can be set under ``reward.custom_reward_function.reward_kwargs``.

    Returns:
        ``score`` and ``acc`` (1.0 or 0.0), ``verdict`` (passed, failed, no code, time, disk, died, tests missing) and
        ``error`` (the last line of the first failure).

    Raises:
        UserError: pytest is not installed, or this machine cannot run a test.
    """
    del data_source, extra_info, kwargs
    code = python_code(solution_str)
    if code is None:
        return _result(Outcome(False, "no code"))
    if find_spec("pytest") is None:
        raise UserError("The code reward runs tests with pytest, which is not installed; pip install pytest.")
    with _turns:
        outcome = run_tests(code, str(ground_truth), Limits(cpu_s=cpu_s, wall_s=wall_s, memory=memory_mb << 20))
    for missing in outcome.missing:
        _tell_once(missing)
    return _result(outcome)


def _result(outcome: Outcome) -> dict[str, Any]:
    score = float(outcome.passed)
    return {"score": score, "acc": score, "verdict": outcome.reason, "error": outcome.error}


def _tell_once(missing: str) -> None:
    with _lock:
        if missing in _told:
            return
        _told.add(missing)
    logger.warning("tailsieve: programs under test are not fully confined on this machine: %s.", missing)
