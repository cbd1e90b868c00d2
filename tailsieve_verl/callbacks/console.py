"""A coloured line for each step, in the place of the plain one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rich.console import Console
from rich.text import Text

from tailsieve_verl.callbacks.base import Callback
from tailsieve_verl.core.plan import Decision

#: Cells of the longer pool's bar.
BAR = 12
#: Colours that the colour-blind can tell apart; the letters t and b say the same.
TAIL, BULK = "dark_orange", "deep_sky_blue1"


class ConsoleLine(Callback):
    """Prints reward, length, pool times as bars, step time, split and reason; a change of the split stands out.

    Args:
        colour: force colours on or off; ``None`` takes them where the output is a terminal. verl's trainer runs in a
            Ray worker, whose output Ray carries to yours, so it never is one: set ``true`` to see colours there.
        width: columns; longer lines are not broken.
    """

    observer: ClassVar[bool] = True

    def __init__(self, colour: bool | None = None, width: int = 200) -> None:
        if isinstance(width, bool) or not isinstance(width, int) or width < 40:
            raise ValueError(f"width must be a whole number of at least 40, got {width!r}")
        self._colour, self._width = colour, width
        self._decision: Decision | None = None

    def on_decision(self, decision: Decision) -> None:
        self._decision = decision

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        console = Console(
            force_terminal=self._colour, no_color=self._colour is False, width=self._width, highlight=False
        )
        console.print(step_text(step, metrics, self._decision), overflow="ignore", no_wrap=True, crop=False)


def step_text(step: int, metrics: Mapping[str, float], decision: Decision | None) -> Text:
    """The line of a step; what the metrics do not hold is left out."""
    text = Text.assemble(("[tailsieve] ", "dim"), (f"step {step:>4}", "bold"))
    for name, form in (("reward", "{:.3f}"), ("length", "{:.0f}")):
        if name in metrics:
            text.append(f"  {name} {form.format(metrics[name])}")
    longest = max(metrics.get("t_tail_s", 0.0), metrics.get("t_bulk_s", 0.0))
    for letter, name, colour in (("t", "t_tail_s", TAIL), ("b", "t_bulk_s", BULK)):
        value = metrics.get(name)
        cells = 0 if value is None or longest <= 0 else max(1, round(BAR * value / longest))
        shown = "-" if value is None else f"{value:.1f}s"
        text.append(f"  {letter} ").append("█" * cells + "·" * (BAR - cells), colour).append(f" {shown:>7}")
    if "step_s" in metrics:
        text.append(f"  step {metrics['step_s']:.1f}s")
    text.append(f"  q={_whole(metrics.get('tail_groups'))} m={_whole(metrics.get('tail_replicas'))}")
    if decision is not None:
        style: Any = "bold yellow" if decision.switched else "dim"
        moved = f" -> q={decision.q} m={decision.m}" if decision.switched else ""
        text.append(f"{moved}  {decision.reason}", style)
    return text


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
