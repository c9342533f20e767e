"""What a course's commands and pages cost with 200 students and with 1,000: seconds, and memory at the peak.

python benchmarks/class_of_1000.py [--students 200 1000] [--labs 14]

The students are made up and nothing of theirs is executed: each hands in every lab, with the solution's cells or the
starter's, drawn at random, and gets a verdict whose criteria are met or not at random. What is made is what `lab grade`
leaves: submissions, verdicts, gradebook. What is timed is whole commands and formgrader's requests, one of each, of every
lab, and the page of the whole course. For what grading itself costs see benchmarks/grading.py.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import nbformat
from grading import BIN, REPOSITORY, environment
from harness import conditions, parse_options

from autograde.gradebook.scores import count_rows, ensure_assignment, nbgrader_settings, open_gradebook, record_verdict
from autograde.grading.one_submission import failed_verdict
from autograde.rubric.schema import find_rubric
from autograde.submission.notebook_repair import release_of

TOKEN = "benchmark"
WHEN = datetime(2026, 11, 20, 12)


def main() -> None:
    options = parse_options(__doc__, students=[200, 1000], labs=14)
    labs = sorted(path.name for path in (REPOSITORY / "labs").glob("[0-9][0-9]_*"))[: options.labs]
    print(conditions(labs=len(labs), runs="one of each", submissions="made up, none executed"))
    for count in options.students:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            start = time.perf_counter()
            fill(root, labs, [f"s{number:04d}" for number in range(count)])
            print(f"\n{count} students × {len(labs)} labs made in {time.perf_counter() - start:.0f} s")
            for lab in labs:
                print(lab)
                measure(root, "lab report LAB, with similarity", "lab", "report", lab)
                measure(root, "lab export LAB --to nbgrader", "lab", "export", lab, "--to", "nbgrader")
                ten = measure(root, "nbgrader generate_feedback LAB, ten students", "nbgrader", "generate_feedback", lab,
                              "--student", "s000?")  # fmt: skip
                print(f"{'':50} {ten / 10:8.2f} s a student")
            print("all labs")
            measure(root, "lab report, the page of the course", "lab", "report")
            formgrader(root, labs)


def fill(root: Path, labs: list[str], students: list[str]) -> None:
    """A course after `lab grade` of every lab: submissions, verdicts and the gradebook; prints what the gradebook costs."""
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    config, draw, spent = None, random.Random(0), 0.0
    for lab in labs:
        source = nbformat.read(REPOSITORY / "labs" / lab / f"{lab}.ipynb", as_version=4)
        (root / "labs" / lab).mkdir(parents=True)
        nbformat.write(source, root / "labs" / lab / f"{lab}.ipynb")
        config = config or nbgrader_settings(root / "course")
        rubric = find_rubric(lab)
        ensure_assignment(config, rubric)
        starter, none = release_of(source), failed_verdict(rubric, students[0], "not met")
        ours = {cell.id: cell.source for cell in source.cells if cell.metadata.get("nbgrader", {}).get("solution")}
        with open_gradebook(config) as gradebook:
            for student in students:
                notebook = json.loads(nbformat.writes(starter))
                for cell in notebook["cells"]:
                    if cell["id"] in ours and draw.random() < 0.8:
                        lines = [line for line in ours[cell["id"]].splitlines() if "### " not in line]
                        cell["source"] = "\n".join([*lines, f"# {student}" if cell["cell_type"] == "code" else student])
                for step in ("submitted", "autograded"):
                    path = root / "course" / step / student / lab
                    path.mkdir(parents=True)
                    (path / f"{lab}.ipynb").write_text(json.dumps(notebook))
                    (path / "timestamp.txt").write_text(f"{WHEN} UTC")
                met = [draw.random() < 0.8 for _ in none.results]
                results = tuple(
                    replace(result, passed=True, points=result.max_points, reason="met") if good else result
                    for result, good in zip(none.results, met, strict=True)
                )
                verdict = replace(none, student=student, results=results)
                verdict.save(root / "course")
                start = time.perf_counter()
                record_verdict(gradebook, verdict, WHEN)
                spent += time.perf_counter() - start
            count_rows(gradebook)
    print(f"gradebook: {1000 * spent / len(students) / len(labs):.1f} ms a submission")


def measure(root: Path, name: str, command: str, *arguments: str) -> float:
    """Run a command in the course; prints and returns its seconds."""
    start = time.perf_counter()
    with open(root / "log", "w") as log:
        process = subprocess.Popen(
            [str(BIN / command), *arguments], cwd=root, env=environment(), stdout=log, stderr=log
        )
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{name} failed:\n{(root / 'log').read_text()[-2000:]}")
    print(f"{name:50} {seconds:8.2f} s {used.ru_maxrss / 1024:8.0f} MiB")
    return seconds


def formgrader(root: Path, labs: list[str]) -> None:
    """Time the requests that formgrader's pages make; prints each."""
    server = subprocess.Popen(
        [BIN / "jupyter", "server", "--allow-root", "--no-browser", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1",
         f"--IdentityProvider.token={TOKEN}", "--ServerApp.jpserver_extensions={'nbgrader': True}"],
        cwd=root, env={**environment(), "JUPYTER_RUNTIME_DIR": str(root / "runtime"), "HOME": str(root)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (found := list((root / "runtime").glob("jpserver-*.json"))):
            if server.poll() is not None:
                sys.exit("the Jupyter server did not start")
            time.sleep(0.2)
        address = json.loads(found[0].read_text())["url"]
        # Twice: the first request of all opens the database.
        for page in (
            "assignments",
            "assignments",
            "students",
            *(f"submissions/{lab}" for lab in labs),
            *(f"submitted_notebooks/{lab}/{lab}" for lab in labs),
        ):
            request = urllib.request.Request(
                f"{address}formgrader/api/{page}", headers={"Authorization": f"token {TOKEN}"}
            )
            start = time.perf_counter()
            with urllib.request.urlopen(request) as answer:
                size = len(answer.read())
            print(f"formgrader/api/{page:60} {time.perf_counter() - start:8.2f} s {size / 1024:8.0f} KiB sent")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
