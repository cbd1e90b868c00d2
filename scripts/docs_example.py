"""The worked example of docs/how-it-works.md: one step under uniform routing and under a split, computed by the core.

python scripts/docs_example.py            # print it
python scripts/docs_example.py --write    # put it into the page
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tailsieve_verl.core.accounting import launch_counts
from tailsieve_verl.core.bounds import makespan_lower_bound
from tailsieve_verl.core.decode import DecodeCurve, finish_times
from tailsieve_verl.core.inner import BalanceLoop

PAGE = Path(__file__).parents[1] / "docs" / "how-it-works.md"
BEGIN, END = "<!-- begin: scripts/docs_example.py -->", "<!-- end -->"

N, SESSIONS, R, Q, M = 8, 2, 4, 2, 2
CURVE = DecodeCurve([1, 2, 4, 8], [0.010, 0.011, 0.014, 0.022])
#: Tokens of both responses of each fresh group; c and h are the long ones, on two replicas under uniform routing.
FRESH = {
    "a": (300, 420),
    "b": (250, 380),
    "c": (1500, 1900),
    "d": (410, 330),
    "e": (280, 360),
    "f": (440, 300),
    "g": (350, 390),
    "h": (1700, 1300),
}
#: Groups that the step before left over, generated again.
CARRIED = {"x": (1600, 1400), "y": (1300, 1800)}


def dealt(groups: dict[str, tuple[int, int]], replicas: range, *, by_request: bool) -> dict[int, list[tuple[str, int]]]:
    """(group, tokens) by replica: whole groups in turn, or single responses in turn."""
    placed: dict[int, list[tuple[str, int]]] = {replica: [] for replica in replicas}
    for i, (group, lengths) in enumerate(groups.items()):
        for j, tokens in enumerate(lengths):
            turn = i * SESSIONS + j if by_request else i
            placed[replicas[turn % len(replicas)]].append((group, tokens))
    return placed


def ends(placed: dict[int, list[tuple[str, int]]]) -> dict[str, float]:
    """Seconds after which each group is done."""
    done: dict[str, float] = {}
    for work in placed.values():
        for (group, _), seconds in zip(work, finish_times([t for _, t in work], CURVE), strict=True):
            done[group] = max(done.get(group, 0.0), float(seconds))
    return done


def numbers() -> dict[str, float | list[str]]:
    """Every number that the page states."""
    uniform = ends(dealt(FRESH, range(R), by_request=False))
    default = ends(dealt(FRESH, range(R), by_request=True))
    tail = ends(dealt(CARRIED, range(R - M, R), by_request=True))
    bulk = ends(dealt(FRESH, range(R - M), by_request=True))
    order = sorted(bulk, key=bulk.__getitem__)
    cut, t_tail, t_bulk = order[N - Q :], max(tail.values()), bulk[order[N - Q - 1]]
    trained = [*CARRIED.values(), *(FRESH[group] for group in order[: N - Q])]
    inner = BalanceLoop(N).measured(Q, t_tail, t_bulk)
    return {
        "uniform": max(uniform.values()),
        "default": max(default.values()),
        "t_tail": t_tail,
        "t_bulk": t_bulk,
        "step": max(t_tail, t_bulk),
        "bound": makespan_lower_bound(np.array(trained, dtype=float).ravel(), R, CURVE),
        "r_tail": inner.rate_tail,
        "r_bulk": inner.rate_bulk,
        "q_star": inner.q_star,
        "batch": [*CARRIED, *order[: N - Q]],
        "cut": cut,
    }


def render() -> str:
    """The example as Markdown."""
    n = numbers()
    counts = launch_counts(N, carried=Q, q=Q)
    knots = zip(CURVE.batch_sizes, CURVE.seconds_per_token, strict=True)
    curve = ", ".join(f"tau({b:g}) = {t * 1000:g} ms" for b, t in knots)
    rows = "\n".join(
        f"| {group} | {'carried' if group in CARRIED else 'fresh'} | {lengths[0]}, {lengths[1]} |"
        for group, lengths in (CARRIED | FRESH).items()
    )
    return f"""\
N = {N} groups of n = {SESSIONS}, R = {R} replicas, a split of q = {Q} groups on m = {M} replicas; {curve}.

| group | | tokens |
|---|---|---|
{rows}

| | seconds |
|---|---|
| uniform by group (group g on replica g mod R), the fresh groups | {n["uniform"]:.2f} |
| single responses in turn over all replicas, the fresh groups | {n["default"]:.2f} |
| T_tail: {" and ".join(CARRIED)} alone on replicas {R - M} to {R - 1} | {n["t_tail"]:.2f} |
| T_bulk: {N - Q} of the {N} fresh groups done on replicas 0 to {R - M - 1} | {n["t_bulk"]:.2f} |
| the step, max(T_tail, T_bulk) | **{n["step"]:.2f}** |
| no placement of the trained responses could beat | {n["bound"]:.2f} |

The step launches {counts.tail} carried and {counts.fresh} fresh groups and needs {counts.fresh_needed} of these.
Its batch is {", ".join(n["batch"])}. Groups {" and ".join(n["cut"])} are cut when the {N - Q}th fresh group is done,
and are the next step's tail. That is {n["uniform"] / n["step"]:.2f} times as fast as uniform by group, and
{n["default"] / n["step"]:.2f} times as fast as single responses in turn.

The inner loop sees r_tail = q / T_tail = {n["r_tail"]:.3f} and r_bulk = (N - q) / T_bulk = {n["r_bulk"]:.3f} groups a
second, so q\\* = N r_tail / (r_tail + r_bulk) = {n["q_star"]:.2f}."""


def embed(page: str) -> str:
    """The page with the example between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{render()}\n\n{END}{tail}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(embed(PAGE.read_text()))
    else:
        print(render())
