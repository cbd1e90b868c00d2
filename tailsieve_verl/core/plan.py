"""The plain records that cross the line between the core and the shell.

Invariants
    * Everything here is frozen data without behaviour beyond derived counts; nothing refers to verl, ray or a clock.
    * A ``StepPlan`` speaks of counts only. Which prompts fill the counts is the ledger's business.
    * ``counts.batch``, tail + residual + placed + fresh_needed, is the size of the update batch: N, unless the stream
      is short.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Granularity = Literal["group", "request"]
"""How a pool deals its work: whole prompt groups, or one response (request) at a time."""

Route = Literal["tail", "residual", "placed", "fresh"]
"""Why a group runs: isolated in the tail pool, carried but drained in the bulk pool, fresh but placed in the tail pool
(by its prompt's history), or fresh in the bulk pool."""

ROUTES: tuple[Route, ...] = ("tail", "residual", "placed", "fresh")
#: Routes of the tail pool. A group on any route but ``fresh`` is never cut.
TAIL_ROUTES: tuple[Route, ...] = ("tail", "placed")

GroupStatus = Literal["trained", "cut", "failed"]


@dataclass(frozen=True)
class LaunchCounts:
    """How many prompt groups a step launches on each route (the table of docs/accounting.md).

    Attributes:
        tail: carried groups regenerated in the tail pool; they always finish.
        residual: carried groups drained in the bulk pool; they always finish.
        fresh: groups drawn from the prompt stream for the bulk pool; the slowest ones are cut.
        fresh_needed: how many of those complete the batch.
        placed: groups drawn from the stream that run in the tail pool at once; they always finish. F is placed + fresh.
    """

    tail: int
    residual: int
    fresh: int
    fresh_needed: int
    placed: int = 0

    @property
    def left_over(self) -> int:
        """Fresh groups cut at the end of the step: the next step's carried set, if nothing fails."""
        return self.fresh - self.fresh_needed

    @property
    def batch(self) -> int:
        """Groups in the update batch."""
        return self.tail + self.residual + self.placed + self.fresh_needed


@dataclass(frozen=True)
class StepPlan:
    """What one rollout step is to do.

    Attributes:
        step: training step, from 1.
        n_groups: N, groups in an update batch.
        replicas: R.
        q: isolation size aimed at: the groups this step leaves over for the next one's tail pool.
        m: replicas of the tail pool in this step; 0 when every replica serves the bulk pool.
        counts: groups by route.
        tail_placement, bulk_placement: how each pool deals its work over its replicas.
        reason: why, in words.
        by_history: the policy places each request itself, by its prompt's history; else the pools deal them.
    """

    step: int
    n_groups: int
    replicas: int
    q: int
    m: int
    counts: LaunchCounts
    tail_placement: Granularity = "request"
    bulk_placement: Granularity = "request"
    reason: str = ""
    by_history: bool = False

    @property
    def tail_replicas(self) -> range:
        """The tail pool takes the top ranks, so that a replica changes pool only when ``m`` does."""
        return range(self.replicas - self.m, self.replicas)

    @property
    def bulk_replicas(self) -> range:
        return range(0, self.replicas - self.m)


@dataclass(frozen=True)
class GroupRecord:
    """What became of one launched group, in the router's clock (seconds since the step was opened).

    Attributes:
        prompt: serial number of the prompt in the stream.
        key: stable identity of the prompt across epochs and resumes.
        route: why it ran.
        status: trained, cut, or failed.
        replicas: replica of each of the n sessions (-1: never dispatched).
        started_s, finished_s: per session, first dispatch and last token; ``None`` where it did not happen.
        tokens: per session, tokens generated.
        complete: per session, False where ``tokens`` is right-censored by the cut.
        generated_s: when the whole group was generated; ``None`` if it was not.
    """

    prompt: int
    key: str
    route: Route
    status: GroupStatus
    replicas: tuple[int, ...]
    started_s: tuple[float | None, ...]
    finished_s: tuple[float | None, ...]
    tokens: tuple[int, ...]
    complete: tuple[bool, ...]
    generated_s: float | None


@dataclass(frozen=True)
class StepObservation:
    """Raw facts of a finished step; all durations in seconds of one monotonic clock.

    ``t_tail_s`` and ``t_bulk_s`` are the times of the last tail completion and of the last needed bulk completion
    after the step was opened (``None`` for an empty pool). ``abort_s`` is what the abort added after both were done,
    ``dispatch_us`` the mean time of a routing decision in microseconds. ``depths`` names the table of draft depths that
    each replica followed, [R]; empty where all followed the same, or none.
    """

    plan: StepPlan
    t_tail_s: float | None
    t_bulk_s: float | None
    cut_s: float | None
    abort_s: float
    groups: tuple[GroupRecord, ...]
    failed: int = 0
    retried: int = 0
    dispatch_us: float = 0.0
    depths: tuple[str, ...] = ()

    @property
    def generation_s(self) -> float:
        """Makespan of the step: the slower of the two pools."""
        return max(self.t_tail_s or 0.0, self.t_bulk_s or 0.0)


@dataclass(frozen=True)
class Candidate:
    """A split that the outer loop looked at.

    Attributes:
        q, m: the split; (0, 0) is uniform.
        predicted_s: its predicted makespan.
        feasible: whether the pool that gains replicas takes up all that the other one loses (paper C.2).
        gained, lost: the two sides of that test, in groups, by the deadline predicted for the present split.
    """

    q: int
    m: int
    predicted_s: float
    feasible: bool = True
    gained: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What the policy made of a step, with its intermediates; quantities a policy does not use stay ``None``.

    Attributes:
        step: the step that was observed.
        q, m: the split decided on for the next step.
        settled: whether the step ran the steady load of its split, so that its times count.
        switched: whether q or m changes.
        reason: why, in words.
        q_star: balance point of the inner loop, groups.
        rate_tail, rate_bulk: smoothed rates, groups per second (paper 3.2).
        velocity: damped momentum of q, groups.
        candidates: splits that were compared, with their predicted makespans.
        m_tail, m_bulk: marginal capacities (paper 3.2), a hint at which pool deserves a replica; reported, not obeyed.
        predicted_s: makespan predicted for this step before it ran; ``prediction_error`` is measured over it, minus 1.
        predicted_uniform_s: makespan predicted for uniform routing of the same load.
        lower_bound_s: makespan that no placement of the responses of this batch could beat.
        confidence: 0..1, how far the decode curve is known.
        extra: further numbers for the metrics, by name.
    """

    step: int
    q: int
    m: int
    settled: bool
    switched: bool
    reason: str
    q_star: float | None = None
    rate_tail: float | None = None
    rate_bulk: float | None = None
    velocity: float | None = None
    candidates: tuple[Candidate, ...] = ()
    m_tail: float | None = None
    m_bulk: float | None = None
    predicted_s: float | None = None
    prediction_error: float | None = None
    predicted_uniform_s: float | None = None
    lower_bound_s: float | None = None
    confidence: float | None = None
    extra: dict[str, float] = field(default_factory=dict)
