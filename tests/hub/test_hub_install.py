"""The hub's installer: which Python it takes, and who gets JupyterLab's GPU charts. Nothing is installed here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import hub_install
import pytest


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """What would have been installed, on a machine without a driver."""
    found = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hub_install, "_pip", lambda environment, *words: found.append([*map(str, words)]))
    return found


@pytest.fixture
def driver(pythons):
    """Puts an nvidia-smi on the PATH."""
    return lambda: pythons("nvidia-smi", "exit 0")


def charts(folder, gpu):
    return hub_install.install_gpu_charts(folder, gpu, say=lambda _: None)


def test_with_a_driver_the_charts_are_added_once(installed, driver, tmp_path):
    assert charts(tmp_path, None) is False and installed == []
    driver()
    assert charts(tmp_path, None) is True
    assert charts(tmp_path, None) is False
    [words] = installed
    assert words[-1].endswith("requirements-gpu.txt")
    assert words[:1] == ["-c"]  # what the labs pin stays


def test_who_installs_may_say_otherwise(installed, driver, tmp_path):
    assert charts(tmp_path, True) is True
    (tmp_path / "other").mkdir()
    driver()
    assert charts(tmp_path / "other", False) is False
    assert len(installed) == 1


def test_a_failed_attempt_is_made_again(installed, tmp_path, monkeypatch):
    def fail(*_):
        raise hub_install.InstallError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(hub_install, "_pip", fail)
        with pytest.raises(hub_install.InstallError):
            charts(tmp_path, True)
    assert charts(tmp_path, True) is True


def test_what_is_added_is_pinned_and_is_no_pytorch(deploy):
    lines = [line for line in (deploy / "requirements-gpu.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line.partition("==")[0] for line in lines] == ["jupyterlab-nvdashboard"]
    students = (deploy / "requirements-students.txt").read_text()
    assert "nvdashboard" not in students


@pytest.fixture
def pythons(tmp_path, monkeypatch):
    """Makes programs that answer as Pythons do; students can enter every folder but ``closed``."""
    monkeypatch.setattr(hub_install, "readable_by_others", lambda path: "closed" not in str(path))

    def make(name, answer):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
        return str(program)

    return make


def test_students_get_the_python_that_installs_if_they_can_run_it(pythons, monkeypatch):
    own = pythons("own/python3", "echo /usr")
    monkeypatch.setattr(sys, "executable", own)
    assert hub_install.find_python(system=[pythons("system/python3", "echo /usr")]) == own


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("closed/python3", "echo /usr"),  # pyenv's, in root's home
        ("own/python3", "echo /closed"),  # its library is there
        ("own/python3", "echo"),  # older than 3.11
        ("own/python3", "exit 1"),  # without venv or ensurepip, as Debian's without python3-venv
    ],
)
def test_else_they_get_the_systems(pythons, monkeypatch, place, answer):
    unsuitable = pythons(place, answer)
    monkeypatch.setattr(sys, "executable", unsuitable)
    before, said = Path(unsuitable).read_bytes(), []
    system = pythons("system/python3", "echo /usr")
    assert hub_install.find_python(said.append, ["/nowhere/python3", unsuitable, system]) == system
    assert len(said) == 1 and unsuitable in said[0] and system in said[0]
    assert Path(unsuitable).read_bytes() == before
    with pytest.raises(hub_install.InstallError, match=r"python3-venv; else with uv: .*PYTHON=") as refused:
        hub_install.find_python(said.append, [unsuitable])
    assert unsuitable in str(refused.value) and "\n" not in str(refused.value)


def test_the_python_that_is_found_makes_environments(tmp_path):
    try:
        python = hub_install.find_python(lambda line: None)
    except hub_install.InstallError as error:
        pytest.skip(str(error))
    code = "import ensurepip, venv; venv.create('made', with_pip=False); print('made')"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "made\n" and (tmp_path / "made/bin/python").exists(), done.stderr


def test_the_grader_brings_what_the_students_environment_lacks(pythons, tmp_path):
    pythons(
        "students/bin/python",
        "echo Distributed_Training.Labs nbgrader Jinja2 MarkupSafe nbconvert nbformat Pygments requests tenacity",
    )
    names = [need.partition(">")[0] for need in hub_install.missing_for_grader(tmp_path / "students")]
    own = ["msgspec", "nh3", "pillow", "prometheus-client", "sqlalchemy", "traitlets", "click", "pebble", "submitit"]
    assert names == [*own, "cryptography", "pyjwt"]


def test_the_grader_has_the_answers_that_hidden_checks_compare_with(monkeypatch, tmp_path):
    """The students' course_lib has none; what is on the course account's PYTHONPATH comes first."""
    monkeypatch.setattr(hub_install, "missing_for_grader", lambda students: [])
    monkeypatch.setattr(hub_install, "_pip", lambda environment, target, built, *others: built.mkdir())
    monkeypatch.setattr(hub_install, "unpack_as", lambda owner, source, names, to, fresh: shutil.copytree(source, to))
    (tmp_path / "students/lib/python3.11").mkdir(parents=True)
    hub_install.install_grader(tmp_path / "students", folder := tmp_path / "grader", "somebody")
    code = (
        "from course_lib.exercises import answers_of, registry; print(registry.HERE, answers_of('lab01') is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(folder / "course_lib/exercises"), "True"], done.stderr


def test_the_grader_is_installed_again_for_another_python_of_the_students(monkeypatch, tmp_path):
    installations, counts = [], []
    monkeypatch.setattr(hub_install, "missing_for_grader", lambda students: [])
    monkeypatch.setattr(hub_install, "_pip", lambda environment, target, built, *others: built.mkdir())
    monkeypatch.setattr(hub_install, "copy_sources", lambda to, packages: None)

    def unpack(owner, source, names, to, fresh):
        installations.append(owner)
        shutil.copytree(source, to, dirs_exist_ok=True)

    monkeypatch.setattr(hub_install, "unpack_as", unpack)
    for python in ("python3.11", "python3.11", "python3.12"):
        (tmp_path / "students/lib" / python).mkdir(parents=True, exist_ok=True)
        hub_install.install_grader(tmp_path / "students", tmp_path / "grader", "somebody")
        counts.append(len(installations))
    assert counts == [1, 1, 2]


def test_under_a_strict_umask_students_can_read_what_is_installed(monkeypatch, tmp_path):
    """From a checkout that root alone can read, too; both are usual on a hardened machine."""
    monkeypatch.setattr(hub_install, "find_python", lambda say: sys.executable)
    monkeypatch.setattr(hub_install.Stamp, "is_current", lambda self: True)  # nothing to install but the configuration
    monkeypatch.setattr(hub_install, "readable_by_others", lambda path: True)  # pytest's folders are not
    checkout = Path(shutil.copytree(hub_install.HERE, tmp_path / "checkout"))
    for path in (checkout, *checkout.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.setattr(hub_install, "HERE", checkout)
    before = os.umask(0o077)
    try:
        hub_install.install(to := tmp_path / "hub", say=lambda _: None, gpu=False)
    finally:
        os.umask(before)
    config = [to / "config", *(to / "config").rglob("*")]
    assert len(config) > 5
    for path in (to, *config):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_a_stamp_is_of_version_files_and_name(tmp_path):
    needs = tmp_path / "requirements.txt"
    needs.write_text("a==1\n")
    stamp = hub_install.Stamp(tmp_path, "3.11", [needs])
    assert not stamp.is_current()
    stamp.write()
    assert stamp.is_current() and not hub_install.Stamp(tmp_path, "3.12", [needs]).is_current()
    assert not hub_install.Stamp(tmp_path, "3.11", [needs], "labs-installed").is_current()
    needs.write_text("a==2\n")
    assert not stamp.is_current()
