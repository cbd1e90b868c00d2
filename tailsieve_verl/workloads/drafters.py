"""Targets and drafters with known acceptance for runs on a CPU, written down instead of trained.

Tokens lie on a circle: ``code(u)`` holds cosines and sines of u at many frequencies, so that codes of different tokens
are almost orthogonal, and turning a code by one step is a linear map. The target embeds token u as code(u + 1) and
reads tokens off by their codes: it would count, if its layers, which are random, did not disturb it. Each drafter
counts. How often they agree is set by the size of the target's layers (greedy) and the scale of its logits (sampled).

Everything here is a model folder as Hugging Face and vLLM read it, and needs nothing but a tokenizer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Weights = dict[str, torch.Tensor]

ROPE_THETA = 10000.0
#: Of a query and a key that are to find one position among all. At 8 the neighbours get e^-15 of its weight, and norms
#: make much of the little that comes through; at 12, e^-34.
FOCUS = 12.0

#: Layers of the target whose states a drafter is given (vLLM's own choice needs a target of five layers or more).
AUXILIARY = [1, 2]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; the drafter of a target has its hidden size and heads."""

    hidden: int = 64
    heads: int = 2
    layers: int = 2
    intermediate: int = 128
    dtype: str = "float32"

    @property
    def head(self) -> int:
        return self.hidden // self.heads


def codes(vocabulary: int, hidden: int, shift: int = 0) -> torch.Tensor:
    """[V, hidden]: the code of each token, ``shift`` steps on."""
    angles = np.outer(np.arange(vocabulary) + shift, _frequencies(vocabulary, hidden))
    return torch.tensor(np.concatenate([np.cos(angles), np.sin(angles)], axis=1), dtype=torch.float32)


def one_step(vocabulary: int, hidden: int) -> torch.Tensor:
    """[hidden, hidden]: the map from code(u) to code(u + 1)."""
    cos, sin = (np.diag(f(_frequencies(vocabulary, hidden))) for f in (np.cos, np.sin))
    return torch.tensor(np.block([[cos, -sin], [sin, cos]]), dtype=torch.float32)


