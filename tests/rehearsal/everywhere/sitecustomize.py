"""In each Python below a rehearsal (its PYTHONPATH has this folder): pretend GPUs as soon as torch is imported."""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path


class _AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            import pretended_gpu

            pretended_gpu.install_from_environment()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("PRETENDED_GPUS"):
    sys.path.append(str(Path(__file__).parents[1]))
    sys.meta_path.insert(0, _AfterTorch())
