"""What a rubric withholds of the library: the stand-in of its modules, and that student code finds nothing else."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import course_lib
from autograde.rubric.schema import RUBRICS, RubricError, find_rubric, load_rubric, rubric_names
from autograde.sandbox import bubblewrap
from autograde.sandbox.bubblewrap import SandboxError
from autograde.sandbox.limits import Limits
from autograde.sandbox.withheld import STAND_IN, WithheldError, hidden_packages, original_sources, withheld_modules


@pytest.fixture
def stand_in():
    """A withheld module, imported."""
    spec = importlib.util.spec_from_loader("course_lib.solution", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(STAND_IN, "stand-in", "exec"), vars(module))
    sys.modules[spec.name] = module
    yield module
    del sys.modules[spec.name]


def test_every_import_from_a_withheld_module_succeeds_and_no_use_does(stand_in):
    from course_lib.solution import LIMITS, Solver, solve

    class Mine(Solver):
        pass

    @dataclass
    class Record:
        solver: Solver | None = Solver.DEFAULT

    assert Solver is stand_in.Solver and Record().solver is Solver
    told = "is withheld here: an exercise of this lab asks you to write it$"
    for use in (lambda: solve(1), Solver, lambda: Solver.of(1), lambda: list(LIMITS), lambda: LIMITS["lr"], Mine):
        with pytest.raises(RuntimeError, match=rf"^[\w.]+ {told}"):
            use()
    with pytest.raises(RuntimeError, match=rf"^course_lib\.solution\.solve {told}"):
        solve(x=1)
    with pytest.raises(ValueError):
        try:
            raise ValueError
        except Solver:
            pass


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("course_lib.distributed.rings", "'course_lib.distributed.rings': there is no module course_lib.distributed.rings"),
        ("course_lib", "'course_lib' is no module, such as"),
        ("course_lib...os", "is no module, such as"),
        ("course_lib.training.exam*", "'course_lib.training.exam*': there is no module course_lib.training.exam*"),
        ("course_lib.training.loop:fit", "'course_lib.training.loop:fit' is no module, such as"),
    ],
)  # fmt: skip
def test_an_entry_that_names_nothing_is_told(entry, told):
    with pytest.raises(WithheldError, match=re.escape(told)) as error:
        withheld_modules((entry,))
    assert "\n" not in str(error.value)


def test_a_package_is_withheld_with_all_its_modules():
    names = {module.name for module in withheld_modules(("course_lib.distributed.parameter_server",))}
    assert {f"course_lib.distributed.parameter_server{each}" for each in ("", ".server", ".worker")} <= names
    both = withheld_modules(("course_lib.training.loop", "course_lib.training.lo*"))
    assert {"course_lib.training.loop"} <= {module.name for module in both} and len(set(both)) == len(both)
    same = {module.name.removeprefix("course_lib.optim.") for module in withheld_modules(("course_lib.optim.kfac*",))}
    assert {"kfac", "kfac_inverses"} <= same and all(name.startswith("kfac") for name in same)
    sources = original_sources(("course_lib.training.loop",))
    assert list(sources) == ["course_lib/training/loop.py"] and "def fit(" in sources["course_lib/training/loop.py"]


def test_other_packages_are_withheld_where_they_are_installed(tmp_path, monkeypatch):
    (tmp_path / "solver" / "models").mkdir(parents=True)
    (tmp_path / "solver" / "__init__.py").write_text("raise SystemExit('it was executed')")
    (tmp_path / "solver" / "models" / "net.py").write_text("def solve():\n    return 42\n")
    interpreter = tmp_path / "python"  # with one more folder of packages
    interpreter.write_text(f'#!/bin/sh\nshift  # -I\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    entries = ("solver", "solver.models.net", "not_installed", "not_installed.module")
    assert hidden_packages(entries) == (tmp_path / "solver",)
    (module,) = withheld_modules(entries)
    assert (module.name, module.path) == ("solver.models.net", tmp_path / "solver" / "models" / "net.py")


def test_beside_a_grader_with_a_library_of_its_own_the_installed_one_is_withheld(tmp_path):
    """As on a hub: the sandbox's interpreter ignores PYTHONPATH, and would show the students' copy as it is."""
    (tmp_path / "course_lib").symlink_to(Path(course_lib.__file__).parent)
    code = """
import course_lib
from autograde.sandbox.bubblewrap import python_paths
from autograde.sandbox.withheld import withheld_modules
print(course_lib.__path__[0], withheld_modules(("course_lib.training.loop",))[0].path, *python_paths())
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True)
    (installed,) = withheld_modules(("course_lib.training.loop",))
    own, withheld, *shown = done.stdout.split()
    assert own == str(tmp_path / "course_lib") and withheld == str(installed.path)
    assert any(installed.path.is_relative_to(path) for path in shown)
    assert not [path for path in shown if path.startswith(str(tmp_path))]


