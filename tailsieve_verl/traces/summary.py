"""What a trace says about its tail: how long it is, and how well the prompt tells it (paper Appendix B)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.tails import VarianceShares, tail_auc, variance_shares
from tailsieve_verl.traces.trace import Cells, Trace

#: With fewer prompts a tail of one tenth is not even one prompt.
MIN_PROMPTS = 10
_SPLITS = 20


@dataclass(frozen=True)
class CheckpointAuc:
    """How well the longest tenth of the prompts at `source` ranks them at `target`; `prompts` were at both."""

    source: str
    target: str
    auc: float
    prompts: int


@dataclass(frozen=True)
class TraceSummary:
    """Statistics of a trace; lengths in tokens. None where the trace cannot tell.

    Attributes:
        name: the trace's.
        responses, prompts, checkpoints: how many of each.
        samples: responses per prompt and checkpoint, median.
        mean, p50, p90, p99: of all lengths; percentiles by linear interpolation.
        max: longest response.
        tail_ratio: P90 / P50.
        truncated: share of responses that ran into their limit.
        icc: share of the variance that is the prompt's, freed of the bias of few samples: ICC(1), mean over the
            checkpoints, each with the weight of its responses.
        shares: two-factor shares of raw lengths (Appendix B), over `shares_prompts` prompts with `shares_repeats`
            samples each at every checkpoint. Unlike `icc` they count chance as the prompt's where samples are few.
        half_auc: label the longest tenth of the prompts by one half of their samples, rank all by the other half: Pr(a
            labelled one ranks above another). Mean over 20 random splits and the checkpoints; 0.5 is chance.
        checkpoint_auc: the same from each checkpoint to the next, by means over all samples.
        dispersion_mean, dispersion_max: standard deviation over mean inside a prompt group (one prompt at one
            checkpoint, at least 2 samples): mean over the groups, and largest.
        remarks: what to know when reading the numbers, a sentence each.
    """

    name: str
    responses: int
    prompts: int
    checkpoints: int
    samples: float
    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    tail_ratio: float
    truncated: float
    icc: float | None
    shares: VarianceShares | None
    shares_prompts: int
    shares_repeats: int
    half_auc: float | None
    checkpoint_auc: tuple[CheckpointAuc, ...]
    dispersion_mean: float | None
    dispersion_max: float | None
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        return asdict(self)


def summarise(trace: Trace) -> TraceSummary:
    """Statistics of a trace.

    Where no prompt has two samples at one checkpoint but there are several checkpoints, those count as its samples
    for `icc`, `half_auc` and the dispersion; a remark says so.
    """
    cells = trace.cells()
    remarks = list(trace.remarks)
    state = trace.checkpoint
    if cells.samples.max() < 2 and len(trace.checkpoints) > 1:
        state = np.zeros_like(state)
        remarks.append("one sample per prompt and checkpoint: its checkpoints count as a prompt's samples.")
    elif cells.samples.max() < 2:
        remarks.append("one sample per prompt: how much of the tail is the prompt's cannot be told.")
    order = np.argsort(state, kind="stable")
    where = np.cumsum(np.bincount(state))[:-1]
    parts = list(zip(np.split(trace.tokens[order], where), np.split(trace.prompt[order], where), strict=True))
    p50, p90, p99 = (float(p) for p in np.percentile(trace.tokens, [50, 90, 99]))
    shares, shares_prompts, shares_repeats = _shares(trace, cells)
    dispersion = np.concatenate([_dispersion(tokens, prompt) for tokens, prompt in parts])
    return TraceSummary(
        name=trace.name,
        responses=len(trace),
        prompts=trace.prompts,
        checkpoints=len(trace.checkpoints),
        samples=float(np.median(cells.samples)),
        mean=float(trace.tokens.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        max=int(trace.tokens.max()),
        tail_ratio=p90 / p50,
        truncated=float(trace.truncated.mean()),
        icc=_weighted([(intraclass_correlation(*part), part[0].size) for part in parts]),
        shares=shares,
        shares_prompts=shares_prompts,
        shares_repeats=shares_repeats,
        half_auc=_weighted([(split_half_auc(*part), np.unique(part[1]).size) for part in parts]),
        checkpoint_auc=_across(trace.checkpoints, cells),
        dispersion_mean=float(dispersion.mean()) if dispersion.size else None,
        dispersion_max=float(dispersion.max()) if dispersion.size else None,
        remarks=tuple(remarks),
    )


def intraclass_correlation(tokens: ArrayLike, group: ArrayLike) -> float | None:
    """ICC(1), the share of the variance between groups: (MSB - MSW) / (MSB + (k - 1) MSW).

    MSB and MSW are the mean squares between and within groups, k = (K - sum n_i^2 / K) / (I - 1) the size of a group.

    Args:
        tokens: lengths, [K].
        group: label of each length's group, [K].

    Returns:
        At most 1, a little below 0 by chance where groups do not differ; None without two groups, without two samples
        in any, or where nothing varies.
    """
    values = np.asarray(tokens, dtype=np.float64)
    index, size, mean = _groups(values, group)
    total, groups = values.size, size.size
    if groups < 2 or total == groups:
        return None
    between = float(np.sum(size * (mean - values.mean()) ** 2) / (groups - 1))
    within = float(np.sum((values - mean[index]) ** 2) / (total - groups))
    k = (total - float(np.sum(size**2)) / total) / (groups - 1)
    scale = between + (k - 1) * within
    return (between - within) / scale if scale > 0 else None


def split_half_auc(tokens: ArrayLike, group: ArrayLike, splits: int = _SPLITS, seed: int = 0) -> float | None:
    """Tail AUC from one random half of each group's samples to the other, mean over `splits` splits.

    Of an odd number the half that labels has one less. Groups of one sample are left out.

    Args:
        tokens: lengths, [K].
        group: label of each length's group, [K].

    Returns:
        In 0..1; None with fewer than `MIN_PROMPTS` groups of at least 2.
    """
    values = np.asarray(tokens, dtype=np.float64)
    index, size, _ = _groups(values, group)
    keep = size[index] >= 2
    if np.count_nonzero(size >= 2) < MIN_PROMPTS:
        return None
    values = values[keep]
    index, size, _ = _groups(values, index[keep])
    place = np.arange(values.size) - np.repeat(np.cumsum(size) - size, size)
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(splits):
        order = np.argsort(index + rng.random(values.size))
        group_of, mixed = index[order], values[order]
        first = place < (size // 2)[group_of]
        half_a, half_b = (np.bincount(group_of[h], mixed[h]) / np.bincount(group_of[h]) for h in (first, ~first))
        results.append(tail_auc(half_a, half_b))
    return float(np.mean(results))


def _groups(
    values: NDArray[np.float64], group: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Dense group index of each value, and size and mean of each group."""
    _, index = np.unique(np.asarray(group), return_inverse=True)
    size = np.bincount(index)
    return index, size, np.bincount(index, values) / size


