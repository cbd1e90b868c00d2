"""Made-up targets and drafters: the target counts mostly, MTP heads and drafters carry what vLLM reads."""

import json

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file

from tailsieve_verl.workloads.drafters import (
    codes,
    make_dflash,
    make_draft_model,
    make_eagle3,
    make_random_draft_model,
    make_target,
    one_step,
)
from tailsieve_verl.workloads.models import ensure_tiny


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return ensure_tiny(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="module")
def target(tokenizer, tmp_path_factory):
    return make_target(tokenizer, tmp_path_factory.mktemp("target") / "target")


def counted(folder):
    """Share of a greedy continuation's tokens that are one more than the token before."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = torch.tensor([[50 + 17 * i, 60, 70 + i, 80] for i in range(8)])
    tokens = model.generate(prompts, do_sample=False, max_new_tokens=40, min_new_tokens=40)[:, 4:]
    return float(((tokens[:, 1:] - tokens[:, :-1] - 1) % model.config.vocab_size == 0).float().mean())


def test_codes_of_different_tokens_are_almost_orthogonal_and_turn_by_one_map():
    for hidden in (64, 1024):  # the larger one uses every frequency more than once
        table = codes(512, hidden)
        products = table @ table.T
        assert torch.allclose(products.diagonal(), torch.full((512,), hidden / 2.0), rtol=1e-3)
        assert (products - torch.diag(products.diagonal())).abs().max() < 0.6 * hidden / 2
        assert torch.allclose(table @ one_step(512, hidden).T, codes(512, hidden, 1), atol=1e-4)


def test_a_target_counts_as_often_as_its_layers_let_it(tokenizer, target, tmp_path):
    assert 0.6 < counted(target) < 0.98
    assert counted(make_target(tokenizer, tmp_path / "sure", disturbed=0.6)) == 1.0


def test_an_mtp_target_is_the_same_to_training_and_carries_one_layer_for_vllm(tokenizer, tmp_path):
    folder = make_target(tokenizer, tmp_path / "mtp", mtp=True)
    assert 0.6 < counted(folder) < 0.98
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["num_nextn_predict_layers"]) == (["MiMoForCausalLM"], 1)
    layer = [name for name in load_file(folder / "model.safetensors") if name.startswith("model.mtp_layers.0.")]
    assert len(layer) == 16


def test_draft_models_differ_from_their_target_as_asked(target, tmp_path):
    own = load_file(target / "model.safetensors")
    near = load_file(make_draft_model(target, tmp_path / "near") / "model.safetensors")
    far = load_file(make_random_draft_model(target, tmp_path / "far") / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    assert 0 < (near[name] - own[name]).norm() < 0.05 * own[name].norm()
    assert torch.equal(near["lm_head.weight"], own["lm_head.weight"])
    assert torch.corrcoef(torch.stack([far["lm_head.weight"].flatten(), own["lm_head.weight"].flatten()]))[0, 1] < 0.1


def test_drafters_have_the_target_s_vocabulary_and_width(target, tmp_path):
    for make in (make_eagle3, make_dflash):
        folder = make(target, tmp_path / make.__name__)
        config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        assert weights["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
