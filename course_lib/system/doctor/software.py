"""Python, the packages that the labs need, and whether those that were compiled fit together."""

import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from course_lib.system.doctor.finding import Finding, absent, fine, problem
from course_lib.system.extras import COURSE, EXTRAS, absent_modules

__all__ = ["extras", "packages", "python", "torchvision"]

_TOGETHER = "install the two together: pip install -c constraints.txt torch torchvision"


def python() -> Iterator[Finding]:
    """The interpreter, and whether the `lab` that a shell finds belongs to it."""
    other = shutil.which("lab")
    own = Path(sysconfig.get_path("scripts")).resolve()  # a virtual environment's python is a link elsewhere
    if other is not None and Path(other).parent.resolve() != own:
        yield problem(
            "python",
            f"this is {sys.prefix}, but a shell's `lab` is {other}",
            f"choose the kernel of that environment, or put {own} first in PATH",
        )
    else:
        yield fine("python", f"{platform.python_version()} in {sys.prefix}")


def packages() -> Iterator[Finding]:
    """Every package that the course requires is there, in a version that it allows."""
    try:
        wanted = [Requirement(line) for line in metadata.requires(COURSE) or ()]
    except metadata.PackageNotFoundError:
        yield problem(
            "packages", "the course is not installed in this environment", "pip install -c constraints.txt -e ."
        )
        return
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = []
    for requirement in wanted:
        try:
            there = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(there, prereleases=True):
            wrong.append(f"{requirement.name} is {there}, wanted {requirement.specifier}")
    if wrong:
        yield problem("packages", "; ".join(wrong), "pip install -c constraints.txt -e .")
    else:
        import torch

        yield fine("packages", f"{len(wanted)} packages as required; torch {torch.__version__}")


def extras() -> Iterator[Finding]:
    """Which optional packages are there, and what one misses without the others."""
    absent_ones = {extra: modules for extra in EXTRAS if (modules := absent_modules(extra))}
    if there := [extra for extra in EXTRAS if extra not in absent_ones]:
        yield fine("extras", ", ".join(there))
    for extra, modules in absent_ones.items():
        remedy = f"{EXTRAS[extra][1]} need{'s' if extra == 'mpi' else ''} it: pip install '{COURSE}[{extra}]'"
        yield absent("extras", f"no {extra} ({', '.join(modules)})", remedy)


def torchvision() -> Iterator[Finding]:
    """torchvision is compiled for one PyTorch, which its requirements name; beside another it fails at its first operator.

    It is not imported: that takes as long as all other checks together.
    """
    try:
        version, wanted = metadata.version("torchvision"), metadata.requires("torchvision") or ()
    except metadata.PackageNotFoundError:
        yield problem("torchvision", "it is missing", _TOGETHER)
        return
    there = metadata.version("torch")
    for requirement in map(Requirement, wanted):
        if requirement.name == "torch" and not requirement.specifier.contains(there, prereleases=True):
            found = f"{version} is compiled for torch {requirement.specifier}, here is {there}"
            yield problem("torchvision", found, _TOGETHER)
            return
    yield fine("torchvision", version)
