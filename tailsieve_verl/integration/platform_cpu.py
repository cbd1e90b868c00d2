"""A verl platform for machines without an accelerator: replica i of vLLM's CPU build runs on core i.

Asked for by ``VERL_PLATFORM=cpu`` (and ``VERL_ENGINE_DEVICE=cuda``, which selects verl's FSDP engine class and nothing
else). It is never chosen by detection. For verl 0.9.x, through verl's platform registry.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What a rollout server process needs to run like the others.
FORWARDED = ("VERL_PLATFORM", "VERL_ENGINE_DEVICE", "VLLM_CPU_KVCACHE_SPACE", "TORCH_COMPILE_DISABLE")


def _device_module() -> types.ModuleType:
    """torch.cpu with the functions of torch.cuda that verl calls."""
    import psutil
    import torch

    def memory() -> tuple[int, int]:
        usage = psutil.virtual_memory()
        return usage.available, usage.total

    module = types.ModuleType("tailsieve_cpu_device")
    module.__getattr__ = lambda name: getattr(torch.cpu, name)  # type: ignore[method-assign]
    constants: dict[str, Any] = {
        "is_available": False,  # verl's memory helpers return early then
        "device_count": 1,
        "current_device": "cpu",
        "get_device_name": "cpu",
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats")),
    }
    for name, value in constants.items():
        setattr(module, name, lambda *args, _value=value, **kwargs: _value)
    module.mem_get_info = lambda *args: memory()  # type: ignore[attr-defined]
    module.manual_seed = module.manual_seed_all = torch.manual_seed  # type: ignore[attr-defined]
    module.get_rng_state = lambda *args: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, *args: torch.set_rng_state(state)  # type: ignore[attr-defined]
    return module


def register() -> None:
    """Register the platform ``cpu`` with verl."""
    import torch
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    class PlatformCPU(PlatformBase):
        device_name = "cpu"
        vendor_name = "generic"
        device_module = _device_module()

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            return False  # never detected, only asked for

        def current_device(self) -> str:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            pass

        def synchronize(self, device_index: int | None = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None:
            pass

        def empty_cache(self) -> None:
            pass

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            # verl writes the number of the replica's logical device here before it starts the engine: its core.
            return "VLLM_CPU_OMP_THREADS_BIND"

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            pass

        def profiler_stop(self) -> None:
            pass

        def ray_resource_name(self) -> str:
            return "GPU"  # logical devices: ray_init.num_gpus

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False  # weights go through shared memory

        def rollout_env_vars(self) -> dict[str, str]:
            return {name: os.environ[name] for name in FORWARDED if name in os.environ}

        def cudart(self) -> None:
            return None

    PlatformRegistry.register(platform="cpu")(PlatformCPU)
