"""Replicas and memory of a composed command, against figures worked out by hand."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf, open_dict

from tailsieve_verl.config.schema import parse
from tailsieve_verl.doctor.sizes import GIB, check_sizes, local_folder, model_size

from ..config.compose import compose

#: Shape of Qwen3-8B: 36 layers, 8 KV heads of 128, so 2 * 36 * 8 * 128 * 2 bytes = 144 KiB a token.
QWEN3_8B = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@pytest.fixture(scope="module")
def base():
    return compose("+tailsieve=default", n_groups=64, n=8, replicas=16)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(16 * GIB)  # a sparse file: no disk is used
    return tmp_path


def findings(base, gpus=(), **changes):
    config = base.copy()
    with open_dict(config):
        for key, value in changes.items():
            OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    settings = parse(OmegaConf.to_container(config.trainer.v1.tailsieve, resolve=True))
    return [(f.status, f.text) for f in check_sizes(config, settings, list(gpus)).findings]


TP2 = {"actor_rollout_ref__rollout__tensor_model_parallel_size": 2}
LONG = {"data__max_prompt_length": 2048, "data__max_response_length": 14336}


def test_replicas_and_load(base):
    said = findings(base, **TP2)
    assert ("ok", "16 devices / (TP 2 x DP 1 x PP 1) = 8 replicas (R)") in said
    load = next(text for _, text in said if "responses a step" in text)
    assert load == (
        "64 groups of 8 = 512 responses a step, 64 a replica under uniform routing; it starts uniform; under, say, "
        "(q, m) = (8, 4): 16 a tail replica, 128 a bulk replica"
    )
    assert any("max_num_seqs=64 is less than 128" in text for status, text in said if status == "note")


def test_a_start_that_is_set(base):
    load = next(t for _, t in findings(base, trainer__v1__tailsieve__q=4, trainer__v1__tailsieve__m=2) if "a step" in t)
    assert "it starts with (q, m) = (4, 2): 16 a tail replica, 36.57 a bulk replica" in load


def test_devices_left_over_and_few_replicas(base):
    said = findings(base, actor_rollout_ref__rollout__tensor_model_parallel_size=6)
    assert ("warning", "4 of 16 devices hold no replica: 6 do not divide 16.") in said
    assert any(status == "note" and "with 2 replicas a split rarely pays" in text for status, text in said)


def test_memory_that_is_enough(base, model):
    """TP 2 halves 144 KiB; 16384 tokens of 72 KiB are 1.125 GiB; (0.9 * 140) - 8 = 118 GiB hold 105 of them."""
    said = findings(
        base, [140.0], **TP2, **LONG, actor_rollout_ref__model__path=str(model),
        actor_rollout_ref__rollout__gpu_memory_utilization=0.9,
    )  # fmt: skip
    text = " ".join(t for _, t in said)
    assert "KV cache: 72 KiB a token and device; a response at the limit of 16384 tokens takes 1.1 GiB" in text
    assert "128 of them half way there 72 GiB" in text
    assert "140 GiB x 0.9 less 8 GiB of weights leaves about 118 GiB for it: 105 responses at the limit" in text
    assert "warning" not in {status for status, _ in said}


def test_memory_that_is_not(base, model):
    path = {"actor_rollout_ref__model__path": str(model)}
    said = findings(base, [80.0], **TP2, **LONG, **path, actor_rollout_ref__rollout__gpu_memory_utilization=0.5)
    assert any(status == "warning" and "a bulk replica preempts" in text for status, text in said)
    said = findings(base, [24.0], **LONG, **path, actor_rollout_ref__rollout__gpu_memory_utilization=0.5)
    assert any(status == "warning" and "leaves no KV cache" in text for status, text in said)


def test_without_a_gpu_or_a_model(base, model):
    assert any("give --gpu-memory" in t for _, t in findings(base, actor_rollout_ref__model__path=str(model)))
    assert any("is not on this machine" in t for _, t in findings(base))


def test_a_drafter(base, model):
    spec = "trainer__v1__tailsieve__speculation"
    said = findings(base, **{f"{spec}__method": "dflash", f"{spec}__model": str(model)})
    assert ("ok", "speculation: the drafter's weights take 16 GiB of every replica") in said
    asleep = {"actor_rollout_ref__model__path": str(model), "actor_rollout_ref__rollout__free_cache_engine": True}
    said = findings(base, **{f"{spec}__method": "mtp"}, **asleep, **TP2)
    assert any("in pinned host memory (sleep level 1): 128 GiB a node at least" in text for _, text in said)
    assert any("ngram needs no memory" in t for _, t in findings(base, **{f"{spec}__method": "ngram"}))
    assert any("MTP layers take about one" in t for _, t in findings(base, **{f"{spec}__method": "mtp"}))


def test_kv_cache_of_other_kinds_of_model():
    assert model_size(QWEN3_8B, None).kv_bytes == 144 * 1024
    assert model_size(QWEN3_8B, None, "fp8").kv_bytes == 72 * 1024
    hybrid = {**QWEN3_8B, "layer_types": ["linear_attention"] * 27 + ["full_attention"] * 9}
    assert model_size(hybrid, None).kv_bytes == 36 * 1024
    latent = {**QWEN3_8B, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert model_size(latent, None).kv_bytes == 36 * 576 * 2
    assert model_size({"model_type": "odd"}, None) is None


def test_a_model_s_folder(model):
    assert local_folder(str(model)) == model
    assert local_folder("nobody/has-this-model") is None
    assert local_folder(str(Path("nowhere") / "at" / "all")) is None
