"""Imported by verl's processes of one test (VERL_USE_EXTERNAL_MODULES): a weight sync that ruins the drafter.

The sync numbered ``TAILSIEVE_TEST_CORRUPT_SYNC`` (the one before the first step is 1) leaves random numbers in it.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

EXTENSION = "verl.workers.rollout.vllm_rollout.utils"


class _AfterExtension(MetaPathFinder):
    """Changes verl's worker extension once a vLLM worker has imported it."""

    busy = False

    def find_spec(self, name, path=None, target=None):
        if name != EXTENSION or self.busy:
            return None
        self.busy = True
        spec = find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            change(module.vLLMColocateWorkerExtension)

        spec.loader.exec_module = exec_module
        return spec


def change(extension):
    original = extension.update_weights_from_ipc

    def update_weights_from_ipc(self, *args, **kwargs):
        import torch

        result = original(self, *args, **kwargs)
        self.test_syncs = getattr(self, "test_syncs", 0) + 1
        if self.test_syncs == int(os.environ["TAILSIEVE_TEST_CORRUPT_SYNC"]):
            for parameter in self.model_runner.drafter.model.parameters():
                parameter.data.copy_(torch.randn(parameter.shape))
        return result

    extension.update_weights_from_ipc = update_weights_from_ipc


if os.environ.get("TAILSIEVE_TEST_CORRUPT_SYNC"):
    sys.meta_path.insert(0, _AfterExtension())
