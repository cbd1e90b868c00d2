"""A machine of hand-written answers, at the outermost edge; what is not said here is the real machine's."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from tailsieve_verl.doctor.edge import EntryPoint, Machine
from tailsieve_verl.doctor.plugins import EXPECTED

RIGHT = {
    "verl": "0.9.1",
    "vllm": "0.28.0",
    "torch": "2.13.0",
    "ray": "2.60.0",
    "transformers": "5.9.0",
    "tensordict": "0.10.0",
    "TransferQueue": "0.1.11",
    "hydra-core": "1.3.8",
}


class FakeMachine(Machine):
    """Right in everything but what a test says.

    Args:
        versions: distribution -> version, ``None`` for not installed.
        entry_points: group -> entry points.
        folders: package -> folder, instead of the installed one.
        verl_says: answer of ``import verl``.
        elsewhere: environment of interpreters other than this one.
    """

    def __init__(
        self, *, versions=(), entry_points=(), folders=(), verl_says=(True, ""), environ=(), gpus=(), elsewhere=None
    ):
        super().__init__(environ={"PATH": os.environ["PATH"], **dict(environ)})
        self._set(versions={**RIGHT, **dict(versions)}, folders=dict(folders), verl_says=verl_says, gpus=list(gpus))
        groups = {group: [EntryPoint("tailsieve", value, "tailsieve_verl")] for group, value in EXPECTED.items()}
        self._set(groups={**groups, **dict(entry_points)}, elsewhere=elsewhere, imports=[])

    def _set(self, **values):
        for name, value in values.items():
            object.__setattr__(self, f"_{name}", value)

    def version(self, distribution):
        return self._versions.get(distribution)

    def requirements(self, distribution):
        return ["transformers!=5.6.0,<5.11,>=5.5.3", "ray[default]>=2.41.0", 'torch==2.11.0; extra == "vllm"']

    def entry_points(self, group):
        return self._groups[group]

    def package_folder(self, package):
        return self._folders[package] if package in self._folders else super().package_folder(package)

    def ask_verl(self, environ):
        self._imports.append(environ)
        return self._verl_says

    def prefix_of(self, python):
        return self.prefix if python == sys.executable else self._elsewhere

    def gpu_memory_gib(self):
        return self._gpus


def changed_package(target: Path, package: str, file: str, *replace: tuple[str, str]) -> Path:
    """A copy of an installed package in which one file reads otherwise; the others are links."""
    source = Path(next(iter(find_spec(package).submodule_search_locations)))
    skip = shutil.ignore_patterns("*.so", "__pycache__", "models", "third_party", "model_executor")
    shutil.copytree(source, target / package, ignore=skip, copy_function=os.symlink)
    path = target / package / file
    text = path.read_text()
    path.unlink()
    for old, new in replace:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return target / package
