"""The hidden check of every exercise that `course_lib.exercises` describes.

The cases are drawn from the grading's own numbers. Into the sandbox goes the source of the exercise's `observe`, with what
it refers to and nothing else; its observations come back as plain data and are judged here.
"""

from __future__ import annotations

import ast
import symtable
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from autograde.checks.registry import AnswerError, Ask, Findings, HiddenCheck
from autograde.sandbox.limits import Exceeded
from course_lib.exercises import Exercise, answers_of, exercises_of, known_labs
from course_lib.exercises import Finding as Verdict
from course_lib.exercises.judging import Expectation, Raised, judge
from course_lib.runs.run_evidence.criteria import Finding

__all__ = ["find_check", "known_checks", "observer_source"]

_HERE = "course_lib.exercises"


def known_checks() -> list[str]:
    """Ids of all checks, as rubrics name them: ``lab01.train-step``."""
    return sorted(f"{lab}.{name}" for lab in known_labs() for name in exercises_of(lab))


@cache
def find_check(check: str) -> HiddenCheck | None:
    """The check of that id, or None."""
    lab, _, name = check.partition(".")
    exercise = exercises_of(lab).get(name)
    if exercise is None:
        return None
    if answers_of(lab) is None:
        raise RuntimeError("the installed course_lib has no answers, as students get it: grade from a checkout")
    parts = {part: each.about for part, each in exercise.parts.items() if each.about}
    return HiddenCheck(partial(_judge, lab, name), parts, exercise.ranks, exercise.network, exercise.seconds)


def _judge(lab: str, name: str, ask: Ask) -> Findings:
    exercise = exercises_of(lab)[name]
    cases = exercise.draw(ask.random)
    if exercise.in_sandbox is not None:
        cases = exercise.in_sandbox(cases)
    found: dict[str, Any] = {}
    blank: AnswerError | None = None
    for kind in sorted(cases, key=exercise.guarded.split().__contains__):
        try:
            found[kind] = _observed(ask, exercise, cases[kind])
        except (AnswerError, Exceeded) as error:
            if kind not in exercise.guarded.split() or getattr(error, "kind", "memory") not in ("memory", "time"):
                raise
            if getattr(error, "flag", None) == "crash":
                found[kind] = Raised(error)
            elif getattr(error, "flag", None) == "missing":
                blank = error
            if isinstance(error, Exceeded):
                break  # nothing runs in that sandbox any more
    if blank is not None and not found:
        raise blank
    expected = Expectation.of(exercise, answers_of(lab)[name], cases)
    findings = judge(exercise, expected, found.get)
    return {part: _finding(findings[part]) for part, each in exercise.parts.items() if each.about}


def _finding(verdict: Verdict) -> Finding:
    return Finding(verdict.passed, verdict.reason, verdict.hint)


def _observed(ask: Ask, exercise: Exercise, cases: Sequence[Any]) -> Any:
    if exercise.watch is None and exercise.ranks == 1:
        return ask.call("observe_cases", {"functions": exercise.functions, "cases": list(cases)})
    return [_watched(ask, exercise, case) for case in cases]


def _watched(ask: Ask, exercise: Exercise, case: Any) -> dict[str, Any]:
    """One case in a call of its own, with a watch on this side; on as many ranks as it takes."""
    watch = exercise.watch(case) if exercise.watch is not None else None
    given: Any = {"functions": exercise.functions, "case": case, "asks": watch is not None}
    answers: Any = _Answers(watch) if watch is not None else None
    if exercise.ranks == 1:
        seen = ask.call("observe_watched", given | {"case": exercise.share(case, 0)}, answers)
        seen = seen if isinstance(seen, dict) else {}
    else:
        size = exercise.world(case) if exercise.world is not None else exercise.ranks
        each = [given | {"case": exercise.share(case, rank), "rank": rank} for rank in range(size)]
        seen = {"ranks": ask.call("observe_rank", each + [None] * (exercise.ranks - size), answers)[:size]}
    return seen | (watch.evidence() if watch is not None else {})


class _Answers(dict):
    """A watch as `Ask.call`'s answers: every name is one that it may be asked; it raises `KeyError` for others."""

    def __init__(self, watch: Any) -> None:
        super().__init__()
        self.watch = watch

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return lambda rank, *args: self.watch.answer(name, rank, *args)

    def __bool__(self) -> bool:
        return True


_CALLS = """
def observe_cases(student, given, outside):
    functions = [student(name) for name in given["functions"]]
    return [{observe}(case, *functions) for case in given["cases"]]


def observe_watched(student, given, outside):
    return {observe}(given["case"], outside, *[student(name) for name in given["functions"]])


def observe_rank(student, given, outside):
    if given is None:
        return None
    functions = [student(name) for name in given["functions"]]
    return {observe}(given["case"], given["rank"], outside, *functions)
"""


@cache
def observer_source(check: str) -> str:
    """What is sent beside a student's code: `observe`, what it refers to, and the calls above."""
    lab, _, name = check.partition(".")
    observe = exercises_of(lab)[name].observe
    module = sys.modules[observe.__module__]
    return sliced(whole_text(Path(module.__file__)), observe.__name__) + _CALLS.format(observe=observe.__name__)


@cache
def whole_text(path: Path) -> str:
    """A module's source after that of the modules of `course_lib.exercises` that it imports from."""
    texts, tree = [], ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_HERE + "."):
            parts = node.module.removeprefix(_HERE + ".").split(".")
            module = Path(sys.modules[_HERE].__file__).parent.joinpath(*parts).with_suffix(".py")
            texts += [whole_text(module)] if module.is_file() else []  # from a package: its modules are nothing to send
    return "\n\n".join([*texts, ast.unparse(tree)])


def sliced(source: str, function: str) -> str:
    """Those imports and definitions at a module's top level that a function refers to, by others or itself.

    Imports from `course_lib.exercises` go: nothing of it is in a sandbox.
    """
    body = _statements(source)
    defined: dict[str, ast.stmt] = {}
    for node in body:
        defined |= dict.fromkeys(_names(node), node)
    wanted: set[ast.stmt] = set()
    left = [function]
    while left:
        node = defined.get(left.pop())
        if node is not None and node not in wanted:
            wanted.add(node)
            left += _refers_to(node)
    # Imports come first: where two modules import a name, the later import is the one that is kept.
    kept = sorted(filter(wanted.__contains__, body), key=lambda node: not isinstance(node, ast.Import | ast.ImportFrom))
    return ast.unparse(ast.Module(kept, []))


@cache  # a lab's exercises share a source
def _statements(source: str) -> list[ast.stmt]:
    tree = ast.parse(source)
    for node in ast.walk(tree):  # annotations name types that are not there
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree.body


@cache
def _refers_to(node: ast.stmt) -> set[str]:
    return _globals_of(symtable.symtable(ast.unparse(node), "<driver>", "exec"))


def _globals_of(scope: symtable.SymbolTable) -> set[str]:
    """The module's names that a scope refers to, itself or in a scope inside it. A local variable of such a name is none."""
    found = {each.get_name() for each in scope.get_symbols() if each.is_referenced() and each.is_global()}
    return found.union(*map(_globals_of, scope.get_children()))


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        ours = (node.module or "") == _HERE or (node.module or "").startswith(_HERE + ".")
        return [] if ours or node.module == "__future__" else [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Assign):
        targets = [each for target in node.targets for each in ast.walk(target)]
        return [each.id for each in targets if isinstance(each, ast.Name)]
    return []
