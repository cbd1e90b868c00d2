"""`make compare` without engines: what it launches, keeps and writes."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tailsieve_verl.integration import preflight
from tests.config.compose import compose

from .runs import write_record

DEMO = Path(__file__).parents[2] / "examples" / "cpu_demo"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The script as a module, its cache in the test's folder; `launched` holds the overrides of each launch."""
    monkeypatch.syspath_prepend(str(DEMO))
    spec = importlib.util.spec_from_file_location("cpu_demo_compare", DEMO / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CACHE", tmp_path)
    monkeypatch.setattr(module, "ensure_smollm2", lambda folder: folder)
    module.launched = []

    def launch(run, *overrides):
        module.launched.append(overrides)
        uniform = "+tailsieve=uniform_group" in overrides
        if module.fails and not uniform:
            return 1
        seconds = [9.0, *[2.0 + 0.1 * (step % 3) + (0 if uniform else 1) for step in range(1, run.steps)]]
        write_record(run.out, seconds, by_group=uniform, split=() if uniform else range(2, run.steps + 1))
        return 0

    module.fails = False
    monkeypatch.setattr(module, "launch", launch)
    return module


def call(demo, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, arguments)])
    return demo.main()


def test_runs_are_made_once_and_the_page_says_what_came_out(demo, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    arguments = ("--tasks", "counting", "--policies", "uniform", "tailsieve", "--steps", 6, "--page", page)
    assert call(demo, monkeypatch, *arguments) == 0
    assert len(demo.launched) == 2
    text = page.read_text()
    assert "`tailsieve` spends more time on a step's generation than `uniform`, 0.68 times as fast" in " ".join(
        text.split()
    )
    assert "## Counting: a long tail that is the prompt's own" in text
    assert "| tailsieve | uniform | all |" in text
    assert str(tmp_path) not in text.replace(str(page), "")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))
    assert call(demo, monkeypatch, *arguments) == 0
    assert len(demo.launched) == 2
    assert call(demo, monkeypatch, *arguments, "--fresh") == 0
    assert len(demo.launched) == 4


def test_a_run_that_fails_does_not_lose_the_others(demo, monkeypatch, tmp_path):
    demo.fails = True
    page = tmp_path / "page.md"
    arguments = ("--tasks", "counting", "--steps", 6, "--page", page, "--policies")
    assert call(demo, monkeypatch, *arguments, "uniform", "ngram_uniform", "tailsieve") == 1
    assert "`ngram_uniform` differs from `uniform` by no more than steps vary" in page.read_text()
    assert call(demo, monkeypatch, *arguments, "uniform", "tailsieve") == 1  # too few for a comparison


def test_every_policy_composes_and_passes_our_checks(demo):
    modes = {}
    for name, overrides in demo.POLICIES.items():
        config = compose("actor_rollout_ref.rollout.calculate_log_probs=False", *overrides)
        modes[name] = config.trainer.v1.trainer_mode
        if name != "plain_verl":
            preflight.check(config)
    assert modes == {name: "sync" if name == "plain_verl" else "tailsieve" for name in demo.POLICIES}
