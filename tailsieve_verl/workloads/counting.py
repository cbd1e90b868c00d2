"""The counting task: "List every number from 7 to 19." The answer's length is the prompt's own property.

Spans are drawn from a log-normal distribution, so a few prompts ask for answers many times longer than the median one,
and ask for them again whenever they are sampled: the prompt-persistent long tail that tail routing is about. The reward
is verifiable: the share of the right sequence that was produced.

    python -m tailsieve_verl.workloads.counting --out data --train 64 --val 8 --seed 0
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

from tailsieve_verl.workloads.splits import write_splits

DATA_SOURCE = "tailsieve/counting"
# Log-normal with median exp(1.9) = 6.7 integers and a 90th percentile 3.3 times that, near the ratio of 3.5 that the
# paper's real workload has (Table A.3); cut at MAX_SPAN so that an answer fits a short response budget.
SPAN_MU, SPAN_SIGMA, MAX_SPAN = 1.9, 0.93, 36
MAX_START = 20


def make_rows(count: int, seed: int, split: str) -> list[dict[str, Any]]:
    """Rows in verl's parquet schema; the same seed and split give the same rows.

    Raises:
        ValueError: if ``count`` is not positive.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    rng = np.random.default_rng([seed, sum(split.encode())])
    spans = np.clip(np.rint(rng.lognormal(SPAN_MU, SPAN_SIGMA, size=count)), 2, MAX_SPAN).astype(int)
    starts = rng.integers(1, MAX_START + 1, size=count)
    rows = []
    for index, (start, span) in enumerate(zip(starts.tolist(), spans.tolist(), strict=True)):
        end = start + span - 1
        rows.append(
            {
                "data_source": DATA_SOURCE,
                "prompt": [{"role": "user", "content": prompt(start, end)}],
                "ability": "counting",
                "reward_model": {"style": "rule", "ground_truth": f"{start}-{end}"},
                "extra_info": {"split": split, "index": index, "span": span},
            }
        )
    return rows


def prompt(start: int, end: int) -> str:
    """The question; it shows how the answer begins, which small models need."""
    return f"List every number from {start} to {end}, in order, separated by commas: {start}, {start + 1}, ..."


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> float:
    """verl's reward function: the right leading integers, as a share of the longer of what was asked and what came."""
    del data_source, extra_info, kwargs
    start, end = (int(part) for part in ground_truth.split("-"))
    wanted = range(start, end + 1)
    got = [int(number) for number in re.findall(r"\d{1,9}", solution_str)]
    right = 0
    for ours, theirs in zip(got, wanted, strict=False):
        if ours != theirs:
            break
        right += 1
    return right / max(len(wanted), len(got))


def write(out: str | Path, train: int, val: int, seed: int) -> dict[str, Path]:
    """Write ``train.parquet`` and ``test.parquet``; returns split -> path."""
    return write_splits(out, make_rows, {"train": train, "test": val}, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument("--train", type=int, default=64, help="training prompts (default 64)")
    parser.add_argument("--val", type=int, default=8, help="validation prompts (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same files (default 0)")
    args = parser.parse_args()
    for split, path in write(args.out, args.train, args.val, args.seed).items():
        print(f"{split}: {path}")


if __name__ == "__main__":
    main()
