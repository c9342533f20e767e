"""The set-up cell of a release notebook: nothing where the course is installed, one installation where it is not."""

import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from course_lib.data import set_up as set_up_module
from course_lib.runs.release_copy import PUBLIC, WHEEL, set_up_cell
from course_lib.system.doctor import Finding
from course_lib.system.doctor.report import data
from data_prep import catalogue
from data_prep.errors import Unavailable


@pytest.fixture
def cell(repository):
    """The source of a lab's cell, by the lab's number."""

    def cell(number):
        (path,) = repository.glob(f"labs/{number}_*/*.ipynb")
        return "".join(set_up_cell(json.loads(path.read_text()))["source"])

    return cell


@pytest.fixture
def bare(monkeypatch):
    """A machine without the course; what pip is called with, and what is staged. `bare.pip` is pip's answer."""
    seen = SimpleNamespace(commands=[], staged=[], pip=SimpleNamespace(returncode=0, stderr=""))

    def run(command, **_):
        seen.commands.append(command)
        return seen.pip

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "course_lib" else find_spec(name))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(set_up_module, "set_up", lambda *names: seen.staged.extend(names))
    return seen


def test_where_the_course_is_installed_nothing_happens(cell, monkeypatch, capfd):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(set_up_module, "set_up", None)
    exec(cell("01"), {})
    assert capfd.readouterr() == ("", "")


def test_the_pinned_wheel_is_installed_and_the_lab_s_data_staged(cell, bare):
    exec(cell("05"), {})
    [command] = bare.commands
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[-1] == f"distributed-training-labs @ {PUBLIC}/{WHEEL}"
    assert bare.staged == ["cifar100", "cifar10"]


def test_lab_08_brings_mpi_and_a_wheel_may_come_from_elsewhere(cell, bare, monkeypatch):
    monkeypatch.setenv("LAB_WHEEL", "file:///somewhere/labs.whl")
    exec(cell("08"), {})
    assert bare.commands[0][-1] == "distributed-training-labs[mpi] @ file:///somewhere/labs.whl"
    assert bare.staged == ["mnist"]


def test_a_failure_says_why(cell, bare, monkeypatch):
    bare.pip = SimpleNamespace(returncode=1, stderr="ERROR: 404 Client Error\n")
    with pytest.raises(RuntimeError, match=r"^pip could not install https:.*whl: ERROR: 404 Client Error$"):
        exec(cell("01"), {})
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    with pytest.raises(RuntimeError, match=r"Python 3\.11 or newer is needed"):
        exec(cell("01"), {})
    assert bare.staged == []


def test_every_cell_fits_on_a_screen_and_names_the_data_of_its_lab(repository, cell):
    for path in repository.glob("labs/[0-9]*/*.ipynb"):
        lines = cell(path.name[:2]).splitlines()
        assert len(lines) <= 25 and max(map(len, lines)) <= 96
        assert lines[-1].startswith('    set_up("')


def test_without_any_source_it_names_what_takes_the_data_s_place(tmp_path, monkeypatch, capsys):
    def refuse(self, *_):
        raise Unavailable("no answer")

    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    found = [Finding("memory", "problem", "0.1 GiB free", "shut down"), Finding("disk", "fine", "room")]
    monkeypatch.setattr(set_up_module, "examine", lambda checks: found if data.staged not in checks else [])
    for name in ("fashion-mnist", "cifar10"):
        for source in catalogue.entry(name).sources:
            monkeypatch.setattr(type(source), "deliver", refuse)
    set_up_module.set_up("fashion-mnist", "cifar10", "cifar10-synthetic", "austen-persuasion")
    said = capsys.readouterr().out
    assert "✗ memory" in said and "disk" not in said
    assert 'where the parameters below say "fashion-mnist", write "fashion-mnist-small"' in said
    assert 'where the parameters below say "cifar10", write "cifar10-synthetic"' in said
    assert said.count("none of") == 2 and not [*tmp_path.glob("[!.]*")]
