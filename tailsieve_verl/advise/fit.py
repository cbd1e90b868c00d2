"""What a dump tells of a run's lengths: prompt groups as they were generated, and how far the prompt decides.

    Trace (one row a response) --fit_workload--> WorkloadFit (one row a prompt group) --describe--> Lengths (numbers)

Everything is counted inside training steps: a policy whose answers grow from step to step does not look like prompts
that differ. Pure: arrays in, frozen arrays and numbers out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tailsieve_verl.core.tails import tail_auc
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.summary import MIN_PROMPTS, split_half_auc
from tailsieve_verl.traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The longest tenth is what the paper calls the tail (Appendix B).
TAIL = 0.1
#: A step with fewer or more groups than this share of the usual number did not run as the others.
_SAME = 0.9


@dataclass(frozen=True, eq=False)
class WorkloadFit:
    """The complete prompt groups of a dump, steps in order.

    Attributes:
        lengths: tokens of each response, [G, n].
        prompt: index of each group's prompt, [G], dense.
        step: training step of each group, [G].
        prompt_tokens: prompt length of each group, [G]; 0 where unknown.
        n_groups: N, prompt groups in a step.
        cap: response limit in tokens; None if unknown.
        left_out: responses that are in no complete group.
        remarks: what a reader of the numbers should know, a sentence each.
    """

    lengths: Ints
    prompt: Ints
    step: Ints
    prompt_tokens: Ints
    n_groups: int
    cap: int | None
    left_out: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Responses in a group."""
        return int(self.lengths.shape[1])

    @property
    def steps(self) -> int:
        """Recorded training steps."""
        return int(np.unique(self.step).size)


@dataclass(frozen=True)
class Lengths:
    """A dump in numbers; lengths in tokens, None where the dump cannot tell.

    Attributes:
        responses, groups, steps, prompts: how many were recorded in complete groups.
        n_groups, n: N and n of the run.
        mean, p50, p90, p99, longest: of all lengths.
        stretch: the longest response of a step over its median one, mean over the steps.
        cap: response limit; truncated: share of responses that reached it.
        icc: share of the variance inside a step that is the prompt's (ICC(1)); 0 is chance, 1 the prompt alone.
        tail_icc: the same for being among the longest tenth.
        half_auc: half of a group's responses find the longest tenth of the groups by the other half; 0.5 is chance.
        epoch_auc: a prompt's group finds the longest tenth an epoch later, over `repeated` prompts.
    """

    responses: int
    groups: int
    steps: int
    prompts: int
    n_groups: int
    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: int
    stretch: float
    cap: int | None
    truncated: float | None
    icc: float | None
    tail_icc: float | None
    half_auc: float | None
    epoch_auc: float | None
    repeated: int


def fit_workload(trace: Trace, *, n: int | None = None, n_groups: int | None = None) -> WorkloadFit:
    """Group a run's responses; n and N are the usual counts in the trace unless given.

    Rows of one prompt in one step are taken in their order, n at a time: a prompt drawn twice in a step is two groups.

    Raises:
        UserError: fewer than 2 responses a group, or no complete group.
    """
    step = trace.checkpoint if trace.step is None else trace.step
    order = np.lexsort((trace.prompt, step))  # stable: rows of a cell keep their order
    cells, counts = _runs(step[order], trace.prompt[order])
    if n is None:
        sizes, often = np.unique(counts, return_counts=True)
        n = int(sizes[np.argmax(often * sizes)])
    if n < 2:
        raise UserError(
            f"{trace.name} has {n} response a prompt group: whether a tail is the prompt's shows only from 2 "
            "(actor_rollout_ref.rollout.n); a run with n=1 has no groups to isolate."
        )
    if counts.max() < n:
        raise UserError(f"{trace.name} has no group of {n} responses, at most {counts.max()}: give another --rollouts.")
    whole = counts // n
    rows = np.concatenate([order[a : a + k * n] for a, k in zip(cells.tolist(), whole.tolist(), strict=True)])
    rows = rows.reshape(-1, n)
    first = rows[:, 0]
    _, prompt = np.unique(trace.prompt[first], return_inverse=True)
    per_step = np.bincount(np.unique(step, return_inverse=True)[1]) / n
    usual = round(float(np.median(per_step)))
    remarks = list(trace.remarks)
    left_out = len(trace) - rows.size
    if left_out:
        remarks.append(f"{left_out} of {len(trace)} responses are in no complete group of {n} and are left out.")
    odd = int(np.sum(per_step < _SAME * usual))
    if odd and n_groups is None:
        remarks.append(f"{odd} of {per_step.size} steps have fewer than the usual {usual} groups.")
    tokens = np.zeros(rows.shape[0], np.int64) if trace.prompt_tokens is None else trace.prompt_tokens[first]
    return WorkloadFit(
        lengths=trace.tokens[rows],
        prompt=prompt.astype(np.int64),
        step=step[first],
        prompt_tokens=tokens,
        n_groups=max(usual, 1) if n_groups is None else n_groups,
        cap=trace.cap,
        left_out=left_out,
        remarks=tuple(remarks),
    )


