"""What a reward costs: mathematical answers and programs under test, from the threads of one process.

python benchmarks/rewards_bench.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tailsieve_verl.rewards import code, math

THREADS = 8
ANSWERS = (
    (r"\boxed{72}<END>", "72"),
    (r"\boxed{0.5}<END>", r"\frac{1}{2}"),
    (r"\boxed{(x+1)^2}<END>", "x^2+2x+1"),
    (r"\boxed{\{2,1\}}<END>", r"\{1,2\}"),
    (r"\boxed{(-\infty, 3)}<END>", r"(-\infty,3]"),
    (r"\boxed{2\sqrt{2}}<END>", r"\sqrt{8}"),
    (r"\boxed{17}<END>", "16"),
)
PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```<END>"
TESTS = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"


def milliseconds(calls: Sequence[Callable[[], object]], repeats: int = 5) -> str:
    """Median, least and most of the time for one call, over repeats of all of them at once."""
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda call: call(), calls))  # starts the workers
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            list(threads.map(lambda call: call(), calls))
            taken.append((time.perf_counter() - start) / len(calls) * 1e3)
    return f"{statistics.median(taken):.1f} ms ({min(taken):.1f} to {max(taken):.1f})"


def main() -> None:
    answers = [lambda r=r, g=g: math.compute_score("bench", r, g) for r, g in ANSWERS * 40]  # type: ignore[misc]
    print(f"a mathematical answer: {milliseconds(answers)}, {math.WORKERS} workers")
    programs = [lambda: code.compute_score("bench", PROGRAM, TESTS)] * 8
    print(f"a program under test:  {milliseconds(programs, repeats=3)}")


if __name__ == "__main__":
    main()
