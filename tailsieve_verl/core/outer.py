"""The outer loop's arithmetic: candidate splits near the present one, the feasibility test, marginal capacities.

Everything here is read off a `Predictor`; the controller decides. Symbols as in the paper: alpha = m/R, p = q/N,

    gamma    elasticity of a pool's time to its concurrency per replica        (replicas moved, load kept)
    lambda   relative change of a pool's time per unit of p                    (groups moved, replicas kept)
    M_tail = gamma_tail / (alpha lambda_tail),  M_bulk = gamma_bulk / ((1 - alpha) lambda_bulk)

by central differences on whole groups and replicas. The pool with the larger M gains more from a replica.
"""

from __future__ import annotations

import math

import numpy as np

from tailsieve_verl.core.plan import Candidate
from tailsieve_verl.core.predict import Floats, Prediction, Predictor

RADIUS = 2  # replicas that a candidate may be away from the present split (paper C.2)
EVERY_M_UP_TO = 16  # replicas: all splits are looked at when leaving uniform routing; with more, a coarse grid first
GRID = 12  # splits of that coarse grid, spaced geometrically
DIFFERENCE = 1 / 16  # of q: groups moved to either side for lambda, at least one


def candidates(
    predictor: Predictor, present: Prediction, *, reoptimise: bool, far: bool
) -> list[tuple[Prediction, Candidate]]:
    """Splits within `RADIUS` of the present one, and uniform, with their predictions.

    Args:
        reoptimise: give each m its own best q; otherwise keep the present q, as the paper's C.2 does.
        far: add the best split beyond the radius. The makespan has local minima in m that a radius of two cannot
            leave: a single tail group on a single replica is a frequent one.
    """
    deadline = present.mean_s
    low, high = max(1, present.m - RADIUS), min(predictor.largest_m, present.m + RADIUS)
    splits = list(range(low, high + 1))
    if far:
        best = best_split(predictor, present.m)
        if best is not None and not low <= best.m <= high:
            splits.append(best.m)
    found = []
    for m in splits:
        if m == present.m:
            prediction, gained, lost, feasible = present, 0.0, 0.0, True  # its q is the inner loop's affair
        else:
            prediction = predictor.best_q(m) if reoptimise else predictor.split(present.q, m)
            gained, lost = _exchange(predictor, present.m, m, deadline)
            # With its own q a candidate that meets the deadline is feasible by definition: that q is the cutoff.
            feasible = prediction.mean_s <= deadline if reoptimise else gained >= lost
        found.append((prediction, Candidate(prediction.q, m, prediction.mean_s, feasible, gained, lost)))
    uniform = predictor.uniform()
    found.append((uniform, Candidate(0, 0, uniform.mean_s)))
    return found


def best_split(predictor: Predictor, near: int = 1) -> Prediction | None:
    """The split with the least predicted makespan over all m, each with its own q; ``None`` if there is no split.

    Args:
        near: an m that is likely to be good. It saves time, because others are dropped once they are surely worse.
    """
    most = predictor.largest_m
    if most < 1 or predictor.n_groups < 2:
        return None
    if most <= EVERY_M_UP_TO:
        best = predictor.best_q(min(near, most))
        for m in sorted(range(1, most + 1), key=lambda m: abs(m - near)):
            if not predictor.slower(m, best.mean_s):
                best = min(best, predictor.best_q(m), key=lambda p: p.mean_s)
        return best
    grid = np.unique(np.geomspace(1, most, GRID).round().astype(int)).tolist()
    best = min((predictor.best_q(m) for m in grid), key=lambda p: p.mean_s)
    stride = max(1, best.m // 4)
    while True:
        beside = [m for m in (best.m - stride, best.m + stride) if 1 <= m <= most]
        other = min((predictor.best_q(m) for m in beside), key=lambda p: p.mean_s)
        if other.mean_s < best.mean_s:
            best = other
        elif stride == 1:
            return best
        else:
            stride //= 2


def marginal_capacity(predictor: Predictor, q: int, m: int) -> tuple[float | None, float | None]:
    """M_tail and M_bulk at a split; ``None`` where a difference vanishes (one group, one replica, equal times)."""
    n, replicas = predictor.n_groups, predictor.replicas
    move = max(1, round(q * DIFFERENCE))
    q_low, q_high = max(1, q - move), min(n - 1, q + move)
    m_low, m_high = max(1, m - 1), min(replicas - 1, m + 1)
    if q_low == q_high or m_low == m_high:
        return None, None
    share = (q_high - q_low) / n
    lambda_tail = _log_ratio(predictor.tail(q_high, m), predictor.tail(q_low, m)) / share
    lambda_bulk = _log_ratio(predictor.bulk(q_low, m), predictor.bulk(q_high, m)) / share
    gamma_tail = _log_ratio(predictor.tail(q, m_low), predictor.tail(q, m_high)) / math.log(m_high / m_low)
    gamma_bulk = _log_ratio(predictor.bulk(q, m_high), predictor.bulk(q, m_low))
    gamma_bulk /= math.log((replicas - m_low) / (replicas - m_high))
    alpha = m / replicas
    return (
        gamma_tail / (alpha * lambda_tail) if lambda_tail > 0 else None,
        gamma_bulk / ((1.0 - alpha) * lambda_bulk) if lambda_bulk > 0 else None,
    )


def _exchange(predictor: Predictor, m_old: int, m_new: int, deadline_s: float) -> tuple[float, float]:
    """Groups that the growing pool gains and the shrinking one loses by the deadline (G and D of C.2)."""
    tail = predictor.most_tail(m_new, deadline_s) - predictor.most_tail(m_old, deadline_s)
    bulk = predictor.bulk_done(m_new, deadline_s) - predictor.bulk_done(m_old, deadline_s)
    return (float(tail), -bulk) if m_new > m_old else (bulk, float(-tail))


def _log_ratio(over: Floats, under: Floats) -> float:
    return math.log(max(float(over.mean()), 1e-300) / max(float(under.mean()), 1e-300))
