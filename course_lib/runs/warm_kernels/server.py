"""The warm process: a fork server with the imports of the labs and of their execution.

`course_lib.runs.warm_kernels.client` starts it. A request names the function that a fork calls.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from pkgutil import walk_packages
from typing import Any

import course_lib
from course_lib.system.nbformat_import import leave_addresses_out
from course_lib.system.prefork.server import main

__all__ = ["run", "warm_modules"]


def warm_modules() -> Iterator[str]:
    """The imports: all modules of the course's library, and those of notebooks and kernels only."""
    yield from ("papermill.engines", "ipykernel.kernelapp", "matplotlib_inline.backend_inline", "torch._dynamo")
    yield from (module.name for module in walk_packages(course_lib.__path__, "course_lib."))


def run(request: dict[str, Any], descriptors: list[int]) -> Any:
    """Call the function that a request names, as a program with these arguments, environment, folder and cores."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    import numpy
    import torch

    from course_lib.system.hardware import available_cores

    numpy.random.seed()  # Python's own generator does that itself after a fork
    torch.set_num_threads(available_cores())
    module = importlib.import_module(request["module"])
    sys.argv = [request["module"], *request["arguments"]]
    return getattr(module, request["function"])()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` put the first client's folder there
    leave_addresses_out()
    main(warm_modules(), run, *sys.argv[1:])
