"""Lower bounds of the makespan that hold for every assignment of requests to R identical replicas.

Setting. Requests in descending length L_1 >= ... >= L_n, all admitted at time 0. Replica r has b_r(x) requests longer
than x (position x >= 0), so sum_r b_r(x) = N(x), the number of all requests longer than x, and T_r = int tau(b_r(x)) dx
(third form in `decode`). N(x) = k on a stretch of L_k - L_{k+1} positions. Replace tau by its largest non-decreasing
minorant on 1..n, tau'(b) = min over b <= b' <= n of tau(b'): T_r can only fall, and curves with dips are covered. From
here tau is non-decreasing with tau(0) = 0; nothing else is assumed, least of all concavity.

Monotone. If requests on a replica are dropped or shortened, b_r falls everywhere, and T_r with it.

Pigeonhole. If the (k-1) d + 1 longest requests lie on d replicas, one of these has k of them. Drop the rest there and
shorten these k to the k shortest of that set: the makespan is at least the replica time of those k. P(d, s) is the
largest such bound within the s longest requests. At d = R it holds for every assignment; k = 1 is the longest request
alone.

Hosts. Let the s longest requests lie on exactly d replicas, 1 <= d <= min(s, R), the hosts. At positions x < L_s every
host has b_r(x) >= 1; where N(x) <= s, only hosts are busy. For any weight w >= 0 the makespan is at least the mean of
the replica times weighted with w for hosts and 1 for the others, and that mean can be bounded position by position:

    (w d + R - d) max_r T_r >= w sum_hosts T_r + sum_others T_r
                            >= sum_{k < s} w F_d(k) (L_k - L_{k+1}) + w B_d(s) (L_s - L_{s+1})
                               + sum_{k > s} (L_k - L_{k+1}) min over j >= d of [w B_d(j) + F_{R-d}(k - j)],

where F_d(k) is the least tau(b_1) + ... + tau(b_d) with sum b = k, and B_d(k) the same with every b >= 1 (both by
(min, +) convolution). With W(d, s) the largest of these over some weights,

    makespan >= max over s of min over d of max(P(d, s), W(d, s)).

Few hosts means that long requests share a replica (P is large); many hosts, that many replicas are held busy at low
concurrency (W is large). s = 1, w = 1 is plain aggregate capacity, s = n plain pigeonhole, and R = 1 the replica time.

Long inputs. By monotony the hosts bound of the longest requests alone holds. For all of them, in O(n): with
rho = min over 1 <= b <= n of tau(b) / b, the least time per token and request, the others take at least rho (k - j) in
the sum above; s = 1 then gives, next to the pigeonhole bound,

    (w + R - 1) max_r T_r >= sum_k (L_k - L_{k+1}) [k rho + min over 1 <= b <= k of (w tau(b) - rho b)].

Admission limit. When at most `max_num_seqs` < n requests decode at once, all-admit times are no lower bound (a curve
that loses aggregate throughput gains from queueing). Two facts remain, in any order of service: a token takes at least
tau'(1), so the longest request takes L_1 tau'(1); and a replica that runs b requests makes b / tau(b) <= 1 / rho tokens
a second, with rho over b <= max_num_seqs, so the makespan is at least rho sum_i L_i / R.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.checks import as_count, as_lengths
from tailsieve_verl.core.decode import DecodeCurve

#: The hosts bound costs R n^2 per weight; it sees all requests up to this product, and the longest beyond it.
HOSTS_BUDGET = 20_000_000
#: Weights of hosts against others: 1/8 to 32 in half octaves. Each is valid; steps five times finer over a wider range
#: raised the bound by at most 0.6 % on Table A.3 loads.
HOST_WEIGHTS = 2.0 ** np.arange(-3.0, 5.25, 0.5)
#: On long inputs, pigeonhole sizes are tried one by one up to this, then selected geometrically (any subset is valid).
PIGEONHOLE_DENSE = 512


def makespan_lower_bound(
    lengths: ArrayLike, replicas: int, curve: DecodeCurve, *, max_num_seqs: int | None = None
) -> float:
    """Seconds that no assignment to identical replicas can beat; proofs in the module docstring.

    Args:
        lengths: tokens, [n].
        replicas: R >= 1. With R = 1 the bound is the replica time itself when tau does not decrease.
        curve: any decode curve; it need be neither concave nor monotone.
        max_num_seqs: admission limit per replica; the bound is then weaker.

    Raises:
        ValueError: empty, negative or non-finite lengths; `replicas` or `max_num_seqs` below 1.
    """
    tokens = np.sort(as_lengths(lengths))[::-1]
    n, replicas = tokens.size, as_count(replicas, "replicas", 1)
    limit = n if max_num_seqs is None else min(n, as_count(max_num_seqs, "max_num_seqs", 1))
    table = curve.table(n)
    if limit < n:
        cheapest = float((table[1 : limit + 1] / np.arange(1, limit + 1)).min())
        return max(float(tokens[0] * table[1 : limit + 1].min()), cheapest * float(tokens.sum()) / replicas)
    table[1:] = np.minimum.accumulate(table[:0:-1])[::-1]
    if replicas == 1:
        return float(tokens @ np.diff(table))
    if min(replicas, n) * n * n <= HOSTS_BUDGET:
        return _hosts_bound(tokens, replicas, table)
    longest = int((HOSTS_BUDGET / replicas) ** 0.5)
    return max(
        float(_pigeonhole(tokens, replicas, table)[-1]),
        _capacity_bound(tokens, replicas, table),
        _hosts_bound(tokens[:longest], replicas, table[: longest + 1]) if longest > replicas else 0.0,
    )


def _hosts_bound(descending: NDArray[np.float64], replicas: int, table: NDArray[np.float64]) -> float:
    n = descending.size
    most = min(replicas, n)  # hosts: no more than requests
    drops = descending - np.append(descending[1:], 0.0)
    busy_table = np.concatenate(([np.inf], table[1:]))
    free = [np.concatenate(([0.0], np.full(n, np.inf)))]  # F_0, F_1, ..., F_R
    busy = free.copy()  # B_0, B_1, ..., B_most
    for _ in range(replicas):
        free.append(_min_plus(free[-1], table) if len(free) <= most else free[-1])  # F_d = F_n for d > n
    for _ in range(most):
        busy.append(_min_plus(busy[-1], busy_table))
    by_s = np.full(n, np.inf)  # over s = 1..n, the least over d so far
    for d in range(1, most + 1):
        others = _shifted(free[replicas - d])
        mean = np.zeros(n)
        for weight in HOST_WEIGHTS.tolist() if d < replicas else [1.0]:
            joint = (others + weight * busy[d]).min(axis=1)[1:]
            hosts_only = weight * free[d][1:] * drops
            at_s = np.where(np.isfinite(busy[d][1:]), weight * busy[d][1:], 0.0) * drops
            shared = np.where(np.isfinite(joint), joint, 0.0) * drops
            before = np.cumsum(hosts_only) - hosts_only
            after = np.cumsum(shared[::-1])[::-1] - shared
            np.maximum(mean, (before + at_s + after) / (weight * d + replicas - d), out=mean)
        mean = np.maximum(mean, _pigeonhole(descending, d, table))
        by_s[d - 1 :] = np.minimum(by_s, mean)[d - 1 :]  # d hosts need s >= d
    return float(by_s.max())


def _pigeonhole(descending: NDArray[np.float64], hosts: int, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(hosts, s) for s = 1..n, [n] seconds."""
    n, marginal = descending.size, np.diff(table)
    largest = (n - 1) // hosts + 1
    sizes = np.arange(1, largest + 1)
    if largest > PIGEONHOLE_DENSE and hosts * n * n > HOSTS_BUDGET:
        steps = np.geomspace(PIGEONHOLE_DENSE, largest, PIGEONHOLE_DENSE).astype(np.int64)
        sizes = np.unique(np.concatenate((sizes[:PIGEONHOLE_DENSE], steps, [largest])))
    bounds = np.zeros(n)
    for k in sizes.tolist():
        end = (k - 1) * hosts + 1
        bounds[end - 1] = descending[end - k : end] @ marginal[:k]
    return np.maximum.accumulate(bounds)


def _capacity_bound(descending: NDArray[np.float64], replicas: int, table: NDArray[np.float64]) -> float:
    n = descending.size
    drops = descending - np.append(descending[1:], 0.0)
    counts = np.arange(1, n + 1)
    cheapest = float((table[1:] / counts).min())
    best = 0.0
    for weight in HOST_WEIGHTS.tolist():
        cost = cheapest * counts + np.minimum.accumulate(weight * table[1:] - cheapest * counts)
        best = max(best, float(cost @ drops) / (weight + replicas - 1))
    return best


def _min_plus(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """min over b of first(k - b) + second(b), for k = 0..n."""
    return np.asarray((_shifted(first) + second).min(axis=1))


def _shifted(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Row k, column b: values(k - b), infinite where b > k; a view, [n+1, n+1]."""
    padded = np.concatenate((values[::-1], np.full(values.size - 1, np.inf)))
    return sliding_window_view(padded, values.size)[::-1]
