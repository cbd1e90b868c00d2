"""The plug-in in real processes: what it loads, when the trainer mode appears, and what doctor-like checks can see."""

import os
import subprocess
import sys


def python(code, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "VLLM_"))}
    result = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **env}, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.strip().splitlines()[-1]


def test_importing_verl_imports_no_trainer_and_no_platform():
    code = (
        "import sys, verl; print('tailsieve_verl.integration.plugin' in sys.modules, "
        "[m for m in ('verl.trainer.ppo.v1', 'vllm', 'tailsieve_verl.integration.trainer', "
        "'tailsieve_verl.integration.platform_cpu') if m in sys.modules])"
    )
    assert python(code) == "True []"


def test_the_mode_is_registered_whichever_module_comes_first():
    code = (
        "import {first}\n"
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "print(get_trainer_cls('tailsieve').__name__, get_trainer_cls('sync').__name__)"
    )
    for first in ("verl.trainer.ppo.v1", "tailsieve_verl.integration.agent_loop"):
        assert python(code.format(first=first), VERL_PLATFORM="cpu") == "TailSieveTrainer PPOTrainerSync"


def test_a_disabled_plugin_is_noticed():
    code = (
        "import verl\n"
        "from tailsieve_verl.integration.preflight import check_plugin\n"
        "try: check_plugin()\n"
        "except ValueError as error: print(error)\n"
        "else: print('loaded')"
    )
    assert python(code) == "loaded"
    assert "VERL_USE_EXTERNAL_PLUGINS=none keeps verl from loading" in python(code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert python(code, VERL_USE_EXTERNAL_PLUGINS="tailsieve,other") == "loaded"


def test_an_error_in_our_trainer_does_not_disturb_plain_verl():
    code = (
        "import sys, verl\n"
        "sys.modules['tailsieve_verl.integration.trainer'] = None\n"  # importing it raises
        "from verl.trainer.ppo.v1 import get_trainer_cls\n"
        "print(get_trainer_cls('sync').__name__)"
    )
    assert python(code, VERL_PLATFORM="cpu") == "PPOTrainerSync"
