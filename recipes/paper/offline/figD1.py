"""Figure D.1: when isolating the top tenth pays, by early advantage and late penalty (2.4, Appendix D).

    python recipes/paper/offline/figD1.py [--out DIR] [--quick] [--seed N]

All lengths of a step are known; the tenth of the groups with the longest responses goes to m of R = 4 replicas. For
every isolated response and every token, tau at the batch size it has under uniform group routing is compared with tau
at the one it has in the tail pool: positive differences add up to the early low-concurrency advantage, negative ones to
the late tail-concentration penalty, here per isolated response. The exact gain is that of the makespans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from offline_common import (
    CAP,
    COLOURS,
    GROUP,
    NamedCurve,
    Options,
    curve_notes,
    decode_curves,
    mean_spread,
    new_figure,
    parse_options,
    save,
)

from tailsieve_verl.cli.output import progress
from tailsieve_verl.core.decode import DecodeCurve, replica_times
from tailsieve_verl.core.placement import TailSieve, UniformGroup
from tailsieve_verl.core.tails import scale_tail
from tailsieve_verl.traces.synthetic import LengthModel

N, REPLICAS, SHARE = 64, 4, 0.1
RATIOS = (1.05, 1.2, 1.5, 2.0, 2.5, 3.0, 3.547, 4.5, 6.0, 8.0)
MODEL = "Qwen3.5-35B-A3B"


@dataclass(frozen=True)
class Regime:
    """A setting: P90/P50, m, and whether tau does not depend on the batch size."""

    name: str
    ratio: float
    m: int = 1
    flat: bool = False


REGIMES = (
    Regime("gain", 1.5),
    Regime("tail too small", 1.05),
    Regime("tail route overloaded", 6.0),
    Regime("no low-concurrency advantage", 1.5, flat=True),
)


@dataclass(frozen=True)
class Parts:
    """Of one step: proxies in seconds per isolated response, isolated tokens, and exact times in seconds."""

    early: float
    late: float
    tail_tokens: float
    base_s: float
    tail_s: float
    bulk_s: float


def speeds(lengths: np.ndarray, where: np.ndarray, curve: DecodeCurve) -> np.ndarray:
    """tau of every replica at every token position, [R, longest] seconds; 0 where it has nothing to do."""
    positions = np.arange(1, int(lengths.max()) + 1)
    table = curve.table(lengths.size)
    rows = []
    for replica in range(REPLICAS):
        mine = np.sort(lengths[where == replica])
        rows.append(table[mine.size - np.searchsorted(mine, positions, side="left")])
    return np.array(rows)


def decompose(lengths: np.ndarray, m: int, curve: DecodeCurve) -> Parts:
    """One step, [N, n] tokens."""
    chosen = np.argsort(-lengths.max(axis=1), kind="stable")[: round(SHARE * lengths.shape[0])]
    base = UniformGroup().place(lengths, REPLICAS)
    tail = TailSieve(chosen.tolist(), m).place(lengths, REPLICAS)
    at_base, at_tail = speeds(lengths, base, curve), speeds(lengths, tail, curve)
    exact = replica_times(lengths, tail, REPLICAS, curve)
    assert np.allclose(at_tail.sum(axis=1), exact)  # T_r = sum over x of tau(b_r(x))
    early = late = 0.0
    pairs = np.stack([base[chosen], tail[chosen]], axis=-1).reshape(-1, 2)
    tokens = lengths[chosen].ravel().astype(int)
    for r, s in np.unique(pairs, axis=0).tolist():
        difference = at_base[r] - at_tail[s]
        ends = tokens[(pairs == (r, s)).all(axis=1)] - 1
        early += float(np.cumsum(np.maximum(difference, 0))[ends].sum())
        late += float(np.cumsum(np.maximum(-difference, 0))[ends].sum())
    bulk = REPLICAS - m
    return Parts(
        early / tokens.size,
        late / tokens.size,
        float(tokens.sum()),
        float(replica_times(lengths, base, REPLICAS, curve).max()),
        float(exact[bulk:].max()),
        float(exact[:bulk].max()),
    )


def average(regime: Regime, named: NamedCurve, steps: int, seed: int) -> dict[str, float]:
    """Means over steps of one seed."""
    rng = np.random.default_rng(seed)
    model = LengthModel(p50=1160, p90=4115, cap=CAP)
    lengths = model.draw(rng, model.levels(rng, steps * N), GROUP)
    scaled = np.rint(scale_tail(lengths, regime.ratio)).reshape(steps, N, GROUP)
    curve = DecodeCurve([1], [named.curve(1)]) if regime.flat else named.curve
    parts = [decompose(step, regime.m, curve) for step in scaled]
    mean = {name: float(np.mean([getattr(part, name) for part in parts])) for name in Parts.__dataclass_fields__}
    makespan = np.array([max(part.tail_s, part.bulk_s) for part in parts])
    return mean | {
        "gain": float(1 - makespan.sum() / sum(part.base_s for part in parts)),
        "tail_share": mean["tail_tokens"] / (scaled.sum() / steps),
    }


def run(options: Options) -> None:
    """The four regimes, and a scan of the tail's strength."""
    (named,) = decode_curves([MODEL])
    seeds, steps = options.pick(5, 1), options.pick(20, 2)
    scan = [Regime("scan", ratio, m=m) for m in (1, 2, 3) for ratio in RATIOS]
    rows, points = [], []
    with progress() as bar:
        task = bar.add_task("regimes", total=(len(REGIMES) + len(scan)) * seeds)
        for regime in (*REGIMES, *scan):
            found = []
            for s in range(seeds):
                found.append(average(regime, named, steps, options.seed + s))
                bar.advance(task)
            mean = {key: float(np.mean([f[key] for f in found])) for key in found[0]}
            if regime.name == "scan":
                points.append({"m": regime.m, "ratio": regime.ratio, **mean})
                continue
            rows.append(
                {
                    "regime": regime.name,
                    "P90/P50": regime.ratio,
                    "tail_share": mean["tail_share"],
                    "early_s": mean_spread([f["early"] for f in found], 1),
                    "late_s": mean_spread([f["late"] for f in found], 1),
                    "uniform_s": mean["base_s"],
                    "tail_s": mean["tail_s"],
                    "bulk_s": mean["bulk_s"],
                    "gain": mean_spread([f["gain"] for f in found]),
                }
            )
    figure = new_figure(12, 3.8)
    left, middle, right = figure.subplots(1, 3)
    at = np.arange(len(rows))
    early, late = (np.array([float(row[key].split()[0]) for row in rows]) for key in ("early_s", "late_s"))
    scale = np.array([row["uniform_s"] for row in rows])
    left.bar(at, early / scale, color=COLOURS[0], label="early advantage")
    left.bar(at, -late / scale, color=COLOURS[1], label="late penalty")
    left.plot(at, [float(row["gain"].split()[0]) for row in rows], "k*", ms=10, label="exact gain of the step")
    left.axhline(0, color="black", lw=0.8)
    left.set_xticks(at, [row["regime"].replace(" ", "\n") for row in rows], fontsize=7)
    left.set(title="Four regimes", ylabel="share of uniform's step time")
    left.legend(fontsize=7)
    for m, colour in zip((1, 2, 3), COLOURS, strict=False):
        mine = [point for point in points if point["m"] == m]
        ratios = [point["ratio"] for point in mine]
        middle.plot(ratios, [p["early"] / p["base_s"] for p in mine], color=colour, label=f"early, m={m}")
        middle.plot(ratios, [p["late"] / p["base_s"] for p in mine], color=colour, ls="--", label=f"late, m={m}")
        right.plot(ratios, [p["gain"] for p in mine], color=colour, marker=".", label=f"m={m}")
    middle.set(title="Advantage and penalty", xlabel="P90/P50", ylabel="share of uniform's step time")
    right.set(title="Exact gain", xlabel="P90/P50")
    right.axhline(0, color="black", lw=0.8)
    middle.legend(fontsize=7)
    right.legend(fontsize=7)
    notes = [
        *curve_notes([named]),
        f"N = {N}, n = {GROUP}, R = {REPLICAS}, top {SHARE:.0%} of the groups, m = 1; {seeds} seeds of {steps} steps; "
        "mean +- standard deviation over seeds",
        "tail share: isolated tokens of all; early, late: seconds per isolated response; gain: 1 - step over uniform's",
    ]
    save(options, "figD1", rows, figure, "Figure D.1, gain regimes", notes, points)


if __name__ == "__main__":
    run(parse_options(__doc__))
