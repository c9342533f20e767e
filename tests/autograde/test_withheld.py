"""What a rubric withholds of the library: the redacted texts, and that student code finds nothing else."""

import ast
import os
import re
import signal
import textwrap
import threading
import time
from pathlib import Path

import pytest

from autograde.rubric.schema import RUBRICS, RubricError, find_rubric, load_rubric, rubric_names
from autograde.sandbox.bubblewrap import SandboxError
from autograde.sandbox.limits import Limits
from autograde.sandbox.withheld import WithheldError, hidden_packages, original_sources, redacted, withheld_modules

SOURCE = '''
"""A module."""
import functools

LIMIT = 3
RULES = {"double": lambda x: 2 * x, "limit": LIMIT}

@functools.lru_cache(maxsize=None)
def solve(x, start=lambda: 1):
    """Solve it."""
    def inner():
        return "secret"
    return inner() + start()

class Solver:
    "Solves."
    kind: str = "solver"

    def __init__(self, x):
        self.x = x

    @property
    def answer(self):
        return self.x + 1

    @classmethod
    async def later(cls):
        return cls(42)

def given(x):
    return x - 1

if LIMIT:
    def hidden(x):
        return x * 77
'''


def executed(text):
    space = {"__name__": "m"}
    exec(compile(text, "m", "exec"), space)
    return space


def refused(call, what):
    with pytest.raises(RuntimeError, match=f"^{what} is withheld here: an exercise of this lab asks you to write it$"):
        call()


def test_of_a_whole_module_no_function_is_left_and_everything_else_is():
    text = redacted(SOURCE, "m")
    space = executed(text)
    refused(lambda: space["solve"](1), "m.solve")
    refused(lambda: space["Solver"](1), "m.Solver")
    refused(lambda: space["Solver"].answer.fget(None), "m.Solver")
    refused(lambda: space["RULES"]["double"](1), "m.RULES")
    refused(lambda: space["given"](1), "m.given")
    refused(lambda: space["hidden"](1), "m")
    assert space["RULES"]["limit"] == 3 and space["Solver"].kind == "solver"
    assert space["solve"].__doc__ == "Solve it." and space["solve"].cache_info()
    assert not any(secret in text for secret in ("secret", "42", "77", "x + 1", "2 * x", "x - 1", "lambda: 1"))


def test_of_a_module_s_names_only_they_are_withheld():
    space = executed(redacted(SOURCE, "m", ["Solver", "RULES"]))
    refused(lambda: space["Solver"](1), "m.Solver")
    refused(lambda: space["RULES"]["double"](1), "m.RULES")
    assert space["given"](3) == 2 and space["hidden"](1) == 77


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("course_lib.distributed.rings", "'course_lib.distributed.rings': there is no module course_lib.distributed.rings"),
        ("course_lib", "'course_lib' is no module, such as"),
        ("course_lib...os", "is no module, such as"),
        ("course_lib.checks.exam*", "'course_lib.checks.exam*' has no function in it"),
        ("course_lib.training.loop:fitt", "course_lib.training.loop defines no 'fitt' at its top level"),
        ("course_lib.distributed:ring_all_reduce", "is a package; name the module that defines 'ring_all_reduce'"),
        ("course_lib.training.loop:__all__", "has no function in it that could be withheld"),
    ],
)  # fmt: skip
def test_an_entry_that_names_nothing_is_told(entry, told):
    with pytest.raises(WithheldError, match=re.escape(told)) as error:
        withheld_modules((entry,))
    assert "\n" not in str(error.value)


def test_a_package_is_withheld_with_all_its_modules():
    names = [module.name for module in withheld_modules(("course_lib.distributed.parameter_server",))]
    assert "course_lib.distributed.parameter_server.server" in names
    assert "course_lib.distributed.parameter_server" not in names  # its __init__.py has no function
    both = withheld_modules(("course_lib.training.loop:evaluate", "course_lib.training.loop"))
    assert both == withheld_modules(("course_lib.training.loop",))
    assert list(original_sources(("course_lib.training.loop:fit",))) == ["course_lib/training/loop.py"]


def test_of_a_package_all_modules_of_a_name_are_withheld():
    names = [module.name for module in withheld_modules(("course_lib.checks.lab*",))]
    assert {"course_lib.checks.lab01", "course_lib.checks.lab12"} <= set(names)
    assert all(name.startswith("course_lib.checks.lab") for name in names)


def test_other_packages_are_withheld_where_they_are_installed(tmp_path, monkeypatch):
    (tmp_path / "solver" / "models").mkdir(parents=True)
    (tmp_path / "solver" / "__init__.py").write_text("raise SystemExit('it was executed')")
    (tmp_path / "solver" / "models" / "net.py").write_text("def solve():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    entries = ("solver", "solver.models.net", "not_installed", "not_installed.module")
    assert hidden_packages(entries) == (tmp_path / "solver",)
    (module,) = withheld_modules(entries)
    assert module.name == "solver.models.net" and "42" not in module.text


def test_no_lab_s_rubric_leaves_another_lab_s_visible_checks():
    for name in rubric_names():
        assert "course_lib.checks.lab*" in find_rubric(name).execution.withheld


def test_the_rubric_s_list_is_a_list_of_strings(tmp_path):
    path = tmp_path / "01_single_gpu.toml"
    text = (RUBRICS / "01_single_gpu.toml").read_text()
    start = text.index("withheld = [")
    path.write_text(text[:start] + 'withheld = "course_lib.metrics.speed"\n' + text[text.index("]", start) + 2 :])
    with pytest.raises(RubricError, match=r"\[execution\] withheld must be a list of strings"):
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
    if not modules:
        pytest.skip("the library solves none of its exercises")
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
    assert found == [[module.text, module.text, []] for module in modules]
    for module in modules:
        bodies = [node.body for node in ast.walk(ast.parse(module.text)) if isinstance(node, ast.FunctionDef)]
        assert any(isinstance(body[-1], ast.Raise) for body in bodies)


WITHHELD = ("course_lib.metrics.speed", "course_lib.distributed.collectives.ring:ring_all_reduce")
CALLS = """
import inspect, subprocess, sys
import course_lib.distributed, course_lib.distributed.collectives.ring, course_lib.metrics.speed
code = inspect.unwrap(course_lib.distributed.ring_all_reduce).__code__
told = []
for call in (lambda: course_lib.metrics.speed.speedup({1: 4.0, 2: 2.0}), lambda: course_lib.distributed.ring_all_reduce(None)):
    try:
        told.append(str(call()))
    except Exception as error:
        told.append(str(error))
fresh = "import course_lib.metrics.speed as m; print(m.speedup({1: 4.0, 2: 2.0}))"
done = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True)
return told, list(code.co_names), (done.stdout + done.stderr).splitlines()[-1], course_lib.distributed.collectives.ring.chunks_of.__code__.co_names
"""


def test_one_interpreter_withholds_from_one_execution_and_not_from_the_next(warm):
    for _ in range(2):
        told, names, fresh, kept = ask(warm, CALLS, withheld=WITHHELD)
        assert told[0].startswith("course_lib.metrics.speed.speedup is withheld here: an exercise of this lab asks")
        assert told[1].startswith("course_lib.distributed.collectives.ring.ring_all_reduce is withheld here")
        assert names == ["RuntimeError"] and fresh == f"RuntimeError: {told[0]}" and "pairwise" in kept
        told, names, fresh, _ = ask(warm, CALLS)
        assert told[0] == fresh == "{1: 1.0, 2: 2.0}" and "process group" in told[1] and "check_agreement" in names


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
