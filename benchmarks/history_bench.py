"""What placement by prompt history costs: time of a step's placement and judgement, memory of a million prompts.

    python benchmarks/history_bench.py

N = 64, n = 8, R = 8, from the second pass over 1,280 prompts on; processor time, so that a busy machine says the same.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.core.prompt_history import PromptHistory
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.policies import parse_policy
from tailsieve_verl.simulate.rollout import Machine, Rollout
from tailsieve_verl.simulate.workload import SyntheticWorkload
from tailsieve_verl.traces.synthetic import LengthModel

N, REPLICAS, PASS, STEPS = 64, 8, 20, 60
#: Steps that are not counted: the first pass, and the first ones of the second.
SKIP = PASS + 2
PROMPTS, AT_ONCE = 1_000_000, 1000


def timed(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def clocked(*args: Any) -> Any:
        start = time.process_time()
        result = call(*args)
        seconds.append(time.process_time() - start)
        return result

    return clocked


def step_times(name: str) -> dict[str, float | str]:
    """Milliseconds of `arrange` (the placement) and `observe` (books, judgement, the controller's decision)."""
    policy, _, _ = parse_policy(name).build(N, REPLICAS)
    arrange: list[float] = []
    observe: list[float] = []
    policy.arrange, policy.observe = timed(policy.arrange, arrange), timed(policy.observe, observe)  # type: ignore[attr-defined]
    load = SyntheticWorkload(LengthModel(), 8, data_set=PASS * N)
    rollout = Rollout(policy, load, Machine(REPLICAS, EngineCosts(DENSE), 0.1), None, True)
    for step in range(1, STEPS + 1):
        rollout.step(step)
    row: dict[str, float | str] = {"policy": name}
    for what, seconds in (("arrange", arrange), ("observe", observe)):
        low, median, high = np.percentile(np.array(seconds[SKIP:]) * 1e3, [10, 50, 90])
        row.update({f"{what}_ms": round(median, 1), f"{what}_ms_p10": round(low, 1), f"{what}_ms_p90": round(high, 1)})
    return row


def resident() -> float:
    """MB of this process that are in memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def memory() -> float:
    """MB that a history of a million prompts adds."""
    before, history = resident(), PromptHistory()
    for first in range(0, PROMPTS, AT_ONCE):
        keys = [f"deepscaler/train/{i}" for i in range(first, first + AT_ONCE)]
        ones = np.ones(AT_ONCE)
        history.add(first // AT_ONCE, keys, ones, 8 * ones, 0 * ones, ones > 0)
    assert len(history) == PROMPTS
    return resident() - before


if __name__ == "__main__":
    print(json.dumps({"python": platform.python_version(), "machine": platform.processor()}))
    for policy_name in ("history", "history:history_q=1", "auto"):
        print(json.dumps(step_times(policy_name)), flush=True)
    print(json.dumps({"prompts": PROMPTS, "resident_mb": round(memory())}))
