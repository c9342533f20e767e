"""An honest student graded beside one whose answers start many busy processes.

python benchmarks/neighbours.py [--pairs 10] [--processes 40]

Each pair is a class of two, graded by `lab grade --jobs 2` with lab 01's own limits. What is shown for each pair is the
honest student's score and the seconds of the command, beside a class of two honest students graded before them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import nbformat
from grading import BIN, LAB, SOURCE, hand_in, kind_of, make_course, run, submission
from harness import conditions, parse_options, summary

from autograde.rubric.verdict import load_verdict, verdict_path

HOG = """
import os, time
for _ in range({processes}):
    if os.fork() == 0:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            pass
        os._exit(0)
"""


def main() -> None:
    options = parse_options(__doc__, pairs=10, processes=40)
    print(conditions(pairs=options.pairs, busy_processes=options.processes, workers=2), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = grade(Path(folder, "honest"), {"ada": "", "bob": ""})
        print(
            f"two honest students: {undisturbed['seconds']:.0f} s, {undisturbed['ada']:g} and {undisturbed['bob']:g} points"
        )
        seconds, kept = [], 0
        for pair in range(options.pairs):
            result = grade(Path(folder, str(pair)), {"ada": "", "hog": HOG.format(processes=options.processes)})
            seconds.append(result["seconds"])
            kept += result["ada"] == undisturbed["ada"]
            print(
                f"pair {pair + 1}: ada {result['ada']:g}, hog {result['hog']:g}, {result['seconds']:.0f} s", flush=True
            )
    print(f"every point kept in {kept} of {options.pairs} pairs; {summary(seconds, 0)} s per pair")


def grade(root: Path, students: dict[str, str]) -> dict[str, float]:
    """Grade a class; each student's points, and the seconds of it all. A text is put into the student's first answer."""
    source = nbformat.read(SOURCE, as_version=4)
    make_course(root, source)
    for student, text in students.items():
        notebook = submission(source, kind_of(0))
        first = next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("solution"))
        first.source = text + first.source
        hand_in(root / "course", student, notebook)
    start = time.perf_counter()
    run([BIN / "lab", "grade", "1", "--jobs", "2"], root)
    found = {name: load_verdict(verdict_path(root / "course", name, LAB)).score for name in students}
    return found | {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    main()
