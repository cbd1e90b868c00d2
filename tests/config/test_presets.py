import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import tailsieve_verl.config
from tailsieve_verl.config.schema import TailSieveConfig, parse

from .compose import compose

FOLDER = Path(tailsieve_verl.config.__file__).parent / "tailsieve"
PRESETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_found_by_name_alone_and_valid(preset):
    drafter = ["trainer.v1.tailsieve.speculation.model=x"] if preset.startswith("dflash") else []
    config = compose(f"+tailsieve={preset}", *drafter)
    settings = OmegaConf.to_container(config.trainer.v1.tailsieve, resolve=True)
    parse(settings)
    assert set(settings) == {f.name for f in dataclasses.fields(TailSieveConfig)}  # every key can be set without a +
    assert config.trainer.v1.trainer_mode == "tailsieve"


def test_the_base_preset_states_the_schema_s_defaults():
    assert parse(OmegaConf.to_container(compose("+tailsieve=base").trainer.v1.tailsieve)) == TailSieveConfig()


def test_overrides_win_over_the_preset():
    config = compose("+tailsieve=fixed", "trainer.v1.tailsieve.q=3", "trainer.v1.tailsieve.schedule={2:[2,1]}")
    assert parse(OmegaConf.to_container(config.trainer.v1.tailsieve)).schedule == {2: (2, 1)}
    assert config.trainer.v1.tailsieve.q == 3


def test_presets_touch_nothing_but_their_own_keys():
    plain = OmegaConf.to_container(compose())
    with_preset = OmegaConf.to_container(compose("+tailsieve=default"))
    del with_preset["trainer"]["v1"]["tailsieve"]
    assert with_preset["trainer"]["v1"].pop("trainer_mode") == "tailsieve"
    assert plain["trainer"]["v1"].pop("trainer_mode") == "sync"
    del with_preset["actor_rollout_ref"]["rollout"]["agent"]["agent_loop_manager_class"]
    assert with_preset == plain


def cfg_job(*arguments, blind=False):
    """verl's configuration as main_ppo prints it; ``blind`` hides this package from verl and Hydra."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")}
    code = "import sys, runpy\n"
    if blind:
        environment["VERL_USE_EXTERNAL_PLUGINS"] = "none"
        code += "sys.modules['hydra_plugins'] = None\n"
    code += f"sys.argv = ['main_ppo', *{list(arguments)!r}]\n"
    code += "runpy.run_module('verl.trainer.main_ppo', run_name='__main__')"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_without_the_preset_the_configuration_is_plain_verl_byte_for_byte():
    arguments = ["--cfg", "job", "--resolve", "actor_rollout_ref.rollout.name=vllm", "trainer.default_local_dir=x"]
    ours, plain = cfg_job(*arguments), cfg_job(*arguments, blind=True)
    assert ours.returncode == plain.returncode == 0, ours.stderr[-1000:] + plain.stderr[-1000:]
    assert ours.stdout == plain.stdout
    assert "trainer_mode: sync" in ours.stdout


def test_an_unknown_preset_is_named_with_the_known_ones():
    result = cfg_job("+tailsieve=defualt")
    assert result.returncode != 0
    assert "tailsieve/defualt" in result.stderr
    assert all(preset in result.stderr for preset in PRESETS)


def test_yaml_keeps_verl_s_conventions():
    """A comment above each field, a blank line between fields, none behind a value."""
    lines = (FOLDER / "base.yaml").read_text().splitlines()
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            assert " #" not in line, line
