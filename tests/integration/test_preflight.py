"""Bad input: one sentence that names key, value and remedy, before Ray or any engine starts."""

import json
import logging
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from omegaconf import OmegaConf, open_dict

from tailsieve_verl.config.schema import TailSieveConfigError
from tailsieve_verl.integration import checkpoint, preflight
from tailsieve_verl.workloads import counting
from tailsieve_verl.workloads.cpu_run import CpuRun

from ..config.compose import compose


@pytest.fixture(scope="module")
def config():
    return compose("+tailsieve=default", n_groups=8, n=4, replicas=4)


def changed(config, key, value):
    config = config.copy()
    with open_dict(config):
        OmegaConf.update(config, key, value, force_add=True)
    return config


def test_a_good_configuration_passes(config):
    preflight.check(config)
    assert preflight.count_replicas(config) == 4


BAD = {
    "trainer.use_v1": (False, r"trainer.use_v1=False has no TailSieve; set trainer.use_v1=True"),
    "trainer.v1.trainer_mode": ("separate_async", r"trainer_mode=separate_async is not TailSieve's mode"),
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": ("my.Manager", r"my.Manager would bypass .* set it to"),
    "actor_rollout_ref.rollout.name": ("sglang", r"rollout.name=sglang has no TailSieve; set it to vllm"),
    "actor_rollout_ref.rollout.disaggregation.enabled": (True, r"disaggregation.enabled=True .* set it to False"),
    "actor_rollout_ref.rollout.nnodes": (1, r"colocated rollout .*rollout.nnodes=0"),
    "actor_rollout_ref.hybrid_engine": (False, r"actor_rollout_ref.hybrid_engine=True"),
    "actor_rollout_ref.rollout.full_determinism": (True, r"full_determinism=True .* copies of each other; set it to"),
    "actor_rollout_ref.rollout.router_config_path": ("r.yaml", r"router_config_path=r.yaml would replace .* remove it"),
    "actor_rollout_ref.rollout.n": (0, r"rollout.n=0 must be a whole number of at least 1"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": (8, r"8 devices a replica .* is 4; lower the one"),
    "data.train_batch_size": (0, r"data.train_batch_size=0 must be a whole number of at least 1"),
    "data.gen_batch_size": (4, r"data.gen_batch_size=4 is set, .* remove it"),
    "trainer.v1.sampler.custom_sampler.path": ("s.py", r"custom_sampler.path is set, .* remove it"),
    "skip.rollout_tq.enable": (True, r"skip.rollout_tq.enable=True"),
    "algorithm.filter_groups.enable": (True, r"filter_groups.enable=True .* set it to False"),
    "trainer.v1.tailsieve.q": (8, r"q=8 must be between 1 and 7"),
    "trainer.v1.tailsieve.m": (4, r"m=4 must be between 1 and 3"),
    "trainer.v1.tailsieve.policy": ("best", r"policy=best is unknown"),
    "trainer.v1.tailsieve.callbacks": ([{"_target_": "no.Such"}], r"callbacks\[0\]: no.Such cannot be imported"),
    "trainer.v1.tailsieve.tail_placement": (
        {"_target_": "json.JSONDecoder"},
        r"tail_placement: json.JSONDecoder is not a",
    ),
    "trainer.v1.tailsieve.bulk_placement": ("none", r"bulk_placement=none is unknown; choose one of group, request"),
    "trainer.v1.tailsieve.tail_selector": ({"_target_": "json.dumps"}, r"tail_selector: json.dumps is a function"),
    "trainer.v1.tailsieve": (None, r"trainer.v1.tailsieve is null; drop the override"),
    "trainer.v1.tailsieve.polcy": ("fixed", r"did you mean policy\?"),
    "trainer.v1.tailsieve.curve": ("${nope}", r"trainer.v1.tailsieve cannot be resolved: .*'nope' not found"),
    "trainer.default_local_dir": (None, r"trainer.default_local_dir=None must be a folder"),
    "trainer.n_gpus_per_node": ("x", r"trainer.n_gpus_per_node=x must be a whole number of at least 1"),
    "actor_rollout_ref.rollout.data_parallel_size": (-1, r"rollout.data_parallel_size=-1 must be a whole number"),
    "data.train_files": (None, r"data.train_files=None must be a parquet file, or a list of them"),
}


@pytest.mark.parametrize("key", BAD)
def test_bad_values(config, key):
    value, said = BAD[key]
    with pytest.raises(TailSieveConfigError, match=said) as error:
        preflight.check(changed(config, key, value))
    sentence = str(error.value)
    assert sentence[-1] in ".?"
    assert "\n" not in sentence


@pytest.mark.parametrize("key", ["data.train_batch_size", "actor_rollout_ref.rollout.n"])
def test_missing_sizes(config, key):
    with pytest.raises(TailSieveConfigError, match=re.escape(f"{key}=None must be a whole number")):
        preflight.check(changed(config, key, None))


def test_one_replica_runs_uniform_with_a_warning(config, caplog):
    with caplog.at_level(logging.WARNING):
        preflight.check(changed(config, "trainer.n_gpus_per_node", 1))
    assert "one rollout replica leaves nothing to route, the run is uniform" in caplog.text


def test_a_dataset_smaller_than_a_batch(config, tmp_path):
    counting.write(tmp_path, train=5, val=2, seed=0)
    small = changed(config, "data.train_files", str(tmp_path / "train.parquet"))
    with pytest.raises(TailSieveConfigError, match=r"holds 5 prompts, fewer than data.train_batch_size=8"):
        preflight.check(small)


@pytest.mark.parametrize("content", [b"", b"no parquet at all", None])
def test_what_is_no_parquet_file(config, tmp_path, content):
    path = tmp_path / "data.parquet"
    path.mkdir() if content is None else path.write_bytes(content)
    for key in ("data.train_files", "trainer.v1.tailsieve.warm_up"):
        with pytest.raises(TailSieveConfigError, match=rf"^{key}: .*data.parquet is not a parquet file \(.*\); write"):
            preflight.check(changed(config, key, str(path)))


def test_settings_that_are_no_mapping(config):
    broken = config.copy()
    with open_dict(broken):
        broken.trainer.v1.tailsieve = 5
    with pytest.raises(TailSieveConfigError, match="tailsieve=5 must be a mapping of settings"):
        preflight.check(broken)


def test_a_module_that_ends_the_program(config, tmp_path, monkeypatch):
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit('two\\nlines')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TailSieveConfigError, match=r"a_script.C cannot be imported \(SystemExit: two lines\)"):
        preflight.check(changed(config, "trainer.v1.tailsieve.callbacks", [{"_target_": "a_script.C"}]))


