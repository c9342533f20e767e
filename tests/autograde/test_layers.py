"""The packages' layers: imports have one direction and few floors, and a folder holds few entries.

What counts is what runs when a module is imported: not imports in functions or under TYPE_CHECKING, but the package of an
imported module. A module without imports from its package is the first floor, another is one above the highest of those.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import autograde

ROOT = Path(autograde.__file__).resolve().parents[1]
DEPTH, ENTRIES = 9, 12
ONE_PER_LAB = (
    "course_lib/exercises/labs", "course_lib/exercises/answers", "course_lib/plots", "course_lib/runs/run_evidence/labs",
    "autograde/rubrics",
)  # fmt: skip


def import_statements(body):
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from import_statements(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "handlers", "orelse", "finalbody"):
                yield from import_statements(getattr(node, field, []))


def with_packages(name):
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


@cache
def imports(package):
    """Each module of a package with the modules of that package that it imports."""
    files = {}
    for path in (ROOT / package).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = path
    graph = {}
    for name, path in files.items():
        named = set()
        for node in import_statements(ast.parse(path.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.Import):
                named |= {each.name for each in node.names}
            else:
                assert node.level == 0, f"{path} has a relative import"
                names = {f"{node.module}.{each.name}" for each in node.names}
                named |= {each if each in files else node.module for each in names}
        packages = {package for each in named for package in with_packages(each)} - with_packages(name)
        graph[name] = (named | packages) & files.keys() - {name}
    return graph


def folders(package):
    """The rows of the package's table in the documentation, each a set of folders."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition(f"| `{package}/` | |\n")[2]
    return [set(re.findall(r"`(\w+)/`", row.split("|")[1])) for row in text.partition("\n\n")[0].splitlines()[1:]]


@pytest.mark.parametrize("package", ["autograde", "course_lib", "data_prep"])
def test_no_imports_form_a_circle(package):
    graph = imports(package)
    assert graph
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_grader_is_not_deep():
    graph, chains = imports("autograde"), {}
    for name in TopologicalSorter(graph).static_order():
        chains[name] = [name, *max((chains[each] for each in graph[name]), key=len, default=[])]
    longest = max(chains.values(), key=len)
    assert len(longest) <= DEPTH, " imports ".join(longest)


@pytest.mark.parametrize("package", ["autograde", "course_lib"])
def test_a_folder_imports_from_those_above_it_in_the_documentation(package):
    rows = {folder: place for place, row in enumerate(folders(package)) for folder in row}
    wrong = set()
    for name, imported in imports(package).items():
        for importing, other in ((name.split(".")[1:2], each.split(".")[1:2]) for each in imported):
            if importing and other and rows.get(importing[0], len(rows)) < rows[other[0]]:
                wrong.add((importing[0], other[0]))
    assert wrong == ({("optim", "distributed")} if package == "course_lib" else set())  # K-FAC's messages


@pytest.mark.parametrize("package", ["autograde", "course_lib"])
def test_a_folder_holds_few_entries(package):
    made = ("__init__.py", "__pycache__", "build")  # not counted: what packaging needs or makes
    full = {}
    for folder in {path.parent for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".toml")}:
        entries = [path for path in folder.iterdir() if path.name not in made and path.suffix != ".egg-info"]
        name = folder.relative_to(ROOT).as_posix()
        if len(entries) > ENTRIES and name not in ONE_PER_LAB:
            full[name] = len(entries)
    assert full == {}
