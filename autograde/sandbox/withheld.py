"""Modules of the course's library and of other packages that a rubric withholds because they solve its exercises.

The file of a withheld module is not mounted. `STAND_IN` (`autograde/sandbox/inside/withheld_module.py`) replaces it, in
the sandbox and in the interpreter that runs an answer. Any name can be imported from it; a call of that name says that
it is withheld. So student code cannot find the solution: not by another name, not in memory, not in the file, not by a
new process that imports the library. Another package that is withheld as a whole is an empty folder. Code that a
student types from memory, or adds to the submission, counts as the student's.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from autograde.sandbox.bubblewrap import installed

__all__ = ["STAND_IN", "WithheldError", "WithheldModule", "hidden_packages", "original_sources", "withheld_modules"]

PACKAGES = ("course_lib", "data_prep")
STAND_IN = (Path(__file__).resolve().parent / "inside" / "withheld_module.py").read_text(encoding="utf-8")


class WithheldError(ValueError):
    """An entry of a rubric's ``withheld`` names nothing. The message is one line."""


@dataclass(frozen=True)
class WithheldModule:
    """A withheld module: its dotted name, its file, and the text that replaces the file."""

    name: str
    path: Path
    text: str = STAND_IN


@cache
def withheld_modules(entries: tuple[str, ...]) -> tuple[WithheldModule, ...]:
    """The modules that a rubric's entries name, in order of their names.

    Parameters
    ----------
    entries : tuple of str
        ``course_lib.distributed.collectives.ring``, a module, or a package with all modules below it;
        ``course_lib.training.lo*``, all modules whose names begin like this. ``torchvision.models.resnet`` is a module
        of another package, which need not be installed. `hidden_packages` handles a whole one, such as ``timm``.

    Raises `WithheldError`: an entry names no module.
    """
    result: dict[str, Path] = {}
    for entry in entries:
        package, dot, below = entry.partition(".")
        if _is_hidden(entry) or (package.isidentifier() and _root(package) is None):
            continue
        if not dot or not all(part.removesuffix("*").isidentifier() for part in (package, *below.split("."))):
            raise WithheldError(f"{entry!r} is no module, such as 'course_lib.distributed.collectives.ring'")
        named = {
            name: path
            for name, path in _modules(package).items()
            if fnmatchcase(name, entry) or name.startswith(f"{entry}.")
        }
        if not named:
            raise WithheldError(f"{entry!r}: there is no module {entry}")
        result |= named
    return tuple(WithheldModule(name, path) for name, path in sorted(result.items()))


def hidden_packages(entries: tuple[str, ...]) -> tuple[Path, ...]:
    """Folders of the installed packages that entries withhold as a whole."""
    return tuple(root for entry in entries if _is_hidden(entry) and (root := _root(entry)) is not None)


def original_sources(entries: tuple[str, ...]) -> dict[str, str]:
    """The modules' own texts, by their path in the package: ``course_lib/distributed/collectives/ring.py``."""
    result = {}
    for module in withheld_modules(entries):
        root = _root(module.name.partition(".")[0]).parent
        result[module.path.relative_to(root).as_posix()] = module.path.read_text(encoding="utf-8")
    return result


def _is_hidden(entry: str) -> bool:
    return entry.isidentifier() and entry not in PACKAGES


def _root(package: str) -> Path | None:
    """The folder of an installed package."""
    place = installed(package)
    return place if place is not None and place.is_dir() else None


@cache
def _modules(package: str) -> dict[str, Path]:
    """The files of an installed package by their modules' dotted names."""
    root = _root(package)
    return {
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
