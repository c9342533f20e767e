"""Grading a class with `lab grade`, beside stock `nbgrader autograde` on the same submissions.

python benchmarks/grading.py [--submissions 30] [--skip-stock] [--profile laptop --cell-seconds 300]

The submissions are of lab 01: right, wrong, crashing and hanging ones in a fixed proportion, each with an honest run
folder. Stock nbgrader executes each student's notebook in a kernel; here the notebooks carry the lab's smoke
parameters, the shortest that it has, and a cell there may take as long as an exercise here, so that the comparison
leans towards nbgrader. With ``--profile laptop`` they carry the lab's own values, and a cell needs a limit in which the
training ends. Their order is drawn, always the same: a name says nothing about a notebook.
The gradebooks start equal. What is timed is a whole command, from its start to its end.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat
import psutil
import yaml
from harness import conditions, parse_options
from nbformat import NotebookNode

from autograde.rubric.schema import find_rubric
from autograde.submission.notebook_repair import release_of

LAB = "01_single_gpu"
REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "labs" / LAB / f"{LAB}.ipynb"
BIN = Path(sys.executable).parent
# Replaced in the solutions, by kind of submission; of ten, six are right.
KINDS: dict[str, tuple[str, str]] = {
    "right": ("", ""),
    "wrong: gradients add up": ("    optimizer.zero_grad()\n", ""),
    "wrong: means are added": (" * len(labels)\n    ", "\n    "),
    "crashing: raises": ("    loss.backward()\n", "    loss.backwards()\n"),
    "hanging: endless loop": ("    model.eval()\n", "    while True:\n        pass\n"),
}
TEN = [0, 0, 1, 0, 0, 2, 0, 3, 0, 4]
STOCK_CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "benchmark"
c.CourseDirectory.source_directory = "labs"
c.Execute.timeout = {seconds:.0f}
c.ExecutePreprocessor.timeout = {seconds:.0f}
"""


def main() -> None:
    options = parse_options(__doc__, submissions=30, skip_stock=False, profile={"laptop", "smoke"}, cell_seconds=float)
    count, profile = options.submissions, options.profile or "smoke"
    limit = options.cell_seconds or find_rubric(LAB).execution.seconds
    data = "official FashionMNIST" + (", shipped subset" if profile == "smoke" else "")
    print(conditions(submissions=count, profile=profile, data=data, cell_seconds=f"{limit:g}", runs="one of each"))
    names = list(KINDS)
    print("submissions:", ", ".join(f"{sum(kind_of(i) == name for i in range(count))} {name}" for name in names))
    with tempfile.TemporaryDirectory() as folder:
        rates = {}
        for workers in (1, 2):
            course = lay_out(Path(folder, f"ours{workers}"), count, profile)
            seconds, memory = timed([BIN / "lab", "grade", "1", "--jobs", str(workers)], course)
            rates[workers] = 60 * count / seconds
            print(
                f"lab grade, {workers} worker(s): {seconds:6.1f} s, {rates[workers]:6.1f} a minute; most memory at a "
                f"time (proportional set) {memory['workers'] / 2**20:.0f} MiB for {workers} worker(s) with their warm "
                f"interpreters, {memory['sandbox'] / 2**20:.0f} MiB in sandboxes, {memory['main'] / 2**20:.0f} MiB main"
            )
        print(f"from 1 to 2 workers: {rates[2] / rates[1]:.2f} times the submissions a minute")
        if options.skip_stock:
            return
        course = lay_out(Path(folder, "stock"), count, profile, STOCK_CONFIG.format(seconds=limit))
        seconds, _ = timed([BIN / "nbgrader", "autograde", LAB], course)
        stock = 60 * count / seconds
        print(f"nbgrader autograde:     {seconds:6.1f} s, {stock:6.1f} a minute")
        print(f"lab grade / nbgrader:   {rates[1] / stock:.1f} with 1 worker, {rates[2] / stock:.1f} with 2")


def kind_of(index: int) -> str:
    drawn = random.Random(index // len(TEN)).sample(TEN, len(TEN))
    return list(KINDS)[drawn[index % len(TEN)]]


def lay_out(root: Path, count: int, profile: str = "smoke", config: str | None = None) -> Path:
    """A course with its submissions, its lab generated; returns the folder to run commands in."""
    source = nbformat.read(SOURCE, as_version=4)
    make_course(root, source, config)
    for index in range(count):
        hand_in(root / ("course" if config is None else ""), f"student{index:03d}", submission(source, kind_of(index), profile))
    run([BIN / "nbgrader", "generate_assignment", LAB], root)
    return root


def make_course(root: Path, source: NotebookNode, config: str | None = None, lab: str = LAB) -> None:
    """The folder of a course with one lab; `config` replaces the course's own settings of nbgrader."""
    (root / "labs" / lab).mkdir(parents=True)
    nbformat.write(source, root / "labs" / lab / f"{lab}.ipynb")
    (root / "nbgrader_config.py").write_text(config or (REPOSITORY / "nbgrader_config.py").read_text())


def hand_in(course: Path, student: str, notebook: NotebookNode) -> None:
    """A submission with an honest run folder."""
    folder = course / "submitted" / student / LAB
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{LAB}.ipynb")
    shutil.copytree(REPOSITORY / "tests" / "autograde" / "honest_run", folder / "run")


def run(command: list[object], folder: Path) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def solved(source: NotebookNode) -> NotebookNode:
    """The release copy of a lab with the solutions filled in."""
    notebook = release_of(source)
    for cell, solution in zip(notebook.cells, source.cells, strict=True):
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = "\n".join(line for line in solution.source.splitlines() if "### " not in line)
    return notebook


def submission(source: NotebookNode, kind: str, profile: str = "smoke") -> NotebookNode:
    """Lab 01 as such a student hands it in, with a profile's parameters."""
    notebook = solved(source)
    values = yaml.safe_load((REPOSITORY / "labs" / LAB / "profiles.yaml").read_text())[profile]
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = cell.source.replace(*KINDS[kind])
        if "parameters" in cell.metadata.get("tags", []):
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in values.items())
    return notebook


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", "")])}


def timed(command: list[object], folder: Path) -> tuple[float, dict[str, int]]:
    """Seconds that a command takes, and the most memory of its processes, by what they are."""
    start = time.perf_counter()
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(list(map(str, command)), cwd=folder, env=environment(), stdout=log, stderr=log)
        most = dict.fromkeys(("main", "workers", "sandbox"), 0)
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=(process.pid, most, ended))
        watcher.start()
        process.wait()
        seconds = time.perf_counter() - start
        ended.set()
        watcher.join()
    return seconds, most


def watch(pid: int, most: dict[str, int], ended: threading.Event) -> None:
    while not ended.wait(2.0):
        now = dict.fromkeys(most, 0)
        try:
            processes = psutil.Process(pid).children(recursive=True)
            now["main"] = psutil.Process(pid).memory_full_info().pss
        except psutil.Error:
            continue
        for process in processes:
            try:
                inside = os.readlink(f"/proc/{process.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
                now["sandbox" if inside else "workers"] += process.memory_full_info().pss
            except (psutil.Error, OSError):
                continue
        for name, value in now.items():
            most[name] = max(most[name], value)


if __name__ == "__main__":
    main()