def test_a_dataset_of_the_users_own_is_counted_by_the_trainer(config, tmp_path):
    counting.write(tmp_path, train=5, val=2, seed=0)
    small = changed(config, "data.train_files", str(tmp_path / "train.parquet"))
    preflight.check(changed(small, "data.custom_cls.path", "my_dataset.py"))


@pytest.mark.parametrize(
    ("package", "version", "said"),
    [
        ("verl", "0.9.0", r"verl 0.9.0 is installed, TailSieve needs 0.9.1 or a later 0.9; install verl==0.9.1"),
        ("verl", "0.10.0", r"verl 0.10.0 is installed"),
        ("vllm", "0.18.0", r"vLLM 0.18.0 is installed, TailSieve needs 0.24.0 or newer; upgrade it"),
    ],
)
def test_versions_outside_the_supported(monkeypatch, package, version, said):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == package else real(name))
    with pytest.raises(TailSieveConfigError, match=said):
        preflight.check_versions()


def test_no_vllm_at_all(monkeypatch):
    def version(name):
        if name.startswith("vllm"):
            raise metadata.PackageNotFoundError(name)
        return "0.9.1"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(TailSieveConfigError, match="vLLM is not installed; install"):
        preflight.check_versions()


def saved_run(folder, state):
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    step = folder / "global_step_3"
    step.mkdir()
    if state is not None:
        checkpoint.save(step, state, {})
    return step


def test_the_checkpoint_to_resume_from_is_checked(config, tmp_path):
    config = changed(config, "trainer.default_local_dir", str(tmp_path))
    preflight.check(config)  # nothing there yet
    step = saved_run(tmp_path, None)
    assert preflight.resume_folder(config) == step
    with pytest.raises(checkpoint.CheckpointError, match="saved by a run without TailSieve"):
        preflight.check(config)
    checkpoint.save(step, {"n_groups": 16}, {})
    with pytest.raises(checkpoint.CheckpointError, match="train_batch_size=16, this run has 8"):
        preflight.check(config)
    preflight.check(changed(config, "trainer.resume_mode", "disable"))
    (step / "tailsieve/state.json").write_text(json.dumps({"format": 1, "n_groups": 8, "prompts": []}))
    preflight.check(config)
    # It has the history itself, so the run that it began with may be gone.
    history = changed(config, "trainer.v1.tailsieve.selector", "history")
    preflight.check(changed(history, "trainer.v1.tailsieve.history_from", str(tmp_path / "gone")))


def launch(*extra, **env):
    run = CpuRun(model=Path("nowhere"), data=Path("nowhere"), out=Path("nowhere"))
    return subprocess.run(
        run.command(*extra), env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    ("extra", "env", "said"),
    [
        (["trainer.v1.tailsieve.q=9"], {}, "q=9 must be between 1 and 7"),
        ([], {"VERL_USE_EXTERNAL_PLUGINS": "other"}, "VERL_USE_EXTERNAL_PLUGINS=other keeps verl from loading"),
    ],
)
def test_the_real_command_ends_with_the_sentence_alone(tmp_path, extra, env, said):
    if env:
        env = {**env, "VERL_PLATFORM": ""}
    result = launch("+tailsieve=default", f"hydra.run.dir={tmp_path}", *extra, **env)
    assert result.returncode == 1
    assert said in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("tailsieve: ")
    assert "Traceback" not in result.stderr
    assert "ray init kwargs" not in result.stdout
