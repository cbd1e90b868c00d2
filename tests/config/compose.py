"""Composes verl's real configuration the way ``python -m verl.trainer.main_ppo`` does, without running anything."""

from pathlib import Path

import verl.trainer
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from tailsieve_verl.workloads.cpu_run import CpuRun


def compose(*overrides, return_hydra_config=False, **sizes):
    run = CpuRun(model=Path("model"), data=Path("data"), out=Path("out"), **sizes)
    folder = str(Path(verl.trainer.__file__).parent / "config")
    with initialize_config_dir(folder, version_base=None):
        return hydra_compose(
            "ppo_trainer", overrides=[*run.overrides(), *overrides], return_hydra_config=return_hydra_config
        )
