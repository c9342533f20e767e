"""The three lists of packages agree, and the wheel holds what a student needs and no more."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

OWN = {"distributed-training-labs", "distributed-training-autograde"}
CONDA_NAMES = {"pytorch": "torch"}


@pytest.fixture(scope="module")
def wanted(repository):
    """Name → requirement, of both distributions and the tests."""
    requirements = {}
    for file in ("pyproject.toml", "autograde/pyproject.toml"):
        project = tomllib.loads((repository / file).read_text())["project"]
        for text in [*project["dependencies"], *project.get("optional-dependencies", {}).get("test", [])]:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name in OWN:
                continue
            assert requirements.setdefault(name, requirement).specifier == requirement.specifier, name
    return requirements


@pytest.fixture(scope="module")
def pinned(repository):
    """Name → version of constraints.txt."""
    pins = {}
    for line in (repository / "constraints.txt").read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line:
            name, _, version = line.partition("==")
            assert version, f"{line}: constraints.txt pins exactly"
            assert canonicalize_name(name) not in pins, name
            pins[canonicalize_name(name)] = Version(version)
    return pins


def test_each_dependency_is_pinned_within_its_range(wanted, pinned):
    assert {"torch", "nbgrader", "pytest", "jinja2"} <= wanted.keys()
    assert wanted.keys() - pinned.keys() == set()
    outside = {name: str(pinned[name]) for name, need in wanted.items() if not need.specifier.contains(pinned[name])}
    assert outside == {}


def test_so_is_what_the_extras_want(repository, pinned):
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needs = {canonicalize_name(need.name): need for texts in extras.values() for need in map(Requirement, texts)}
    assert {"playwright", "accelerate"} <= needs.keys()
    assert {name for name, need in needs.items() if not need.specifier.contains(pinned[name])} == set()


def test_both_distributions_want_the_same_python(repository):
    versions = {
        tomllib.loads((repository / file).read_text())["project"]["requires-python"]
        for file in ("pyproject.toml", "autograde/pyproject.toml")
    }
    assert versions == {">=3.11"}


def test_every_pin_installs_on_the_oldest_python_that_is_promised(pinned):
    """Debian 12 has 3.11.2: a pin that wants 3.11.5 ends `pip install -c constraints.txt .` there."""
    from importlib.metadata import distributions

    wants = {
        canonicalize_name(found.name): found.metadata["Requires-Python"]
        for found in distributions()
        if found.metadata["Requires-Python"] and pinned.get(canonicalize_name(found.name)) == Version(found.version)
    }
    assert len(wants) > 100
    assert {name: text for name, text in wants.items() if not SpecifierSet(text).contains("3.11.0")} == {}


def test_the_conda_environment_is_the_same_set(repository, wanted, pinned):
    environment = yaml.safe_load((repository / "environment.yml").read_text())
    assert environment["name"] and environment["channels"][0] == "conda-forge"
    pins, pip = {}, []
    for entry in environment["dependencies"]:
        if isinstance(entry, dict):
            pip += entry["pip"]
            continue
        name, operator, version = re.fullmatch(r"([\w.-]+)\s*(=|==|>=)?\s*([\w.]+)?", entry).groups()
        if name == "pip":
            continue
        if name == "python":
            assert (operator, version) == (">=", "3.11")
            continue
        assert operator in ("=", "=="), f"{entry}: pinned, as in constraints.txt"
        pins[canonicalize_name(CONDA_NAMES.get(name, name))] = Version(version)
    for entry in pip:
        if not entry.startswith(("-e", ".")):
            requirement = Requirement(entry)
            (only,) = requirement.specifier
            assert only.operator == "==", entry
            pins[canonicalize_name(requirement.name)] = Version(only.version)
    assert [entry.split()[1] for entry in pip if entry.startswith("-e")] == [".", "./autograde"]
    assert pins.keys() == wanted.keys()
    assert pins == {name: pinned[name] for name in wanted}


def test_this_environment_is_the_pinned_one(pinned, wanted):
    from importlib.metadata import version

    installed = {name: Version(version(name)) for name in wanted}
    assert {name: found.public for name, found in installed.items()} == {name: str(pinned[name]) for name in wanted}


def test_the_wheel_holds_the_students_packages_only(repository, tmp_path):
    copy = tmp_path / "source"  # building leaves build/ and *.egg-info beside the sources
    unneeded = shutil.ignore_patterns(
        ".*", "data", "runs", "course", "build", "*.egg-info", "__pycache__", "tests", "docs"
    )
    shutil.copytree(repository, copy, ignore=unneeded)
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as b; b.build_wheel({str(tmp_path)!r})"],
        cwd=copy, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"course_lib", "data_prep", "assessment_print.py"}
    for needed in (
        "course_lib/distributed/launch.py",
        "course_lib/checks/lab02.py",
        "course_lib/models/wide_resnet.py",
    ):
        assert needed in names
    assert any(name.startswith("data_prep/fashion_mnist_small/") for name in names)
    assert not [name for name in names if re.search(r"autograde|rubric|\.ipynb|/tests?/", name)]
    points = next(name for name in names if name.endswith("entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(points).decode()
    assert "lab = course_lib.cli:main" in text and "autograde" not in text
