"""What a rubric withholds of the course's own library, and of what else is installed: the solutions of its exercises.

A withheld module is shown to student code as a *redacted* text: each function's body is a ``raise`` that says so, what
is around it stays, so that every import succeeds. The interpreter that runs an answer has imported that text and no
other (`autograde.sandbox.inside.interpreter`), and the sandbox shows it in the place of the module's file and hides the compiled
ones (`autograde.sandbox.bubblewrap`). So there is nothing to find: not by another name, not in memory, not in the file, not by a
process that imports the library anew. A package of somebody else's that is withheld as a whole is an empty folder. What a
student types from memory, or brings along, is theirs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["WithheldError", "WithheldModule", "hidden_packages", "original_sources", "redacted", "withheld_modules"]

PACKAGES = ("course_lib", "data_prep")


class WithheldError(ValueError):
    """An entry of a rubric's ``withheld`` that names nothing; one line."""


@dataclass(frozen=True)
class WithheldModule:
    """A module of which something is withheld: its dotted name, its file, and the redacted text."""

    name: str
    path: Path
    text: str


@cache
def withheld_modules(entries: tuple[str, ...]) -> tuple[WithheldModule, ...]:
    """What a rubric's entries come to, one for each module, in order of their names.

    Parameters
    ----------
    entries : tuple of str
        ``course_lib.distributed.collectives.ring``, all of a module, or of a package with all modules below it;
        ``course_lib.metrics.communication_cost:fit_link``, one function, class or constant of a module;
        ``course_lib.checks.lab*``, all modules of a package whose names begin so. Of another package, which need not be
        installed, ``torchvision.models.resnet``, a module; one alone, ``timm``, is left to `hidden_packages`.

    Raises
    ------
    WithheldError
        An entry names no module, nothing in it, or nothing that can be withheld.
    """
    wanted: dict[str, set[str] | None] = {}
    paths: dict[str, Path] = {}
    entries = tuple(entry for entry in entries if not _is_hidden(entry) and _is_there(entry))
    for entry in entries:
        module, colon, name = entry.partition(":")
        files = _files(module, entry)
        if colon and len(files) > 1:
            raise WithheldError(f"{entry!r}: {module} is a package; name the module that defines {name!r}")
        paths |= files
        for file in files:
            known = wanted.setdefault(file, set())
            wanted[file] = None if not colon or known is None else known | {name}
    found = []
    for module, names in sorted(wanted.items()):
        text, functions = _redacted(paths[module].read_text(encoding="utf-8"), module, names)
        if functions:  # an __init__.py often has none
            found.append(WithheldModule(module, paths[module], text))
    for entry in entries:
        start = entry.removesuffix("*") if entry.endswith("*") else f"{entry}."
        if ":" not in entry and not any(f"{module.name}.".startswith(start) for module in found):
            raise WithheldError(f"{entry!r} has no function in it; name the module that defines what is to be withheld")
    return tuple(found)


def hidden_packages(entries: tuple[str, ...]) -> tuple[Path, ...]:
    """Folders of the installed packages that entries withhold as a whole."""
    return tuple(root for entry in entries if _is_hidden(entry) and (root := _root(entry)) is not None)


def _is_hidden(entry: str) -> bool:
    return entry.isidentifier() and entry not in PACKAGES


def _is_there(entry: str) -> bool:
    """Whether it is of the course's own packages, or of another that is installed."""
    package = entry.partition(".")[0]
    return package in PACKAGES or not package.isidentifier() or _root(package) is not None


@cache
def _root(package: str) -> Path | None:
    """The folder of an installed package; nothing of it is executed."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def original_sources(entries: tuple[str, ...]) -> dict[str, str]:
    """The modules' own texts, by the path that people know them by: ``course_lib/distributed/collectives/ring.py``."""
    found = {}
    for module in withheld_modules(entries):
        depth = module.name.count(".") + (2 if module.path.name == "__init__.py" else 1)
        found["/".join(module.path.parts[-depth:])] = module.path.read_text(encoding="utf-8")
    return found


def redacted(source: str, module: str, names: Iterable[str] | None = None) -> str:
    """A module's text without the bodies of its functions, or of those that are in `names` or belong to a class there.

    Signatures, decorators, docstrings and whatever else is executed by an import stay. A constant is withheld by the
    ``lambda`` expressions in it.

    Raises
    ------
    WithheldError
        One of the names is not defined at the module's top level, or nothing of it is a function.
    """
    return _redacted(source, module, names)[0]


def _redacted(source: str, module: str, names: Iterable[str] | None) -> tuple[str, int]:
    """The text, and how many functions it withholds."""
    tree = ast.parse(source)
    withheld = dict.fromkeys(sorted(names), 0) if names is not None else None
    total = 0
    defined = {name for node in tree.body for name in _names(node)}
    for name in sorted(set(withheld or ()) - defined):
        raise WithheldError(f"'{module}:{name}': {module} defines no {name!r} at its top level")
    for node in tree.body:
        own = _names(node)
        if withheld is not None and not withheld.keys() & set(own):
            continue
        what = ".".join([module, *own[:1]])
        redactor = _Redactor(f"{what} is withheld here: an exercise of this lab asks you to write it")
        redactor.visit(node)
        total += redactor.count
        for name in own:
            if withheld is not None and name in withheld:
                withheld[name] += redactor.count
    for name, functions in (withheld or {}).items():
        if not functions:
            raise WithheldError(f"'{module}:{name}' has no function in it that could be withheld")
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", total


class _Redactor(ast.NodeTransformer):
    def __init__(self, message: str) -> None:
        self.message, self.count = message, 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.count += 1
        told = [] if ast.get_docstring(node) is None else node.body[:1]
        node.body = [*told, *ast.parse(f"raise RuntimeError({self.message!r})").body]
        node.args = self.visit(node.args)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.count += 1
        node.body = ast.parse(f"(_ for _ in ()).throw(RuntimeError({self.message!r}))", mode="eval").body
        return node


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _files(module: str, entry: str) -> dict[str, Path]:
    """The file of a module, or those of a package, by dotted names."""
    package, *parts = module.split(".")
    names = [*parts[:-1], parts[-1].removesuffix("*")] if parts else []
    root = _root(package) if names and all(part.isidentifier() for part in (package, *names)) else None
    if root is None:
        raise WithheldError(f"{entry!r} is no module, such as 'course_lib.distributed.collectives.ring'")
    if parts != names:
        return {
            ".".join([package, *parts[:-1], path.stem]): path
            for path in sorted(root.joinpath(*parts[:-1]).glob(f"{parts[-1]}.py"))
        }
    folder = root.joinpath(*parts)
    if (folder / "__init__.py").is_file():
        found = {}
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            found[".".join([module, *(part for part in inner if part != "__init__")])] = path
        return found
    if folder.with_suffix(".py").is_file():
        return {module: folder.with_suffix(".py")}
    raise WithheldError(f"{entry!r}: there is no module {module}")
