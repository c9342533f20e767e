"""A class that opens the hub at one time: does everybody finish, and what does it hold?

python benchmarks/hub_load.py [--students 20] [-o runs/hub_load]

Starts the hub of `make hub` with accounts of its own (as root), signs the students in, starts all their servers at
once, and then runs lab 01's release, filled in, in all of them at once: real accounts, limits, environment and kernels,
everything over HTTP and web sockets through the hub's proxy. Profile smoke. The hub and all it made are removed again.

Prints what each student had, what the machine held, and what other sizes of class need by proportion; writes the whole
as FILE.json and the students' rows as FILE.csv. Exits with 1 where somebody did not finish or a port was in use.

In the table, "server", "kernel" and "ranks" are the largest resident set of one process of the kind (`VmHWM`, MiB); what
processes share counts in each. "together" shares it out (`Pss`): the sum over students is what the machine holds. "end"
is the same when all are done and nobody has closed anything. "bar" is what JupyterLab's status bar showed at most,
"data" what `RLIMIT_DATA` counts for one process, "answer s" the longest wait for an answer of one's own server while
notebooks ran, "refused" how often the hub asked to come again later.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from harness import conditions, parse_options
from hub_load_memory import MIB, Watch
from hub_load_report import collisions, sizing, students_in, table
from hub_load_student import LabRun, Student

from course_lib.system.atomic import write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/hub"))

from lab_answers import LAB, answers
from running_hub import RunningHub, missing

ROOT = Path(__file__).resolve().parents[1]
COURSE = "distributed-training"
CLASSES = (20, 50, 200)
SYSTEM_GIB = 1.0  # for everything that is not the hub: an assumption, said in the table's line


class Load:
    """A class at work on a running hub.

    Attributes
    ----------
    seconds : dict
        ``sign in`` and ``server``: for each student who got so far.
    runs : dict of str to LabRun
    failures : dict
        Why somebody did not get to the end, in a line.
    """

    def __init__(self, hub: RunningHub, names: Sequence[str]) -> None:
        self.hub, self.names = hub, list(names)
        self.students: dict[str, Student] = {}
        self.seconds: dict[str, dict[str, float]] = {"sign in": {}, "server": {}}
        self.runs: dict[str, LabRun] = {}
        self.failures: dict[str, str] = {}
        self.start_seconds = 0.0

    def work(self, watch: Watch) -> None:
        """Sign in, start servers, do the lab; each of them everybody at once."""
        self._all("sign in", self._sign_in)
        self._all("server", lambda name: self.students[name].start_server())
        watch.sample()
        servers = [kinds.get("server", 0.0) for who, kinds in watch.processor_seconds().items() if who in self.names]
        self.start_seconds = statistics.mean(servers) if servers else 0.0
        typed = answers(self.hub.checkout)
        self._all("lab", lambda name: self._do_lab(name, typed))

    def _sign_in(self, name: str) -> None:
        self.students[name] = Student(self.hub, name)
        self.students[name].by_token("GET", "/hub/api/user")

    def _do_lab(self, name: str, typed: dict[int, str]) -> None:
        student = self.students[name]
        student.fetch(COURSE, LAB)
        self.runs[name] = student.run_lab(f"{LAB}/{LAB}.ipynb", typed)
        student.read_meters(now=True)

    def _all(self, step: str, act: Callable[[str], None]) -> None:
        def attempt(name: str) -> None:
            begun = time.monotonic()
            try:
                act(name)
            except Exception as error:
                self.failures[name] = f"{step}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            else:
                self.seconds.setdefault(step, {})[name] = time.monotonic() - begun

        left = [name for name in self.names if name not in self.failures]
        begun = time.monotonic()
        with ThreadPoolExecutor(max(1, len(left))) as pool:
            list(pool.map(attempt, left))
        print(f"{step}: {len(left)} students, {time.monotonic() - begun:.0f} s", flush=True)

    def finished(self, name: str) -> bool:
        """Whether the whole notebook ran as it should."""
        return name in self.runs and not self.runs[name].errors and name not in self.failures

    def rows(self, watch: Watch) -> list[dict[str, Any]]:
        """A row for each student."""
        results, seconds = [], watch.processor_seconds()
        for name in self.names:
            run, peak = self.runs.get(name, LabRun()), watch.peaks[name]
            student = self.students.get(name)
            results.append({
                "student": name.partition("-")[2],
                "server s": self.seconds["server"].get(name),
                "refused": student.refusals if student else None,
                "cells": run.cells,
                "lab s": run.seconds or None,
                "errors": len(run.errors) + (name in self.failures),
                "cpu s": sum(seconds.get(name, {}).values()),
                "answer s": student.slowest_answer if student else None,
                **{kind: round(peak[kind]) for kind in ("server", "kernel", "ranks", "together", "end")},
                "bar": round(student.most_rss / MIB) if student else None,
                "data": round(peak["data"]),
                "threads": int(peak["threads"]),
                "ports": len(watch.ports[name]),
            })  # fmt: skip
        return results


def summary(load: Load, watch: Watch, log: str) -> dict[str, Any]:
    """Totals, what went wrong, and the arithmetic for other classes."""
    everybody = [watch.peaks[name]["together"] for name in load.names if name in load.runs]
    student_gib = statistics.mean(everybody) / 1024 if everybody else 0.0
    fixed_gib = SYSTEM_GIB + sum(watch.peaks[who]["together"] for who in ("hub", load.hub.course)) / 1024
    said = [line for run in load.runs.values() for line in (*run.errors, *run.stderr)]
    seconds = watch.processor_seconds()

    def lab_seconds(name: str) -> float:
        return sum(seconds.get(name, {}).get(kind, 0.0) for kind in ("kernel", "ranks"))

    return {
        "students": len(load.names),
        "finished": sum(load.finished(name) for name in load.names),
        "port collisions": collisions([*log.splitlines(), *said, *load.failures.values()]),
        "failures": {**load.failures, **{name: run.errors for name, run in load.runs.items() if run.errors}},
        "machine MiB": {name: round(value) for name, value in watch.machine.items()},
        "hub MiB": {
            kind: round(value) for kind, value in watch.peaks["hub"].items() if kind not in ("data", "threads")
        },
        "hub processor s": {kind: round(value, 1) for kind, value in seconds.get("hub", {}).items()},
        "start processor s": round(load.start_seconds, 2),
        "lab processor s": round(statistics.mean(map(lab_seconds, load.names)), 1),
        "student GiB": round(student_gib, 3),
        "fixed GiB": round(fixed_gib, 3),
        "sizing": sizing(CLASSES, fixed_gib, student_gib, load.start_seconds) if everybody else [],
    }


def run(students: int, every: float) -> dict[str, Any]:
    """Start the hub, load it, remove it; all figures."""
    results: dict[str, Any] = {}
    hub = RunningHub(students=students)
    try:
        names = [name for name in hub.passwords if name != hub.instructor]
        assert len(names) == students, f"the hub has {len(names)} students instead of {students}"
        watch = Watch([*names, hub.course], hub._process.pid, every)
        load = Load(hub, names)
        try:
            load.work(watch)
        finally:
            watch.stop()
        log = (hub.state / "private/hub.log").read_text(errors="replace")
        results = {"students": load.rows(watch), "summary": summary(load, watch, log)}
    finally:
        try:
            hub.stop()
        except AssertionError as error:  # something was left behind; the figures stay valid
            if not results:
                raise
            results["summary"]["failures"]["the hub's end"] = " ".join(str(error).split())[:300]
    return results


def report(results: dict[str, Any], memory_gib: float) -> None:
    """Print it for a person."""
    totals = results["summary"]
    print(f"\n{table(results['students'])}\n")
    print(f"finished: {totals['finished']} of {totals['students']}; port collisions: {len(totals['port collisions'])}")
    for line in (*totals["port collisions"], *(f"{who}: {what}" for who, what in totals["failures"].items())):
        print(f"  {line}")
    for name in ("machine MiB", "hub MiB", "hub processor s"):
        print(f"{name}: {', '.join(f'{what} {value:g}' for what, value in totals[name].items())}")
    print(
        f"processor seconds of a student: {totals['start processor s']:.1f} for a server's start, "
        f"{totals['lab processor s']:.0f} for the lab"
    )
    if totals["sizing"]:
        fits = students_in(memory_gib, totals["fixed GiB"], totals["student GiB"])
        print(
            f"a student: {totals['student GiB']:.2f} GiB; the hub and {SYSTEM_GIB:g} GiB for the system (assumed): "
            f"{totals['fixed GiB']:.2f} GiB. With a quarter free, {memory_gib:.0f} GiB are enough for {fits} at once"
        )
        print(
            f"by proportion, a quarter of the memory free, everybody's server within a minute:\n{table(totals['sizing'])}"
        )


def main() -> int:
    options = parse_options(
        __doc__, students=20, every=(3.0, "seconds between samples"),
        output=(ROOT / "runs/hub_load", "the files' path without suffix"),
    )  # fmt: skip
    if lack := missing():
        print(f"error: {lack}", file=sys.stderr)
        return 2
    line = conditions(students=options.students, lab=LAB, profile="smoke", data="fashion-mnist-small (shipped)")
    print(line, flush=True)
    results = {"conditions": line, **run(options.students, options.every)}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output.with_suffix(".json"), json.dumps(results, indent=1) + "\n")
    write_atomically(options.output.with_suffix(".csv"), pd.DataFrame(results["students"]).to_csv(index=False))
    report(results, psutil.virtual_memory().total / (1 << 30))
    totals = results["summary"]
    return 1 if totals["failures"] or totals["port collisions"] or totals["finished"] < totals["students"] else 0


if __name__ == "__main__":
    sys.exit(main())