def halved(fit: WorkloadFit, seed: int) -> WorkloadFit:
    """A random half of the prompts with all their groups; of a single prompt, all of it.

    Figures of random halves scatter about as those of dumps like the whole one would (delete-half jackknife). The same
    prompts drawn with replacement would do for a mean, but not for a step's time, which hangs on the longest few: twice
    in the sample they are no longer than once.
    """
    rng = np.random.default_rng((seed, 0xB007))
    prompts = int(fit.prompt.max()) + 1
    kept = np.isin(fit.prompt, rng.permutation(prompts)[: max(prompts // 2, 1)])
    _, prompt = np.unique(fit.prompt[kept], return_inverse=True)
    return replace(
        fit,
        lengths=fit.lengths[kept],
        prompt=prompt.astype(np.int64),
        step=fit.step[kept],
        prompt_tokens=fit.prompt_tokens[kept],
    )


def describe(fit: WorkloadFit) -> Lengths:
    """The numbers of a dump."""
    tokens = fit.lengths
    p50, p90, p99 = (float(p) for p in np.percentile(tokens, [50, 90, 99]))
    stretch = [tokens[fit.step == s].max() / np.median(tokens[fit.step == s]) for s in np.unique(fit.step)]
    from_tail = np.quantile(tokens, 1 - TAIL, method="higher")
    half = split_half_auc(tokens.ravel(), np.repeat(np.arange(tokens.shape[0]), fit.n))
    epoch_auc, repeated = _across_epochs(fit)
    return Lengths(
        responses=int(tokens.size),
        groups=int(tokens.shape[0]),
        steps=fit.steps,
        prompts=int(fit.prompt.max()) + 1,
        n_groups=fit.n_groups,
        n=fit.n,
        mean=float(tokens.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        longest=int(tokens.max()),
        stretch=float(np.mean(stretch)),
        cap=fit.cap,
        truncated=None if fit.cap is None else float(np.mean(tokens >= fit.cap)),
        icc=prompt_share(tokens, fit.step),
        tail_icc=prompt_share(tokens >= from_tail, fit.step),
        half_auc=half,
        epoch_auc=epoch_auc,
        repeated=repeated,
    )


def prompt_share(values: NDArray, step: Ints) -> float | None:
    """ICC(1) of values [G, n] inside steps [G]: (MSB - MSW) / (MSB + (n - 1) MSW), as 0..1.

    MSB compares the groups of a step with that step's mean, so a drift over the steps counts as neither.

    Returns:
        None where nothing varies, or no step has two groups.
    """
    between, within = mean_squares(values, step)
    n = values.shape[1]
    scale = between + (n - 1) * within
    return min(max((between - within) / scale, 0.0), 1.0) if scale > 0 else None


def mean_squares(values: NDArray, step: Ints) -> tuple[float, float]:
    """MSB and MSW of values [G, n] inside steps [G]; MSB is 0 where no step has two groups."""
    x = np.asarray(values, dtype=np.float64)
    group = x.mean(axis=1)
    _, index = np.unique(step, return_inverse=True)
    size = np.bincount(index)
    mean = (np.bincount(index, group) / size)[index]
    free = group.size - size.size
    between = x.shape[1] * float(np.sum((group - mean) ** 2)) / free if free else 0.0
    within = float(np.sum((x - group[:, None]) ** 2)) / (x.size - group.size)
    return between, within


def _across_epochs(fit: WorkloadFit) -> tuple[float | None, int]:
    """Tail AUC from a prompt's first group to its next one at a later step, and over how many prompts."""
    means = fit.lengths.mean(axis=1)
    order = np.lexsort((fit.step, fit.prompt))
    source, target = [], []
    for at in np.split(order, np.cumsum(np.bincount(fit.prompt))[:-1]):
        later = at[fit.step[at] > fit.step[at[0]]]
        if later.size:
            source.append(means[at[0]])
            target.append(means[later[0]])
    if len(source) < MIN_PROMPTS:
        return None, len(source)
    return tail_auc(source, target, TAIL), len(source)


def _runs(step: Ints, prompt: Ints) -> tuple[Ints, Ints]:
    """Start and length of each run of equal (step, prompt)."""
    new = np.append(True, (np.diff(step) != 0) | (np.diff(prompt) != 0))
    starts = np.flatnonzero(new)
    return starts, np.diff(np.append(starts, step.size))
