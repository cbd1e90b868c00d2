"""Warnings in a process in which a dependency has set the root logger to ERROR, as vLLM's server does."""

import os
import subprocess
import sys

import pytest

SILENCED = "root.setLevel('ERROR'); [h.setLevel('ERROR') for h in root.handlers]; "
WARN = "logging.getLogger('tailsieve_verl.integration.rollout').warning('tailsieve: %s', 'it degrades')"


def stderr(root, level=None):
    code = (
        "import logging; logging.basicConfig(level='WARNING'); root = logging.getLogger(); "
        f"import tailsieve_verl.integration.plugin; {root}{WARN}"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("VERL_PLATFORM", "VERL_LOGGING_LEVEL")}
    if level is not None:
        environment["VERL_LOGGING_LEVEL"] = level
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return result.stderr


@pytest.mark.parametrize(
    "root", ["", SILENCED, "root.handlers.clear(); ", "root.handlers.clear(); root.setLevel(50); "]
)
def test_a_warning_is_said_once_whatever_the_root_logger_does(root):
    assert stderr(root).count("tailsieve: it degrades") == 1


def test_the_level_is_verl_s():
    assert "it degrades" not in stderr(SILENCED, "ERROR")
    assert stderr(SILENCED, "loud").count("it degrades") == 1


def test_the_dependency_does_what_we_guard_against():
    """If this fails, ``logs.py`` may not be needed any more."""
    standards = pytest.importorskip("model_hosting_container_standards")
    assert standards
    code = (
        "import logging; logging.basicConfig(level='WARNING'); "
        "import model_hosting_container_standards.logging_config; print(logging.getLogger().level)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout.split()[-1]) >= 40