def _dispersion(tokens: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.float64]:
    values = tokens.astype(np.float64)
    index, size, mean = _groups(values, group)
    squares = np.bincount(index, (values - mean[index]) ** 2)
    many = size >= 2
    return np.sqrt(squares[many] / (size[many] - 1)) / mean[many]


def _weighted(values: list[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    if not known:
        return None
    return float(np.average([value for value, _ in known], weights=[weight for _, weight in known]))


def _shares(trace: Trace, cells: Cells) -> tuple[VarianceShares | None, int, int]:
    """Shares over the prompts with the usual number of samples at every checkpoint."""
    enough = cells.samples >= 2
    states = np.bincount(cells.prompt[enough], minlength=trace.prompts)
    everywhere = states == len(trace.checkpoints)
    if np.count_nonzero(everywhere) < 2:
        return None, 0, 0
    samples = cells.samples[everywhere[cells.prompt]].reshape(-1, len(trace.checkpoints)).min(axis=1)
    repeats = int(np.argmax(np.bincount(samples)))
    cube = trace.cube(repeats)
    if cube.shape[0] < 2 or cube.min() == cube.max():
        return None, 0, 0
    return variance_shares(cube), cube.shape[0], repeats


def _across(labels: tuple[str, ...], cells: Cells) -> tuple[CheckpointAuc, ...]:
    order = np.argsort(cells.checkpoint, kind="stable")
    where = np.cumsum(np.bincount(cells.checkpoint, minlength=len(labels)))[:-1]
    prompts, means = np.split(cells.prompt[order], where), np.split(cells.mean[order], where)
    result = []
    for s in range(len(labels) - 1):
        both, at_source, at_target = np.intersect1d(prompts[s], prompts[s + 1], True, return_indices=True)
        if both.size >= MIN_PROMPTS:
            auc = tail_auc(means[s][at_source], means[s + 1][at_target])
            result.append(CheckpointAuc(labels[s], labels[s + 1], auc, int(both.size)))
    return tuple(result)
