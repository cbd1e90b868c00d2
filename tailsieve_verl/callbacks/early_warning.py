"""Warns when a run goes wrong in a way that its reward shows late: length bias, acceptance of drafts, imbalance."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from tailsieve_verl.callbacks.base import Callback

logger = logging.getLogger(__name__)


class _Watch(NamedTuple):
    """A figure that is watched: its value if it counts in this step, whether it is bad, and what to say of it."""

    name: str
    value: float | None
    bad: bool
    says: str


class EarlyWarning(Callback):
    """Warns once when a figure has been bad for some steps in a row, and again only after it has been good.

    Args:
        bias_mean: largest relative difference of the mean length that is trained on against whole fresh pools. The
            figure is taken over 20,000 responses and is steady to about 1 %; 5 % is more than drift explains.
        bias_p99: the same for the 99th percentile, which is steady to a few percent.
        acceptance: least accepted share of drafted tokens of a route. Below a third a drafter of depth 3 yields under
            1.5 tokens a verification, which hardly pays at any batch size.
        imbalance: largest difference of the pools' times, as a share of the longer one, in settled steps. The
            controller acts on 2 %, so a quarter that stays is one that it cannot mend: too few replicas or groups.
        patience: steps in a row. One slow step is noise; three are not.

    Raises:
        ValueError: a threshold that is no positive number, or a patience below 1.
    """

    observer: ClassVar[bool] = True

    def __init__(
        self,
        bias_mean: float = 0.05,
        bias_p99: float = 0.15,
        acceptance: float = 0.33,
        imbalance: float = 0.25,
        patience: int = 3,
    ) -> None:
        limits = {"bias_mean": bias_mean, "bias_p99": bias_p99, "acceptance": acceptance, "imbalance": imbalance}
        for name, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise ValueError(f"patience must be a whole number of at least 1, got {patience!r}")
        self._limits, self._patience = limits, patience
        self._bad: dict[str, int] = {}

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        for says in self.warnings(metrics).values():
            logger.warning("tailsieve: early warning at step %d (%d in a row): %s", step, self._patience, says)

    def warnings(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Count a step's metrics; what there is to warn of now, by the name of the figure."""
        found = {}
        for watch in self._watched(metrics):
            if watch.value is None:
                continue
            self._bad[watch.name] = self._bad.get(watch.name, 0) + 1 if watch.bad else 0
            if self._bad[watch.name] == self._patience:
                found[watch.name] = watch.says
        return found

    def on_save(self) -> Mapping[str, Any]:
        return dict(self._bad)

    def on_load(self, state: Mapping[str, Any]) -> None:
        self._bad = {str(name): int(count) for name, count in state.items()}

    def _watched(self, metrics: Mapping[str, float]) -> list[_Watch]:
        watched = []
        for key, what in (("mean", "mean length"), ("p99", "99th percentile of the lengths")):
            value, limit = metrics.get(f"bias/{key}"), self._limits[f"bias_{key}"]
            says = (
                f"the {what} trained on differs by {_percent(value)} from whole fresh pools (limit {limit:.0%}); "
                f"stragglers come out otherwise when they run again: pin the run uniform for some steps and compare"
            )
            watched.append(_Watch(f"bias_{key}", value, value is not None and abs(value) > limit, says))
        for pool in ("tail", "bulk"):
            value, limit = metrics.get(f"spec_accept_rate/{pool}"), self._limits["acceptance"]
            says = (
                f"only {_percent(value)} of the {pool} route's drafted tokens are accepted (limit {limit:.0%}); lower "
                f"trainer.v1.tailsieve.speculation.depth.{pool}, or train the drafter along"
            )
            watched.append(_Watch(f"acceptance_{pool}", value, value is not None and value < limit, says))
        tail, bulk = metrics.get("t_tail_s"), metrics.get("t_bulk_s")
        gap = None
        if tail and bulk and metrics.get("settled"):
            gap = (tail - bulk) / max(tail, bulk)
        limit = self._limits["imbalance"]
        faster = "bulk" if gap is not None and gap > 0 else "tail"
        says = f"the {faster} pool idles {_percent(gap)} of the step for the other (limit {limit:.0%}); the split stays"
        watched.append(_Watch("imbalance", gap, gap is not None and abs(gap) > limit, says))
        return watched


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{abs(value):.1%}"
