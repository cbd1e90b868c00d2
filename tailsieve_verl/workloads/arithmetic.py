"""The arithmetic task: "What is 7 + 15?" Answers are short, and the few long ones are chance, not the prompt's own.

The counterpart of :mod:`~tailsieve_verl.workloads.counting`: a load on which isolating prompts has nothing to gain, and
must lose nothing. The reward is verifiable: 1 if the last number of the answer is right.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.workloads.splits import write_splits

DATA_SOURCE = "tailsieve/arithmetic"
#: Summands that SmolLM2-135M adds rightly often, not always.
LARGEST = 20


def make_rows(count: int, seed: int, split: str) -> list[dict[str, Any]]:
    """Rows in verl's parquet schema; the same seed and split give the same rows.

    Raises:
        ValueError: if ``count`` is not positive.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    rng = np.random.default_rng([seed, sum(split.encode())])
    rows = []
    for index, (a, b) in enumerate(rng.integers(1, LARGEST + 1, size=(count, 2)).tolist()):
        rows.append(
            {
                "data_source": DATA_SOURCE,
                "prompt": [{"role": "user", "content": prompt(a, b)}],
                "ability": "arithmetic",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": split, "index": index},
            }
        )
    return rows


def prompt(a: int, b: int) -> str:
    """The question; without the frame a small model tells stories."""
    return f"Question: What is {a} + {b}?\nAnswer:"


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> float:
    """verl's reward function: 1 if the last whole number of the answer is the sum, else 0."""
    del data_source, extra_info, kwargs
    numbers = re.findall(r"\d{1,9}", solution_str)
    return float(bool(numbers) and int(numbers[-1]) == int(ground_truth))


def write(out: str | Path, train: int, val: int, seed: int) -> dict[str, Path]:
    """Write ``train.parquet`` and ``test.parquet``; returns split -> path."""
    return write_splits(out, make_rows, {"train": train, "test": val}, seed)
