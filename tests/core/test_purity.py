"""The core knows no verl, ray, torch or vllm, no clock and no I/O: every import in it is numpy, itself or harmless."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tailsieve_verl.core as core

ALLOWED = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq", "itertools",
    "math", "numpy", "operator", "tailsieve_verl", "types", "typing",
}  # fmt: skip
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval"}
FILES = sorted(Path(core.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_and_calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in FORBIDDEN_CALLS, f"{path.name}:{node.lineno} calls {node.func.id}"
            continue
        for name in names:
            assert name.split(".")[0] in ALLOWED, f"{path.name}:{node.lineno} imports {name}"
            if name.startswith("tailsieve_verl"):
                assert name.startswith("tailsieve_verl.core"), f"{path.name}:{node.lineno} imports {name}"


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, tailsieve_verl, tailsieve_verl.core, tailsieve_verl.integration.plugin, "
        "tailsieve_verl.config.schema; "
        "print(sorted({'torch', 'vllm', 'ray', 'verl', 'transformers'} & set(sys.modules)))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "VERL_PLATFORM"}  # the CPU platform does load torch
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
