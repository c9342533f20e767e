"""An exercise on ranks that reach each other through the grader, judged without a sandbox: each rank is a thread.

It is the hidden check, `described._judge`, with the source that a sandbox gets. PyTorch keeps process groups apart by thread
for tests of its own.
"""

import gc
import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg

from autograde.checks import described
from autograde.checks.registry import AnswerError
from course_lib.exercises import Finding, exercises_of
from course_lib.exercises.judging import plain
from course_lib.exercises.ranks import broker_process_group
from data_prep import catalogue, staged

SOON = 0.0005  # seconds between two questions, where no process is between them
_RANK = threading.local()


def _made(store, rank, size, timeout):
    """A thread's group; that of an exercise which joins one in this process is its own."""
    make = getattr(_RANK, "group", None) or broker_process_group.GROUPS[0]
    return make(rank, size)


dist.Backend.register_backend("by_the_grader", _made, devices=["cpu"])  # a backend is registered once in a process


@cache
def unpacked(name):
    """A set that ships with the course: a rank's program reads it several times, and unpacking it takes longest."""
    return _open_shipped(catalogue.CATALOGUE[name])


_open_shipped = staged._open_shipped


def unpacked_once():
    return mock.patch.object(staged, "_open_shipped", lambda entry: unpacked(entry.name))


@cache
def libraries_stay():
    """A program collects garbage before it leaves its group: it need not look at what DistributedDataParallel imports."""
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


class Threads:
    """`autograde.checks.registry.Ask` for functions of this process."""

    def __init__(self, lab, name, functions, seed):
        self.random, self.names = np.random.default_rng(seed), {}
        self.functions = dict(zip(exercises_of(lab)[name].functions, functions, strict=True))
        exec(described.observer_source(f"{lab}.{name}"), self.names)
        self.names |= dict.fromkeys(("POLL", "NEXT"), SOON)

    def call(self, function, given, answers):
        asking = threading.Lock()

        def on(rank):
            def outside(name, *args):
                with asking:
                    return answers[name](rank, *map(plain, args))

            group = self.names.get("CollectiveProcessGroup") or self.names.get("BrokerProcessGroup")
            _RANK.group = lambda rank, size: group(rank, size, outside)
            return plain(self.names[function](self.functions.__getitem__, given[rank], outside))

        with groups_of_threads(), as_before(self.functions.values()), ThreadPoolExecutor(len(given)) as pool:
            ranks = [pool.submit(on, rank) for rank in range(len(given))]
        errors = [error for rank in ranks if (error := rank.exception()) is not None]
        # A rank's own error says more than that of one which waited for it.
        for error in sorted(errors, key=lambda error: str(error) == getattr(answers.watch, "fault", "")):
            raise AnswerError(f"your function raised: {type(error).__name__}: {error}", "call it yourself", "crash")
        return [rank.result() for rank in ranks]


@contextmanager
def as_before(functions):
    """Stand-ins beside the functions are gone afterwards."""
    each = [getattr(function, "__globals__", {}) for function in functions]
    before = [dict(names) for names in each]
    yield
    for names, known in zip(each, before, strict=True):
        names.update(known)


@contextmanager
def groups_of_threads():
    libraries_stay()
    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        with unpacked_once():
            yield
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()


def judged_in_threads(lab, name, functions, seed):
    """The findings of the hidden check."""
    try:
        found = described._judge(lab, name, Threads(lab, name, functions, seed))
    except AnswerError as error:
        return {
            part: Finding(False, str(error), error.remedy)
            for part, each in exercises_of(lab)[name].parts.items() if each.about
        }  # fmt: skip
    return {part: Finding(finding.passed, finding.reason, finding.remedy) for part, finding in found.items()}