def test_of_two_libraries_inside_one_is_covered_whole_and_of_the_students_only_the_exercises(tmp_path, monkeypatch):
    own, public = tmp_path / "grader" / "course_lib", tmp_path / "site-packages" / "course_lib"
    for library in (own, public):
        (library / "exercises").mkdir(parents=True)
    monkeypatch.setattr(course_lib, "__file__", str(own / "__init__.py"))
    monkeypatch.setattr(bubblewrap, "installed", lambda name: public)
    monkeypatch.setattr(bubblewrap, "python_paths", lambda: (tmp_path,))
    assert bubblewrap._masked.__wrapped__() == (own, public / "exercises")


def test_the_rubric_s_list_is_a_list_of_strings(tmp_path):
    path = tmp_path / "01_single_gpu.toml"
    text = (RUBRICS / "01_single_gpu.toml").read_text()
    start = text.index("withheld = [")
    path.write_text(text[:start] + 'withheld = "course_lib.metrics.speed"\n' + text[text.index("]", start) + 2 :])
    with pytest.raises(RubricError, match=r"execution\.withheld: Expected `list`, got `str`"):
        load_rubric(path)


# --- in the sandbox ---------------------------------------------------------------------------------------------------


def ask(warm, body, given=None, withheld=()):
    text = "def probe(student, given, outside):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    with warm.execute(Limits(seconds=30.0), withheld=tuple(withheld)) as execution:
        (reply,) = execution.call(text, "probe", given)
    assert "value" in reply, reply
    return reply["value"]


@pytest.mark.parametrize("name", rubric_names())
def test_what_each_rubric_withholds_is_imported_and_is_the_file_that_is_shown(warm, name):
    modules = withheld_modules(find_rubric(name).execution.withheld)
    found = ask(
        warm,
        """
        import importlib, os
        found = []
        for name in given:
            module = importlib.import_module(name)
            with open(module.__file__) as file:
                text = file.read()
            compiled = os.listdir(os.path.join(os.path.dirname(module.__file__), "__pycache__"))
            found.append([text, module.__loader__.get_source(name), compiled])
        return found
        """,
        [module.name for module in modules],
        find_rubric(name).execution.withheld,
    )
    assert found == [[STAND_IN, STAND_IN, []]] * len(modules)


WITHHELD = ("course_lib.metrics.speed", "course_lib.distributed.collectives.ring")
CALLS = """
import subprocess, sys
import course_lib.distributed, course_lib.metrics.speed
results = []
for call in (lambda: course_lib.metrics.speed.speedup({1: 4.0, 2: 2.0}), lambda: course_lib.distributed.ring_all_reduce(None)):
    try:
        results.append(str(call()))
    except Exception as error:
        results.append(str(error))
fresh = "import course_lib.metrics.speed as m; print(m.speedup({1: 4.0, 2: 2.0}))"
done = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True)
return results, (done.stdout + done.stderr).splitlines()[-1]
"""


def test_one_interpreter_withholds_from_one_execution_and_not_from_the_next(warm):
    for _ in range(2):
        results, fresh = ask(warm, CALLS, withheld=WITHHELD)
        assert results[0].startswith("course_lib.metrics.speed.speedup is withheld here: an exercise of this lab asks")
        assert results[1].startswith("course_lib.distributed.collectives.ring.ring_all_reduce is withheld here")
        assert fresh == f"RuntimeError: {results[0]}"
        results, fresh = ask(warm, CALLS)
        assert results[0] == fresh == "{1: 1.0, 2: 2.0}" and "process group" in results[1]


def test_all_ranks_find_the_same(warm):
    text = (
        "def probe(student, given, outside):\n    import course_lib.metrics.speed as m\n    return m.speedup({1: 1.0})"
    )
    with warm.execute(Limits(seconds=30.0), ranks=2, withheld=WITHHELD) as execution:
        replies = execution.call(text, "probe", None)
    assert [reply["error"]["type"] for reply in replies] == ["RuntimeError"] * 2


def test_a_module_that_is_imported_before_all_labs_is_refused_and_harms_no_other(warm):
    with pytest.raises(SandboxError, match=r"json\.decoder cannot be withheld: it is imported before"):
        warm.execute(Limits(seconds=30.0), withheld=("json.decoder",))
    assert ask(warm, "return 5", withheld=WITHHELD) == 5


def test_a_branch_that_was_ended_is_made_again(warm):
    ask(warm, "return 1", withheld=WITHHELD)
    children = [int(pid) for pid in Path(f"/proc/{warm.pid}/task/{warm.pid}/children").read_text().split()]
    assert children
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        time.sleep(0.01)
    assert ask(warm, "return 6", withheld=WITHHELD) == 6
    assert ask(warm, "return 7") == 7


def test_the_library_s_import_is_not_the_student_s_time(warm):
    ask(warm, "return 1")
    os.kill(warm.pid, signal.SIGSTOP)  # as slow as a machine can be
    threading.Timer(1.0, os.kill, (warm.pid, signal.SIGCONT)).start()
    with warm.execute(Limits(seconds=30.0), withheld=("course_lib.training.linear_interpolation",)) as execution:
        assert execution.seconds_left > 29.5
