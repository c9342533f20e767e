"""In each Python below a rehearsal (its PYTHONPATH has this folder): pretend GPUs as soon as torch is imported."""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path


class _After(importlib.abc.MetaPathFinder):
    """Calls a function with each of the named modules when it has been imported."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        then = self.then.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


def pretend(torch):
    import pretended_gpu

    pretended_gpu.install(int(os.environ["PRETENDED_GPUS"]), unused="PRETENDED_GPUS_UNUSED" in os.environ)


def test_on_few_images(data):
    from data_prep import made_up

    in_fork_server = any("multiprocessing.forkserver" in argument for argument in sys.orig_argv)
    for name in ("cifar10-synthetic", "cifar100-synthetic") if in_fork_server else ():
        made_up.arrays(name)  # once: each rank inherits the images
    whole = data.load

    def load(*args, **options):
        loaded = whole(*args, **options)
        few = data.Split(loaded.test.images[:64], loaded.test.labels[:64])
        return data.ImageData(**{**vars(loaded), "test": few})

    data.load = load


def without_haste(check):
    check.TIMEOUT = 600.0  # a right answer must not fail because the machine is busy


HOOKS = {
    "torch": pretend,
    "course_lib.data.batches": test_on_few_images,
    "course_lib.exercises.ranks.launched_ranks": without_haste,
}

if os.environ.get("PRETENDED_GPUS"):
    sys.path.append(str(Path(__file__).parents[1]))
    sys.meta_path.insert(0, _After(HOOKS))
