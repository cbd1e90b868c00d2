"""Replicas and memory, by arithmetic: what a command's sizes come to, in rough words.

Rough means: weights and KV cache alone. CUDA graphs, activations and fragmentation take some GiB more, and vLLM's own
start-up log has the true numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tailsieve_verl.config.schema import TailSieveConfig, resolve_split
from tailsieve_verl.doctor.findings import Section
from tailsieve_verl.integration.preflight import count_replicas
from tailsieve_verl.integration.speculation_checks import local_folder, model_settings

GIB = 2**30
#: A bulk replica's running requests are at half of the length limit on average, if answers reach it; most do not.
TYPICAL_SHARE = 0.5
#: Below four replicas a split takes so much from the bulk pool that it rarely pays (docs/when-it-helps.md).
FEW_REPLICAS = 4
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True)
class ModelSize:
    """What a model's config.json says of memory.

    Attributes:
        kv_bytes: KV cache of a token over all layers, before it is divided among tensor-parallel ranks.
        kv_heads: heads that it can be divided by.
        weight_bytes: all weights; ``None`` if neither files nor config tell.
    """

    kv_bytes: int
    kv_heads: int
    weight_bytes: int | None


def model_size(settings: Mapping[str, Any], folder: Path | None, kv_dtype: str = "bfloat16") -> ModelSize | None:
    """Sizes of a decoder from its ``config.json``; ``None`` if it lacks the usual keys.

    Layers with linear attention keep a state of constant size and are left out; latent attention (MLA) is counted by
    its latent vector.
    """
    try:
        layers, hidden, heads = (int(settings[k]) for k in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    except (KeyError, TypeError):
        return None
    kinds = settings.get("layer_types")
    full = sum(kind != "linear_attention" for kind in kinds) if kinds else layers
    size = BYTES.get(kv_dtype, 2)
    if settings.get("kv_lora_rank"):
        latent = int(settings["kv_lora_rank"]) + int(settings.get("qk_rope_head_dim", 0))
        return ModelSize(full * latent * size, 1, _weights(folder))
    kv_heads = int(settings.get("num_key_value_heads") or heads)
    head = int(settings.get("head_dim") or hidden // heads)
    return ModelSize(2 * full * kv_heads * head * size, kv_heads, _weights(folder))


def check_sizes(config: DictConfig, settings: TailSieveConfig, gpus_gib: list[float]) -> Section:
    """Findings on replicas, load and memory of a composed configuration that has passed the checks.

    Args:
        gpus_gib: memory of the GPUs seen here, or as told by the user; empty if unknown.
    """
    section = Section("Replicas and memory")
    rollout = config.actor_rollout_ref.rollout
    tp, dp, pp = (
        int(rollout.get(f"{kind}_parallel_size", 1) or 1) for kind in ("tensor_model", "data", "pipeline_model")
    )
    devices = int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)
    replicas, size = count_replicas(config), tp * dp * pp
    groups, n = int(config.data.train_batch_size), int(rollout.n)
    section.ok(f"{devices} devices / (TP {tp} x DP {dp} x PP {pp}) = {replicas} replicas (R)")
    if devices % size:
        section.warning(
            f"{devices % size} of {devices} devices hold no replica: {size} do not divide {devices}.",
            "choose parallel sizes that divide the devices",
        )
    if 1 < replicas < FEW_REPLICAS:
        section.note(f"with {replicas} replicas a split rarely pays: the bulk pool would lose too large a share.")
    q, m = resolve_split(settings, groups, replicas)
    per_replica = groups * n / replicas
    text = f"{groups} groups of {n} = {groups * n} responses a step, {per_replica:.4g} a replica under uniform routing"
    bulk = per_replica
    if replicas > 1 and groups > 1 and settings.policy != "uniform_group":
        shown = (q, m) if q else (max(1, groups // 8), max(1, replicas // 2))
        bulk = groups * n / (replicas - shown[1])
        verb = "starts with" if q else "starts uniform; under, say,"
        text += f"; it {verb} (q, m) = {shown}: {shown[0] * n / shown[1]:.4g} a tail replica, {bulk:.4g} a bulk replica"
    section.ok(text)
    seats = int(rollout.get("max_num_seqs") or 0)
    if seats and bulk > seats:
        section.note(
            f"actor_rollout_ref.rollout.max_num_seqs={seats} is less than {bulk:.0f}: the rest waits in the engine, "
            f"and the tail pool's low concurrency is worth less.",
            "raise max_num_seqs if the KV cache has room",
        )
    _check_memory(config, section, gpus_gib, tp, bulk)
    if settings.speculation.enabled:
        _check_drafter(config, settings, section)
    return section


def _check_memory(config: DictConfig, section: Section, gpus_gib: list[float], tp: int, bulk: float) -> None:
    rollout = config.actor_rollout_ref.rollout
    path = str(config.actor_rollout_ref.model.path)
    folder = local_folder(path)
    raw = model_settings(str(folder)) if folder is not None else None
    dtype = str(OmegaConf.select(rollout, "engine_kwargs.vllm.kv_cache_dtype") or rollout.get("dtype") or "bfloat16")
    size = model_size(raw, folder, dtype) if raw is not None else None
    if size is None:
        why = "is not on this machine" if raw is None else "has a config.json of an unknown kind"
        section.note(f"actor_rollout_ref.model.path={path} {why}: its KV cache is not estimated.")
        return
    length = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    # Ranks beyond the number of KV heads hold copies.
    per_rank = size.kv_bytes / min(tp, size.kv_heads)
    one = length * per_rank / GIB
    section.ok(
        f"KV cache: {per_rank / 1024:.4g} KiB a token and device; a response at the limit of {length} tokens takes "
        f"{one:.2g} GiB, {bulk:.0f} of them half way there {bulk * one * TYPICAL_SHARE:.3g} GiB"
    )
    if not gpus_gib:
        section.note("no GPU is seen here: give --gpu-memory GiB to compare this with what a device has.")
        return
    share = float(rollout.get("gpu_memory_utilization") or 0.5)
    weights = (size.weight_bytes or 0) / tp / GIB
    room = min(gpus_gib) * share - weights
    about = f"{min(gpus_gib):.0f} GiB x {share:g} less {weights:.3g} GiB of weights"
    if room <= 0:
        section.warning(f"{about} leaves no KV cache.", "raise actor_rollout_ref.rollout.gpu_memory_utilization or TP")
        return
    need = bulk * one * TYPICAL_SHARE
    text = f"{about} leaves about {room:.3g} GiB for it: {room / one:.3g} responses at the limit, a device"
    if need > room:
        section.warning(
            f"{text}. If many answers run long, a bulk replica preempts: the decode curve no longer holds.",
            "fewer responses a replica, more memory, or a smaller tail pool (trainer.v1.tailsieve.m)",
        )
    else:
        section.ok(text)


def _check_drafter(config: DictConfig, settings: TailSieveConfig, section: Section) -> None:
    spec = settings.speculation
    if not spec.has_weights:
        section.ok(f"speculation: {spec.method} needs no memory for a drafter")
        return
    folder = local_folder(spec.model) if spec.model else None
    weights = _weights(folder)
    if weights is not None:
        section.ok(f"speculation: the drafter's weights take {weights / GIB:.2g} GiB of every replica")
    elif spec.method == "mtp":
        section.note("speculation: MTP layers take about one decoder layer's memory each, and their KV cache.")
    else:
        section.note(f"speculation: {spec.model} is not on this machine, so its memory is not known.")
    rollout = config.actor_rollout_ref.rollout
    model = _weights(local_folder(str(config.actor_rollout_ref.model.path)))
    if model is not None and rollout.get("free_cache_engine", True):
        ranks = int(rollout.get("tensor_model_parallel_size") or 1)  # verl's vLLM has no pipeline stages
        share = (model + (weights or 0)) * int(config.trainer.n_gpus_per_node) / ranks / GIB
        section.note(
            f"speculation: while the trainer works, engines keep model and drafter in pinned host memory (sleep level "
            f"1): {share:.3g} GiB a node at least, beside what the trainer offloads."
        )


def _weights(folder: Path | None) -> int | None:
    if folder is None:
        return None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
