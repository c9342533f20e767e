"""The course's own library, which solves exercises, in the place of answers: called, read, and started anew."""

from __future__ import annotations

from exhibits import Submission, World, exhibit

WITHHELD = dict(train_step=0, evaluate=0, training=0, flags="crash", reason="is withheld here: an exercise of this lab")


def hand_in(submission: Submission, find: str) -> None:
    """Answers that call what the function ``find(module, name)`` of an exhibit comes upon."""
    submission.answer("train-step", find + "\n\ntrain_step = find('course_lib.training.loop', 'train_step')\n")
    submission.answer("evaluate", find + "\n\nevaluate = find('course_lib.training.loop', 'evaluate')\n")
    submission.answer(
        "training",
        find
        + """

def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, **more):
    fit = find("course_lib.training.loop", "fit")
    return fit(model, train_batches, validation_batches, optimizer, loss_fn=loss_fn, epochs=epochs).epochs
""",
    )


@exhibit(**WITHHELD)
def library_is_called(submission: Submission, world: World) -> None:
    """Calls the library's own functions, by their names, out of sys.modules, and out of a module that has them bound."""
    hand_in(
        submission,
        """
import course_lib.training.strategies.run, sys
from course_lib.training import fit

def find(module, name):
    if name == "train_step":
        return getattr(sys.modules[module], name)
    return course_lib.training.strategies.run.evaluate if name == "evaluate" else globals()[name]
""",
    )


@exhibit(**WITHHELD)
def library_is_read(submission: Submission, world: World) -> None:
    """Reads the library's text: the file, what inspect and the loader say of it, and whatever is compiled of it.

    Of every version that is found, the first is taken that defines the function.
    """
    hand_in(
        submission,
        """
import glob, importlib, importlib.util, inspect, marshal, os

def find(module, name):
    whole = importlib.import_module(module)
    codes = []
    for text in (
        lambda: open(whole.__file__).read(),
        lambda: inspect.getsource(whole),
        lambda: whole.__loader__.get_source(module),
        lambda: importlib.util.find_spec(module).loader.get_data(whole.__file__).decode(),
    ):
        try:
            codes.append(compile(text(), "read", "exec"))
        except Exception:
            pass
    for path in glob.glob(f"{os.path.dirname(whole.__file__)}/**/{module.split('.')[-1]}*.pyc", recursive=True):
        codes.append(marshal.loads(open(path, "rb").read()[16:]))
    for code in codes:
        space = {"__name__": module}
        exec(code, space)
        if name in space:
            return space[name]
    return getattr(whole, name)
""",
    )


@exhibit(**WITHHELD)
def library_is_started_anew(submission: Submission, world: World) -> None:
    """Reloads the library, asks every object that the process holds, and lets a fresh interpreter import it."""
    hand_in(
        submission,
        """
import gc, importlib, subprocess, sys, types

def find(module, name):
    whole = importlib.import_module(module)
    if name == "fit":
        def call(*given, **more):
            ask = f"import {module} as m; print(m.{name}(None, [], [], None, epochs=0))"
            done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr.splitlines()[-1])
            return eval(done.stdout)
        return call
    known = [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]
    known += [each for one in list(known) for each in gc.get_referents(one) if isinstance(each, types.FunctionType)]
    for each in known:
        if each.__name__ == name and each.__module__ == module:
            return each
    return getattr(importlib.reload(whole), name)
""",
    )