def make_target(
    tokenizer: str | Path,
    out: str | Path,
    *,
    sizes: Sizes | None = None,
    mtp: bool = False,
    disturbed: float = 1.15,
    sharpness: float = 0.25,
    seed: int = 0,
) -> Path:
    """A counting target: a Qwen3, or with ``mtp`` a Qwen2 that vLLM takes for a MiMo with one MTP layer.

    Args:
        tokenizer: folder of a model whose tokenizer this one gets.
        disturbed: size of its layers' output; at 1.15 and hidden size 64 greedy decoding counts 9 times of 10.
        sharpness: scale of its logits, ``sharpness * hidden / sqrt(2)`` at most.
    """
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes, folder = sizes or Sizes(), Path(out)
    words = AutoTokenizer.from_pretrained(tokenizer)
    kind, settings = (Qwen2ForCausalLM, Qwen2Config) if mtp else (Qwen3ForCausalLM, Qwen3Config)
    torch.manual_seed(seed)
    model = kind(
        settings(
            vocab_size=len(words),
            hidden_size=sizes.hidden,
            intermediate_size=sizes.intermediate,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads,
            head_dim=sizes.head,
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            eos_token_id=words.eos_token_id,
            pad_token_id=words.pad_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(codes(len(words), sizes.hidden, 1))
        model.lm_head.weight.copy_(sharpness * codes(len(words), sizes.hidden))
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for part in (attention.v_proj, attention.o_proj, mlp.up_proj, mlp.down_proj):
                part.weight.normal_(0.0, disturbed * part.weight.shape[1] ** -0.5)
            for part in (attention.q_proj, attention.k_proj, mlp.gate_proj):
                part.weight.normal_(0.0, part.weight.shape[1] ** -0.5)
    model.to(getattr(torch, sizes.dtype)).save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "sizes.json").write_text(json.dumps(asdict(sizes)))
    if mtp:
        _add_mtp_layer(folder)
    return folder


def make_draft_model(target: str | Path, out: str | Path, *, noise: float = 0.02, seed: int = 1) -> Path:
    """The target with noise of relative size ``noise`` on every matrix of its layers."""
    generator = torch.Generator().manual_seed(seed)

    def change(name: str, value: torch.Tensor) -> torch.Tensor:
        if "proj" not in name:
            return value
        drawn = torch.randn(value.shape, generator=generator) * value.float().std()
        return ((1 - noise**2) ** 0.5 * value + noise * drawn).to(value.dtype)

    return _changed(target, out, change)


def make_random_draft_model(target: str | Path, out: str | Path, *, seed: int = 2) -> Path:
    """A model of the target's shape with random matrices, embedding and head included: as good as no drafter."""
    generator = torch.Generator().manual_seed(seed)

    def change(name: str, value: torch.Tensor) -> torch.Tensor:
        return (0.1 * torch.randn(value.shape, generator=generator)).to(value.dtype) if value.ndim == 2 else value

    return _changed(target, out, change)


def make_eagle3(target: str | Path, out: str | Path, *, sharpness: float = 0.25) -> Path:
    """EAGLE-3: one layer whose attention looks at its own token alone and passes its embedding on: it counts."""
    sizes, vocabulary = _sizes(target), _vocabulary(target)
    hidden, eye = sizes.hidden, torch.eye(sizes.hidden)
    weights = {
        "fc.weight": torch.zeros(hidden, len(AUXILIARY) * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": sharpness * codes(vocabulary, hidden),
        "midlayer.hidden_norm.weight": torch.zeros(hidden),  # what the target's layers say is ignored
        **_silent_mlp("midlayer", hidden),
        "midlayer.self_attn.v_proj.weight": torch.cat([eye, torch.zeros(hidden, hidden)], dim=1),  # embedding, state
        "midlayer.self_attn.v_proj.bias": torch.zeros(hidden),
        "midlayer.self_attn.o_proj.weight": eye,
        "midlayer.self_attn.o_proj.bias": torch.zeros(hidden),
    }
    for name in ("q_proj", "k_proj"):  # constant: the rotary embedding alone tells positions apart
        weights[f"midlayer.self_attn.{name}.weight"] = torch.zeros(hidden, 2 * hidden)
        weights[f"midlayer.self_attn.{name}.bias"] = FOCUS * torch.ones(hidden)
    special = {
        "norm_before_residual": True,
        "draft_vocab_size": vocabulary,
        "eagle_aux_hidden_state_layer_ids": AUXILIARY,
        "num_aux_hidden_states": len(AUXILIARY),
    }
    return _save(weights, out, target, layers=1, architecture="LlamaForCausalLMEagle3", model_type="llama", **special)


def make_dflash(target: str | Path, out: str | Path, *, block: int = 6, sharpness: float = 0.25) -> Path:
    """DFlash: each layer looks one slot back and turns what it finds by one step: draft j is right from layer j on.

    Args:
        block: the token it starts from and ``block - 1`` drafts.
    """
    sizes, vocabulary = _sizes(target), _vocabulary(target)
    hidden, key = sizes.hidden, torch.ones(sizes.head)
    embedding = codes(vocabulary, hidden)
    embedding[0] = 0.0  # the mask token
    weights = {
        "fc.weight": torch.zeros(hidden, len(AUXILIARY) * hidden),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "embed_tokens.weight": embedding,
        "lm_head.weight": sharpness * codes(vocabulary, hidden),
    }
    for i in range(block - 1):
        attention = f"layers.{i}.self_attn"
        weights |= {
            **_silent_mlp(f"layers.{i}", hidden),
            f"{attention}.q_proj.weight": torch.zeros(hidden, hidden),
            f"{attention}.q_proj.bias": _one_back(key).repeat(sizes.heads),
            f"{attention}.k_proj.weight": torch.zeros(hidden, hidden),
            f"{attention}.k_proj.bias": key.repeat(sizes.heads),
            f"{attention}.q_norm.weight": FOCUS * torch.ones(sizes.head),
            f"{attention}.k_norm.weight": FOCUS * torch.ones(sizes.head),
            f"{attention}.v_proj.weight": one_step(vocabulary, hidden),
            f"{attention}.v_proj.bias": torch.zeros(hidden),
            f"{attention}.o_proj.weight": torch.eye(hidden),
            f"{attention}.o_proj.bias": torch.zeros(hidden),
        }
    layers = [i - 1 for i in AUXILIARY]  # DFlash counts from 0
    special = {"block_size": block, "dflash_config": {"mask_token_id": 0, "target_layer_ids": layers}}
    return _save(weights, out, target, layers=block - 1, architecture="DFlashDraftModel", model_type="qwen3", **special)


def _add_mtp_layer(folder: Path) -> None:
    """One MTP layer that passes the embedding of its token through: it counts."""
    sizes = _sizes(folder)
    hidden, wide = sizes.hidden, sizes.intermediate
    layer, eye = "model.mtp_layers.0", torch.eye(hidden)
    mine = {
        f"{layer}.input_proj.weight": torch.cat([torch.zeros(hidden, hidden), eye], dim=1),  # hidden state, embedding
        f"{layer}.self_attn.o_proj.weight": torch.zeros(hidden, hidden),
        **_silent_mlp(layer, hidden, wide),
    }
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        mine[f"{layer}.{name}.weight"] = torch.ones(hidden)
    for name in ("q_proj", "k_proj", "v_proj"):
        mine[f"{layer}.self_attn.{name}.weight"] = eye.clone()
        mine[f"{layer}.self_attn.{name}.bias"] = torch.zeros(hidden)
    file = folder / "model.safetensors"
    mine = {name: value.to(getattr(torch, sizes.dtype)) for name, value in mine.items()}
    save_file({**load_file(file), **mine}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))


def _silent_mlp(layer: str, hidden: int, wide: int = 64) -> Weights:
    """A layer's norms, and an MLP that adds nothing."""
    return {
        f"{layer}.input_layernorm.weight": torch.ones(hidden),
        f"{layer}.post_attention_layernorm.weight": torch.ones(hidden),
        f"{layer}.mlp.gate_proj.weight": torch.zeros(wide, hidden),
        f"{layer}.mlp.up_proj.weight": torch.zeros(wide, hidden),
        f"{layer}.mlp.down_proj.weight": torch.zeros(hidden, wide),
    }


def _one_back(key: torch.Tensor) -> torch.Tensor:
    """The query whose best match is this key one position before; rotary pairs are (i, i + half)."""
    half = key.numel() // 2
    angles = torch.tensor([ROPE_THETA ** (-i / half) for i in range(half)])
    a, b = key[:half], key[half:]
    return torch.cat([a * angles.cos() + b * angles.sin(), b * angles.cos() - a * angles.sin()])


def _frequencies(vocabulary: int, hidden: int) -> np.ndarray:
    """[hidden / 2] angles of one step; every frequency is used before one is used twice."""
    order = np.random.default_rng(0).permutation(np.arange(1, vocabulary // 2))
    return 2 * np.pi * np.resize(order, hidden // 2) / vocabulary


def _changed(target: str | Path, out: str | Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Path:
    shutil.copytree(target, out)
    file = Path(out) / "model.safetensors"
    weights = {name: change(name, value) for name, value in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    return Path(out)


def _sizes(folder: str | Path) -> Sizes:
    return Sizes(**json.loads((Path(folder) / "sizes.json").read_text()))


def _vocabulary(folder: str | Path) -> int:
    return int(json.loads((Path(folder) / "config.json").read_text())["vocab_size"])


def _save(
    weights: Weights,
    out: str | Path,
    target: str | Path,
    *,
    layers: int,
    architecture: str,
    model_type: str,
    **special: Any,
) -> Path:
    sizes, folder = _sizes(target), Path(out)
    folder.mkdir(parents=True)
    dtype = getattr(torch, sizes.dtype)
    # Clones: the format refuses tensors that share memory.
    save_file({name: value.to(dtype).clone() for name, value in weights.items()}, folder / "model.safetensors")
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": _vocabulary(target),
        "hidden_size": sizes.hidden,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "head_dim": sizes.head,
        "attention_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": sizes.dtype,
        **special,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
