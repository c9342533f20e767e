"""What a class costs on a cluster: `lab grade --executor slurm` on a one-machine Slurm, and a model of it.

python benchmarks/slurm_grading.py [--calibrate 10 30] [--classes 50 200] [--workers 2 4] [--width 20] [--labs 14]

A class of n submissions on w workers takes S + C·(n / w)·max(1, w / cores) seconds. S (jobs start, imports, the first
warm interpreter) and C (a submission) come from two small classes of lab 01 with the fewest workers. The model then
predicts the larger classes, which are graded as well. The submissions are those of grading.py.

For the whole course, C of each lab is half of the difference between classes of three and of one student, who hand in the
solutions without run folders; one run of each. The prediction for 1,000 students has `width` workers with a core each.
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from grading import BIN, REPOSITORY, lay_out, make_course, run, solved
from harness import conditions, parse_options

from course_lib.system.hardware import available_cores

sys.path.insert(0, str(REPOSITORY / "tests" / "slurm"))
from one_machine_slurm import one_machine_slurm


def main() -> None:
    options = parse_options(__doc__, calibrate=[10, 30], classes=[50, 200], workers=[2, 4], width=20, labs=14)
    cores, least = available_cores(), min(options.workers)
    data = "fashion-mnist-small (official images, shipped subset)"
    print(conditions(data=data, runs="one of each", claimed_cores=max(options.workers)))
    small, large = sorted(options.calibrate)
    with one_machine_slurm():
        seconds = {count: on_slurm(count, least) for count in (small, large)}
        effective = least / max(1, least / cores)
        cost = (seconds[large] - seconds[small]) * effective / (large - small)
        start = seconds[small] - cost * small / effective
        print(f"model: S = {start:.1f} s, C = {cost:.2f} s a submission of lab 01 and core")
        for count in options.classes:
            for workers in options.workers:
                predicted = start + cost * count / workers * max(1, workers / cores)
                took = on_slurm(count, workers)
                print(f"{'':4}predicted {predicted:7.1f} s: {100 * (predicted / took - 1):+.1f} %", flush=True)
    labs = sorted(path.name for path in (REPOSITORY / "labs").glob("[0-9][0-9]_*"))[: options.labs]
    total = 0.0
    for lab in labs:
        one, three = (solutions(lab, count) for count in (1, 3))
        total += (three - one) / 2
        print(f"{lab:28} {(three - one) / 2:6.1f} s a solution", flush=True)
    hours = (len(labs) * start + 1000 * total / options.width) / 3600
    print(f"1,000 students × {len(labs)} labs on {options.width} cores, solutions only: {hours:.1f} hours predicted")


def on_slurm(count: int, workers: int) -> float:
    """Grade a class of lab 01 by an array; prints and returns its seconds."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # the node's jobs see it
        root = lay_out(Path(folder, "class"), count)
        command = [BIN / "lab", "grade", "1", "--executor", "slurm", "--jobs", workers, "--slurm", "cpus-per-task=1"]
        start = time.perf_counter()
        run([str(word) for word in command], root)
        seconds = time.perf_counter() - start
    print(f"{count:4} submissions, {workers} workers: {seconds:7.1f} s", flush=True)
    return seconds


def solutions(lab: str, count: int) -> float:
    """Seconds of `lab grade` with one worker on the solutions of so many students, without run folders."""
    source = nbformat.read(REPOSITORY / "labs" / lab / f"{lab}.ipynb", as_version=4)
    notebook = solved(source)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_course(root, source, lab=lab)
        for number in range(count):
            home = root / "course" / "submitted" / f"s{number}" / lab
            home.mkdir(parents=True)
            nbformat.write(notebook, home / f"{lab}.ipynb")
        start = time.perf_counter()
        run([BIN / "lab", "grade", lab, "--jobs", "1"], root)
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
