"""Time of a routing decision (acquire and release, without Ray) against verl's load balancer, in one run.

20,000 live sessions; every figure is the median of 7 rounds over the same requests, with the loop's own cost taken off.

    python benchmarks/router_bench.py
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("VERL_PLATFORM", "cpu")

from verl.workers.rollout.router import GlobalRequestLoadBalancer

from tailsieve_verl.integration.router import LaunchedGroup, TailSieveRouter

SESSIONS, GROUP, ROUNDS = 20_000, 8, 7


def microseconds(call: Callable[[int], None]) -> tuple[float, float, float]:
    """Median, least and largest time of a call over the rounds, net of an empty loop."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for i in range(SESSIONS):
            call(i)
        busy = time.perf_counter() - start
        start = time.perf_counter()
        for i in range(SESSIONS):
            _nothing(i)
        times.append((busy - (time.perf_counter() - start)) / SESSIONS * 1e6)
    return statistics.median(times), min(times), max(times)


def _nothing(i: int) -> None:
    del i


def bench_verl(replicas: int) -> tuple[float, float, float]:
    balancer = GlobalRequestLoadBalancer({f"s{i}": None for i in range(replicas)})
    ids = [f"request-{i}" for i in range(SESSIONS * 2)]
    for i in range(SESSIONS):  # the live sessions
        balancer.acquire_server(ids[SESSIONS + i])

    def call(i: int) -> None:
        server, _ = balancer.acquire_server(ids[i])
        balancer.release_server(server)

    return microseconds(call)


def bench_ours(replicas: int, *, routed: bool) -> tuple[float, float, float]:
    router = TailSieveRouter({f"s{i}": None for i in range(replicas)})
    groups = [LaunchedGroup(f"g{i}", "fresh", GROUP) for i in range(2 * SESSIONS // GROUP)]
    router.open_step(len(groups), groups, range(0), range(replicas), "request", "request")
    ids = [f"request-{i}" for i in range(SESSIONS * 2)]
    uids = [f"g{i // GROUP}" for i in range(2 * SESSIONS)]
    for i in range(SESSIONS, 2 * SESSIONS):
        router.acquire_server(ids[i], uids[i], i % GROUP)

    def call_routed(i: int) -> None:
        server = router.acquire_server(ids[i], uids[i], i % GROUP)
        router.release_server(server, uids[i], i % GROUP, 100)

    def call_validation(i: int) -> None:
        router.release_server(router.acquire_server(ids[i]))

    return microseconds(call_routed if routed else call_validation)


def main() -> None:
    print(f"router: us per acquire + release, {SESSIONS} live sessions, Python {platform.python_version()}")
    print(f"{'R':>6}{'verl':>22}{'ours, training':>22}{'ours, validation':>22}{'ratio':>8}")
    for replicas in (8, 64, 1024):
        verl, ours, validation = (
            bench_verl(replicas),
            bench_ours(replicas, routed=True),
            bench_ours(replicas, routed=False),
        )
        cells = "".join(f"{f'{m:.2f} ({low:.2f}-{high:.2f})':>22}" for m, low, high in (verl, ours, validation))
        print(f"{replicas:>6}{cells}{verl[0] / ours[0]:>7.1f}x")


if __name__ == "__main__":
    main()
