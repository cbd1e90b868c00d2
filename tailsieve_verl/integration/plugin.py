"""Entry point ``verl.plugins``: verl imports this module in every process, from inside ``import verl``.

It does three things, and none imports anything heavy: it registers the trainer mode once verl's trainers are imported
(if they ever are), it keeps our warnings from being lost, and it sets the CPU platform up if ``VERL_PLATFORM=cpu`` asks
for it.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tailsieve_verl.integration import logs

logger = logging.getLogger(__name__)

TRAINERS = "verl.trainer.ppo.v1"
OURS = "tailsieve_verl.integration.trainer"


class _AfterTrainers(MetaPathFinder):
    """Imports our trainer right after verl's package of trainers, which has no hook for it.

    verl's registry is filled by import only (``register_trainer``), and importing the trainers from here would load
    Ray, torch and the transfer queue into every process that imports verl.
    """

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != TRAINERS or self._busy:
            return None
        self._busy = True
        try:
            spec = find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenOurs(spec.loader)
        return spec


class _ThenOurs(Loader):
    """A loader that runs another one, and then imports our trainer."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            import_module(OURS)
        except Exception as error:  # a run that does not ask for TailSieve must not suffer from it
            logger.warning("tailsieve: the trainer mode could not be registered: %s: %s", type(error).__name__, error)


def loaded_by_verl() -> bool:
    """Whether verl's plug-in mechanism has loaded us in this process and does so in its workers."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    named = {name.strip() for name in policy.split(",")}
    return (policy == "auto" or "tailsieve" in named) and any(isinstance(f, _AfterTrainers) for f in sys.meta_path)


def _install() -> None:
    logs.configure()
    if not any(isinstance(finder, _AfterTrainers) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTrainers())
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        from tailsieve_verl.integration import patches, platform_cpu

        platform_cpu.register()
        patches.apply()


_install()
