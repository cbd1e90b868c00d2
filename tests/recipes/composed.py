"""Recipes as their scripts launch them: the printed commands, and verl's configuration composed from them."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import cache
from pathlib import Path

import verl.trainer
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

REPOSITORY = Path(__file__).parents[2]
RECIPES = REPOSITORY / "recipes"
PAPER = {  # recipe -> replicas (paper 4.1), variants
    "qwen3_5_35b_a3b": (4, "uniform verl tailsieve fixed mtp_uniform mtp dflash_uniform dflash"),
    "qwen3_5_4b": (8, "uniform verl tailsieve fixed mtp_uniform mtp dflash_uniform dflash"),
    "qwen3_5_2b": (8, "uniform verl tailsieve fixed mtp_uniform mtp"),
    "qwen3_30b_a3b": (4, "uniform verl tailsieve fixed"),
    "qwen3_4b": (8, "uniform verl tailsieve fixed"),
}
EVERY = [
    (f"{model}_{workload}", variant)
    for workload in ("math", "code")
    for model, (_, variants) in PAPER.items()
    for variant in variants.split()
]


def script(recipe: str) -> Path:
    return next((RECIPES / recipe).glob("run_*.sh"))


def launch(recipe: str, *arguments: str, **knobs: str) -> subprocess.CompletedProcess[str]:
    """The recipe's script with these knobs, from the repository's folder."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return subprocess.run(
        ["bash", str(script(recipe)), *arguments],
        env={**kept, **knobs}, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@cache
def dry_run(recipe: str) -> dict[str, list[str]]:
    """Variant -> the command's words, for every variant of the recipe."""
    variants = [variant for name, variant in EVERY if name == recipe]
    result = launch(recipe, DRY_RUN="1", VARIANTS=" ".join(variants))
    assert result.returncode == 0, result.stderr
    lines = [shlex.split(line) for line in result.stdout.splitlines()]
    return dict(zip(variants, lines, strict=False))


def overrides(command: list[str]) -> list[str]:
    """What follows the configuration folder, less Hydra's own settings."""
    start = command.index("--config-dir")
    return [word for word in command[start + 2 :] if not word.startswith("hydra.")]


def config_of(words: list[str]):
    """verl's configuration with these overrides, recipes on the search path."""
    GlobalHydra.instance().clear()
    folder = str(Path(verl.trainer.__file__).parent / "config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_trainer", overrides=[f"hydra.searchpath=[file://{RECIPES}]", *words])
