"""From `nbgrader submit` to feedback, with `lab serve`: seconds that students wait.

python benchmarks/grade_on_submission.py [--submissions 20] [--minutes 10] [--jobs 2]

Each student hands in lab 01 once, through stock nbgrader's exchange, at equal distances within the minutes. The
submissions are those of `grading.py`: right, wrong, crashing and hanging ones in a fixed proportion, each with an honest
run folder; the mode is `evidence`. The clock starts when nbgrader has submitted, and stops when the page is where
nbgrader's Assignment List looks for it. The service is started before, with a pool that is not yet warm.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from grading import BIN, LAB, REPOSITORY, SOURCE, environment, kind_of, make_course, run, submission
from harness import conditions, parse_options
from nbgrader.apps.api import NbGraderAPI
from nbgrader.utils import notebook_hash

from autograde.gradebook.scores import nbgrader_settings

SETTINGS = (
    "\nc.Exchange.root = {root!r}\nc.ExchangeCollect.check_owner = False\nc.GradeOnSubmission.seconds = {seconds}\n"
)
GLANCE = 0.05  # seconds between two looks at what is released
LONGEST = 3600.0  # seconds after the last submission


def main() -> None:
    options = parse_options(__doc__, submissions=20, minutes=10.0, jobs=2, seconds=5.0)
    data = "fashion-mnist-small (official images, shipped subset)"
    facts = {"submissions": options.submissions, "minutes": options.minutes, "workers": options.jobs}
    print(conditions(**facts, look_each=f"{options.seconds:g} s", data=data, runs="one"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_course(root, nbformat.read(SOURCE, as_version=4))
        exchange = root / "exchange"
        with open(root / "nbgrader_config.py", "a") as config:
            config.write(SETTINGS.format(root=str(exchange), seconds=options.seconds))
        exchange.mkdir(mode=0o777)
        exchange.chmod(0o777)
        run([BIN / "nbgrader", "generate_assignment", LAB], root)
        run([BIN / "nbgrader", "release_assignment", LAB], root)
        log = root / "serve.log"
        command = [sys.executable, "-m", "autograde", "serve", LAB, "--jobs", str(options.jobs)]
        with open(log, "w") as output:
            service = subprocess.Popen(command, cwd=root, env=environment(), stdout=output, stderr=output)
        try:
            waits = waited(root, service, options.submissions, 60 * options.minutes)
        finally:
            service.terminate()
            service.wait()
        if len(waits) < options.submissions:
            print(log.read_text()[-3000:])
    shares = statistics.quantiles(waits, n=20) if len(waits) > 1 else waits * 19
    print(
        f"from submit to feedback, of {len(waits)}: median {statistics.median(waits):.1f} s, 95 % within "
        f"{shares[18]:.1f} s (least {min(waits):.1f}, greatest {max(waits):.1f})"
    )


def waited(root: Path, service: subprocess.Popen, count: int, span: float) -> list[float]:
    """Hand in, and look for the feedback; the seconds between, in the order of the feedback."""
    base = root / "exchange" / "distributed-training"
    source = nbformat.read(SOURCE, as_version=4)
    begun, waits, expected = time.monotonic(), [], {}
    handed_in = 0
    while len(waits) < count and service.poll() is None and time.monotonic() - begun < span + LONGEST:
        if handed_in < count and time.monotonic() - begun >= span * handed_in / count:
            secret = submit(root, f"student{handed_in:03d}", submission(source, kind_of(handed_in)))
            expected[base / "feedback" / f"{notebook_hash(secret=secret, notebook_id=LAB)}.html"] = time.monotonic()
            handed_in += 1
        for page in [page for page in expected if page.exists()]:
            waits.append(time.monotonic() - expected.pop(page))
        time.sleep(GLANCE)
    return waits


def submit(root: Path, student: str, notebook: nbformat.NotebookNode) -> str:
    """Hand in as `nbgrader submit` does; the submission's secret."""
    home = root / "homes" / student
    (home / LAB).mkdir(parents=True)
    nbformat.write(notebook, home / LAB / f"{LAB}.ipynb")
    shutil.copytree(REPOSITORY / "tests" / "autograde" / "honest_run", home / LAB / "run")
    config = nbgrader_settings(root / "course")
    config.CourseDirectory.student_id, config.CourseDirectory.assignment_id = student, LAB
    config.Exchange.assignment_dir, config.Exchange.cache = str(home), str(home / "cache")
    api = NbGraderAPI(config=config)
    api.exchange.Submit(coursedir=api.coursedir, authenticator=api.authenticator, parent=api).start()
    (secret,) = (home / "cache").glob("*/*/submission_secret.txt")
    return secret.read_text()


if __name__ == "__main__":
    main()
