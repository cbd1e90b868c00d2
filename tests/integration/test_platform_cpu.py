import subprocess
import sys


def test_the_platform_is_there_when_asked_for_and_only_then():
    code = """
import os, verl
from verl.plugin.platform import PlatformRegistry, get_platform
platform = get_platform()
print(platform.device_name, platform.visible_devices_envvar(), platform.is_ipc_supported(),
      sorted(platform.rollout_env_vars()), platform.device_module.is_available(), platform.device_module.device_count())
"""
    env = {"PATH": "/usr/bin:/bin", "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "HOME": "/tmp"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    said = "cpu VLLM_CPU_OMP_THREADS_BIND False ['VERL_ENGINE_DEVICE', 'VERL_PLATFORM'] False 1"
    assert run.stdout.strip().splitlines()[-1] == said
    other = subprocess.run(
        [sys.executable, "-c", "import sys, verl; print('tailsieve_verl.integration.platform_cpu' in sys.modules)"],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert other.stdout.strip().splitlines()[-1] == "False"


def test_every_method_of_verl_s_platform_is_answered():
    code = """
import inspect
from verl.plugin.platform import PlatformBase, PlatformRegistry, get_platform
ours = type(get_platform())
print([n for n in PlatformBase.__abstractmethods__ if getattr(ours, n) is getattr(PlatformBase, n)])
"""
    env = {"PATH": "/usr/bin:/bin", "VERL_PLATFORM": "cpu", "HOME": "/tmp"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip().splitlines()[-1] == "[]"
