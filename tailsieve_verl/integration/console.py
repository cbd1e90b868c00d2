"""The readable lines of a run: one a step, and a closing summary. Every line starts with ``[tailsieve]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MARK = "[tailsieve]"


def step_line(step: int, metrics: Mapping[str, float], reason: str) -> str:
    """One line for a finished training step; ``metrics`` are those of the run's record."""
    tail, bulk = metrics.get("t_tail_s"), metrics.get("t_bulk_s")
    times = f"T_tail={_seconds(tail)} T_bulk={_seconds(bulk)}"
    return (
        f"{MARK} step {step:>3}  reward={metrics.get('reward', float('nan')):.3f} "
        f"length={metrics.get('length', float('nan')):.1f}  "
        f"q={metrics['tail_groups']:.0f} m={metrics['tail_replicas']:.0f} {times} "
        f"step={_seconds(metrics.get('step_s'))} overhead={100 * metrics.get('overhead_share', 0.0):.2f}%  "
        f"carried={metrics['carried_next']:.0f}  next q={metrics['q_next']:.0f}: {reason}"
    )


def summary(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Closing lines over the steps of this process."""
    if not steps:
        return [f"{MARK} no step was trained"]

    def mean(name: str) -> float:
        values = [step[name] for step in steps if name in step]
        return sum(values) / len(values) if values else float("nan")

    rewards = [step["reward"] for step in steps if "reward" in step]
    trend = f"{rewards[0]:.3f} -> {rewards[-1]:.3f}" if rewards else "unknown"
    last = steps[-1]
    lines = [
        f"{MARK} done: {len(steps)} steps, reward {trend}, mean step {mean('step_s'):.2f} s, "
        f"mean generation {mean('generation_s'):.2f} s, TailSieve's own share {100 * mean('overhead_share'):.2f} %",
        f"{MARK} prompts: {last['trained_total']:.0f} groups trained, {last['carried_next']:.0f} carried, "
        f"{last['dropped_total']:.0f} dropped",
    ]
    if "bias/mean" in last:
        lines.append(
            f"{MARK} length bias against whole fresh pools, over the run: mean {100 * last['bias/mean']:+.1f} %, "
            f"p99 {100 * last['bias/p99']:+.1f} %, truncated {100 * last['bias/truncated']:+.2f} points, "
            f"KS {last['bias/ks']:.3f}"
        )
    return lines


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}s"
