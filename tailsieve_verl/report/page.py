"""The page: a view, its verdict and its pictures in one self-contained HTML file, and PNGs beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tailsieve_verl.report.facts import facts_of
from tailsieve_verl.report.plots import PICTURES, STYLE, Picture, as_data_uri, as_png
from tailsieve_verl.report.timeline import BINS, KINDS, TICKS, plain, timeline
from tailsieve_verl.report.timeline_plot import KIND_COLOURS, timeline_figure
from tailsieve_verl.report.verdict import Facts, Verdict, judge
from tailsieve_verl.report.view import DAMAGED, RunView, StepView, no_run

#: Requests listed on a page, over all steps, some 25 bytes each: five megabytes open at once on a phone.
PAGE_REQUESTS = 200_000
#: Of a step: more are no longer told apart, fewer say nothing.
MOST_REQUESTS, LEAST_REQUESTS = 1500, 128
#: Rows of the table of moves; the last ones.
MOST_MOVES = 200
#: How the two answers are said, and marked for those who see no colours.
WORTH = {
    "yes": ("Worth it", "✔"),
    "unsure": ("Perhaps", "?"),
    "no": ("Not worth it", "✘"),
    "unknown": ("Not known", "·"),
}
TOLERABLE = {"yes": ("Bias tolerable", "✔"), "unsure": ("Bias unclear", "?"), "no": ("Bias too large", "✘"),
             "unknown": ("Bias not known", "·")}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """A rendered report: the page, PNGs by file name, and what it found."""

    html: str
    pngs: Mapping[str, bytes]
    facts: Facts
    verdict: Verdict


def render(view: RunView, pictures: Sequence[Picture] = PICTURES) -> Report:
    """Draw and write the report of a run.

    Raises:
        UserError: if the record holds values that are none of a run.
    """
    try:
        return _render(view, pictures)
    except DAMAGED as error:
        raise no_run(view.path, error) from error


def _render(view: RunView, pictures: Sequence[Picture]) -> Report:
    import matplotlib

    facts = facts_of(view)
    verdict = judge(facts)
    pngs, panels = {}, []
    budget = max(LEAST_REQUESTS, min(MOST_REQUESTS, PAGE_REQUESTS // len(view.steps)))
    shown = _first_shown(view)
    with matplotlib.rc_context(STYLE):
        for picture in pictures:
            figure = picture.draw(view)
            if figure is not None:
                pngs[f"{picture.name}.png"] = as_png(figure)
                panels.append(
                    {"name": picture.name, "title": picture.title, "says": picture.says, "src": as_data_uri(figure)}
                )
        figure = timeline_figure(shown.step, timeline(shown, MOST_REQUESTS))
        pngs["timeline.png"] = as_png(figure)
        fallback = as_data_uri(figure)
    data = {
        "steps": [_step_data(step, budget) for step in view.steps],
        "ticks": TICKS,
        "bins": BINS,
        "colours": KIND_COLOURS,
        "kinds": KINDS,
        "shown": view.steps.index(shown),
    }
    html = _template().render(
        view=view,
        verdict=verdict,
        worth=WORTH[verdict.worth],
        tolerable=TOLERABLE[verdict.tolerable],
        tiles=tiles(view, facts),
        panels=panels,
        fallback=fallback,
        shown=shown.step,
        moves=moves(view)[-MOST_MOVES:],
        all_moves=len(moves(view)),
        notes=notes(view),
        kinds=list(zip(KINDS, KIND_COLOURS, strict=True)),
        data=_safe(data),
        style=_text("page.css"),
        script=_text("page.js"),
    )
    return Report(html, pngs, facts, verdict)


def moves(view: RunView) -> list[dict[str, Any]]:
    """Each change of the split, with its reason."""
    return [
        {
            "step": step.step,
            "from": _split(*step.before),
            "to": _split(step.decision.q, step.decision.m),
            "reason": step.decision.reason,
        }
        for step in view.steps
        if step.moved
    ]


def tiles(view: RunView, facts: Facts) -> list[tuple[str, str, str]]:
    """Figures at a glance: name, value, and what it is of."""
    times = [step.seen.generation_s for step in view.steps]
    found = [("Steps", f"{facts.steps}", f"{view.steps[0].step} to {view.steps[-1].step}")]
    found.append(("Generation", f"{sum(times) / len(times):.3g} s", "mean of a step"))
    if facts.gain is not None:
        found.append(("Gain", f"{facts.gain.value:.2f}x", "over predicted uniform"))
    if facts.room is not None:
        found.append(("Over the bound", f"{facts.room:.2f}x", "what no placement beats"))
    if "mean" in facts.bias and facts.split:
        found.append(("Bias of the mean", f"{100 * facts.bias['mean']:+.1f} %", "against fresh pools"))
    for pool, share in facts.idle.items():
        found.append((f"{pool.capitalize()} pool idle", f"{share:.0%}", "of replica time"))
    last = view.steps[-1].decision
    found.append(("Split", _split(last.q, last.m), f"now, after {_count(facts.moves, 'move')}"))
    return found


def notes(view: RunView) -> list[str]:
    """What is to be held against the figures."""
    found = []
    if view.resumes:
        found.append(f"The run was resumed {_count(view.resumes, 'time')}; steps that ran again count once.")
    if view.skipped:
        found.append(
            f"Left out: {_count(view.skipped, 'line')} of the record that cannot be read: cut off, or just being "
            "written."
        )
    if view.steps[-1].step_s is None:
        found.append(f"The update of step {view.steps[-1].step} is not over, or the run ended in it.")
    if view.sampled:
        found.append(
            "Large steps are recorded as a sample of their groups: lengths are the sample's, cut ones are "
            "completed from other groups, and concurrency is scaled up."
        )
    if not any(step.decision.predicted_uniform_s for step in view.steps):
        found.append("No step has a prediction of uniform routing; the controller makes it once it knows the engine.")
    return found


def _step_data(step: StepView, most_requests: int) -> dict[str, Any]:
    plan = step.seen.plan
    return {
        "s": step.step,
        "split": _split(plan.q, plan.m),
        "next": _split(step.decision.q, step.decision.m) if step.moved else "",
        "why": _arrows(step.decision.reason),
        **plain(timeline(step, most_requests)),
    }


def _first_shown(view: RunView) -> StepView:
    """The last step that shows most: with a tail pool, steady, and a cut."""
    return max(view.steps, key=lambda s: (s.split, s.decision.settled, s.seen.plan.counts.left_over > 0, s.step))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _split(q: int, m: int) -> str:
    return f"q={q}, m={m}" if m else "uniform"


def _arrows(words: str) -> str:
    return words.replace("->", "→")


def _worded(words: str) -> Any:
    """For the page: arrows that do not break, and keys of the configuration that do."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=[a-z0-9])\.(?=[a-z])", ".<wbr>", str(escape(_arrows(words)))))


def _safe(data: Any) -> str:
    """JSON that a script element may hold whatever the strings in it are."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["worded"] = _worded
    return environment.from_string(_text("page.html"))


def _text(name: str) -> str:
    return files("tailsieve_verl.report").joinpath(name).read_text(encoding="utf-8")
