"""Replays a set of requests under several placements on real replicas, and compares them with the simulator.

A replay submits all requests at once and lets them run to their end: the makespan of a set of responses under a
placement. It does not play a whole step of the two-pool policy, where the slowest of more groups than needed are cut.

Repeats take the policies in rotating order, so that a slow spell of the machine does not fall on one of them. Every run
is written as soon as it is done; a study that is started again goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.errors import UserError
from tailsieve_verl.replay.calibrate import SHORT_PROMPT, random_prompt
from tailsieve_verl.replay.engine import RUN_TIMEOUT_S, ReplicaProcess, run_together
from tailsieve_verl.replay.predict import largest_batch

#: Two policies whose makespans are closer than this are not ranked: a machine's own spread is as large.
TIE = 0.05


@dataclass(frozen=True)
class Run:
    """One replay.

    Attributes:
        policy: its label.
        repeat: from 0.
        makespan_s: seconds from the common start to the last token.
        replica_s: [R] seconds to the last token of each replica; 0 for one without requests.
        first_s, finish_s: [N][n] seconds to each response's first and last token.
        preemptions: of all replicas.
        cpu_share: CPU time over wall time of the busiest replica; on a CPU less than 1 means that others took its core.
        study: what was run (`study_key`), so that runs of another study in the same file are told apart.
    """

    policy: str
    repeat: int
    makespan_s: float
    replica_s: tuple[float, ...]
    first_s: tuple[tuple[float, ...], ...]
    finish_s: tuple[tuple[float, ...], ...]
    preemptions: int = 0
    cpu_share: float = 0.0
    study: str = ""


@dataclass(frozen=True)
class Verdict:
    """Measured and predicted makespan of one policy; seconds.

    Attributes:
        measured_s: median of the repeats; low_s, high_s: the extremes.
        predicted_s: by the simulator.
        runs: how many repeats.
    """

    policy: str
    measured_s: float
    low_s: float
    high_s: float
    predicted_s: float
    runs: int

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def spread(self) -> float:
        """Distance of the extremes over the median."""
        return (self.high_s - self.low_s) / self.measured_s


def group_prompts(groups: int, prompt_tokens: int, vocabulary: int, seed: int = 0) -> list[list[int]]:
    """A random prompt for each group, [N] lists of token ids, shared by the rollouts of the group."""
    rng = np.random.default_rng(seed)
    return [random_prompt(rng, prompt_tokens, vocabulary) for _ in range(groups)]


def replay(
    lengths: ArrayLike,
    assignment: ArrayLike,
    replicas: Sequence[ReplicaProcess],
    prompts: Sequence[Sequence[int]],
    *,
    policy: str = "",
    repeat: int = 0,
    study: str = "",
    timeout_s: float = RUN_TIMEOUT_S,
) -> Run:
    """Run every response on its replica, all submitted at once in group-major order.

    Args:
        lengths: [N, n] whole tokens, at least 1.
        assignment: [N, n] indices into ``replicas``.
        prompts: [N] token ids of each group.

    Raises:
        UserError: a worker that dies or is not done in time.
        ValueError: shapes that differ, a length below 1, or a replica that is not there.
    """
    tokens, where = np.asarray(lengths), np.asarray(assignment)
    if tokens.ndim != 2 or tokens.shape != where.shape or len(prompts) != len(tokens):
        raise ValueError(
            f"lengths, assignment and prompts must agree, got {tokens.shape}, {where.shape}, {len(prompts)}"
        )
    if tokens.size == 0 or tokens.min() < 1 or where.min() < 0 or where.max() >= len(replicas):
        raise ValueError(f"lengths must be at least 1 and replicas in [0, {len(replicas)})")
    cells = [list(zip(*np.nonzero(where == rank), strict=True)) for rank in range(len(replicas))]
    loads = [[(prompts[g], int(tokens[g, s])) for g, s in mine] for mine in cells]
    done = run_together(replicas, loads, timeout_s)
    first, finish = np.zeros(tokens.shape), np.zeros(tokens.shape)
    for mine, run in zip(cells, done, strict=True):
        for (g, s), begin, end in zip(mine, run.first, run.finish, strict=True):
            first[g, s], finish[g, s] = begin, end
    busiest = max(done, key=lambda run: run.seconds)
    return Run(
        policy=policy,
        repeat=repeat,
        makespan_s=busiest.seconds,
        replica_s=tuple(run.seconds for run in done),
        first_s=_rows(first),
        finish_s=_rows(finish),
        preemptions=sum(run.preemptions for run in done),
        cpu_share=busiest.cpu_s / busiest.seconds,
        study=study,
    )


def study(
    lengths: ArrayLike,
    assignments: Mapping[str, ArrayLike],
    replicas: Sequence[ReplicaProcess],
    *,
    repeats: int,
    prompt_tokens: int,
    seed: int = 0,
    log: Path | None = None,
    label: str = "",
    timeouts_s: Mapping[str, float] | None = None,
    tick: Callable[[str, int, int], None] | None = None,
) -> list[Run]:
    """Every placement, ``repeats`` times, in rotating order, after a warm-up.

    Args:
        lengths: [N, n] tokens.
        assignments: placement [N, n] by the policy's label.
        log: JSON lines, one a run; runs of this study in it are not done again.
        label: told apart in the log beside the load itself: model, machine, engine.
        timeouts_s: deadline of a run by policy.
        tick: told what runs, how many runs are done and how many there are.

    Returns:
        All runs of the study, those found in the log included.
    """
    tokens = np.asarray(lengths)
    key = study_key(tokens, prompt_tokens, seed, label)
    marks = {policy: f"{key}-{_digest(np.asarray(where))}" for policy, where in assignments.items()}
    known = {(run.study, run.repeat): run for run in read_log(log)} if log else {}
    prompts = group_prompts(len(tokens), prompt_tokens, replicas[0].facts["vocab_size"], seed)
    policies, warm = list(assignments), False
    runs: list[Run] = []
    total = len(policies) * repeats
    for repeat in range(repeats):
        shift = repeat % len(policies)
        for policy in policies[shift:] + policies[:shift]:
            if tick:
                tick(policy, len(runs), total)
            run = known.get((marks[policy], repeat))
            if run is None:
                if not warm:
                    warm_up(replicas, max(largest_batch(where) for where in assignments.values()))
                    warm = True
                deadline = (timeouts_s or {}).get(policy, RUN_TIMEOUT_S)
                mark = {"policy": policy, "repeat": repeat, "study": marks[policy]}
                run = replay(tokens, assignments[policy], replicas, prompts, timeout_s=deadline, **mark)  # type: ignore[arg-type]
                if log:
                    append_log(log, run)
            runs.append(run)
    if tick:
        tick("done", total, total)
    return runs


def warm_up(replicas: Sequence[ReplicaProcess], largest: int) -> None:
    """Let every replica decode once at each batch size from ``largest`` (at most its max_num_seqs) down to 1.

    The first step at a batch size takes 2 to 5 ms longer on the CPU, where oneDNN prepares its kernels for the shape:
    5 % of a short replay on a small model.
    """
    count = min(largest, replicas[0].facts["max_num_seqs"])
    vocabulary = replicas[0].facts["vocab_size"]
    rng = np.random.default_rng(0)
    load = [(random_prompt(rng, SHORT_PROMPT, vocabulary), length) for length in range(1, count + 1)]
    run_together(replicas, [load] * len(replicas))


def study_key(lengths: NDArray[Any], prompt_tokens: int, seed: int, label: str) -> str:
    """Names a load and where it ran, as long as nothing about it changes."""
    return hashlib.sha256(f"{_digest(lengths)} {prompt_tokens} {seed} {label}".encode()).hexdigest()[:12]


def verdicts(runs: Iterable[Run], predicted: Mapping[str, float]) -> list[Verdict]:
    """One for each policy of ``predicted`` (makespan in seconds) that was run, in that order."""
    times: dict[str, list[float]] = {policy: [] for policy in predicted}
    for run in runs:
        times[run.policy].append(run.makespan_s)
    return [
        Verdict(policy, float(np.median(values)), min(values), max(values), float(predicted[policy]), len(values))
        for policy, values in times.items()
        if values
    ]


def ranking(results: Sequence[Verdict], tie: float = TIE) -> tuple[int, int]:
    """(pairs in the right order, pairs) of those policies whose measured makespans differ by more than ``tie``."""
    right = pairs = 0
    for i, a in enumerate(results):
        for b in results[i + 1 :]:
            fast, slow = sorted((a, b), key=lambda v: v.measured_s)
            if slow.measured_s > (1 + tie) * fast.measured_s:
                pairs += 1
                right += fast.predicted_s < slow.predicted_s
    return right, pairs


def append_log(path: Path, run: Run) -> None:
    """Add a run to a file of JSON lines.

    Raises:
        UserError: a file that cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * bool(cut) + json.dumps(asdict(run)) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name a file that can.") from None


def read_log(path: Path) -> list[Run]:
    """The runs of a file of JSON lines; none if it is not there. A last line cut short is left out."""
    if not path.exists():
        return []
    runs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            data = json.loads(line)
            data["replica_s"] = tuple(data["replica_s"])
            for name in ("first_s", "finish_s"):
                data[name] = tuple(map(tuple, data[name]))
            runs.append(Run(**data))
        except (ValueError, TypeError, KeyError):
            continue
    return runs


def _rows(array: NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in array.tolist())


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(
        np.ascontiguousarray(array, dtype=np.int64).tobytes() + repr(array.shape).encode()
    ).hexdigest()[:8]
