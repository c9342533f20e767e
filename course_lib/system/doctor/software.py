"""Python, the packages that the labs need, and whether those that were compiled fit together."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from course_lib.system.doctor.finding import Finding

__all__ = ["packages", "python", "torchvision"]

OURS = "distributed-training-labs"


def python() -> Iterator[Finding]:
    """The interpreter, and whether the `lab` that a shell finds belongs to it."""
    other = shutil.which("lab")
    own = Path(sys.prefix, "bin").resolve()  # where scripts lie; a virtual environment's python is a link elsewhere
    if other is not None and Path(other).parent.resolve() != own:
        yield Finding(
            "python",
            "problem",
            f"this is {sys.prefix}, but a shell's `lab` is {other}",
            f"choose the kernel of that environment, or put {own} first in PATH",
        )
    else:
        yield Finding("python", "fine", f"{platform.python_version()} in {sys.prefix}")


def packages() -> Iterator[Finding]:
    """Every package that the course requires is there, in a version that it allows."""
    try:
        wanted = [Requirement(line) for line in metadata.requires(OURS) or ()]
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages",
            "problem",
            "the course is not installed in this environment",
            "pip install -c constraints.txt -e .",
        )
        return
    wrong = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            there = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(there, prereleases=True):
            wrong.append(f"{requirement.name} is {there}, wanted {requirement.specifier}")
    if wrong:
        yield Finding("packages", "problem", "; ".join(wrong), "pip install -c constraints.txt -e .")
    else:
        import torch

        yield Finding("packages", "fine", f"{len(wanted)} packages as required; torch {torch.__version__}")


def torchvision() -> Iterator[Finding]:
    """torchvision is compiled for one PyTorch; beside another it fails at its first operator."""
    try:
        from course_lib.system.torchvision_import import import_torchvision

        yield Finding("torchvision", "fine", import_torchvision().__version__)
    except Exception as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        yield Finding(
            "torchvision",
            "problem",
            f"cannot be imported beside this torch ({told})",
            "install the two together: pip install -c constraints.txt torch torchvision",
        )
