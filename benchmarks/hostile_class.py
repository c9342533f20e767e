"""A class of which half is hostile, beside its honest half alone: the same pages for the honest, and at most twice the time.

python benchmarks/hostile_class.py [--honest 30] [--hostile 30] [--jobs 2] [--seconds S] [--keep FOLDER]

Two courses of lab 01 with the same secret: one of honest students, one of the same students and as many exhibits of
``tests/hostile/``. In each, ``lab grade``, ``nbgrader generate_feedback`` and ``lab report`` run as an instructor types
them. Each honest student's feedback page and page of the report must be the same bytes in both, but for what `STRIPPED`
lists. The wall time of all three commands together is compared. Ends with 1 where a page differs, a command fails, or the
time is more than twice as long.
"""

import difflib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from harness import conditions, parse_options

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests" / "hostile"))
for theme in sorted((REPOSITORY / "tests" / "hostile").glob("*.py")):
    if not theme.stem.startswith("test_"):
        __import__(theme.stem)  # each registers its exhibits

from exhibits import EXHIBITS, LAB, Exhibit, Submission, World, lay_out  # noqa: E402

BIN = Path(sys.executable).parent
COMMANDS = (
    ["lab", "grade", "1", "--rubrics", "rubrics"],
    ["nbgrader", "generate_feedback", LAB],
    ["lab", "report", "1"],
)
# What two gradings of one class alone differ in, and what compares a student with the class.
STRIPPED = {
    "when the page was written": r"Written \d+ \w+ \d{4}, \d\d:\d\d UTC|Written [^<]* for the instructor",
    "when and how long it was graded": r"<dt>Graded</dt><dd>[^<]*</dd>",
    "digest of the grader": r"<dt>Grader</dt><dd><code>[0-9a-f]*</code></dd>",
    "medians of the class": r'<dt>Class median</dt><dd>[^<]*</dd>|<td class="n">[^<]*</td></tr>',
    "the class's median curve": r'<polyline class="behind"[^>]*/>|<div class="xs".*?</div>|<polyline class="own"[^>]*/>',
    "the neighbours in the list": r'<a href="[^"]*" rel="(prev|next)">[^<]*</a>',
    "flags of similar answers, which depend on the class": r'<li><span class="kind">copy</span>.*?</li>',
}


def main() -> int:
    options = parse_options(
        __doc__, honest=30, hostile=30, jobs=2, seconds=(int, "limit of an exercise, in place of the rubric's own"),
        keep=(Path, "leave both courses here, to look at"),
    )  # fmt: skip
    exhibits = chosen(options.hostile)
    facts = {"honest": options.honest, "hostile": len(exhibits), "jobs": options.jobs}
    print(conditions(**facts, data="shipped subset", runs="one"))
    print("exhibits:", ", ".join(exhibit.student for exhibit in exhibits))
    with tempfile.TemporaryDirectory() as folder:
        root = options.keep or Path(folder)
        students = [f"honest{number:02d}" for number in range(options.honest)]
        seconds, pages, failed = {}, {}, []
        for name, hostile in (("alone", []), ("mixed", exhibits)):
            course = hand_in(root / name, students, hostile, options.seconds)
            seconds[name] = run_all(course, name, options.jobs, failed)
            pages[name] = read_pages(course, students)
    differ = compare(pages["alone"], pages["mixed"])
    ratio = seconds["mixed"] / seconds["alone"]
    print(f"pages of honest students: {len(pages['alone'])}, different: {len(differ)}; left out of the comparison:")
    print("".join(f"  {what}\n" for what in STRIPPED), end="")
    print("\n".join(differ))
    print(f"wall time, all commands: {seconds['alone']:.1f} s alone, {seconds['mixed']:.1f} s mixed: {ratio:.2f} times")
    return int(bool(differ or failed) or ratio > 2)


def chosen(count: int) -> list[Exhibit]:
    """So many exhibits that are not slow, spread evenly over the corpus."""
    quick = [exhibit for exhibit in EXHIBITS.values() if not exhibit.slow]
    count = min(count, len(quick))
    return [quick[index * len(quick) // count] for index in range(count)]


@mock.patch("nbformat.v4.nbbase.validate", lambda *_: None)  # one exhibit is made of 50,000 cells
def hand_in(root: Path, students: list[str], hostile: list[Exhibit], seconds: int | None) -> Path:
    """A course with everybody's submission."""
    course = lay_out(root, "the same in both", **({} if seconds is None else {"seconds": seconds}))
    for student in students:
        submission = Submission(course / "submitted" / student / LAB)
        submission.cell("q-knee").source = f"An answer of {student}'s own."
        for folder in (submission.run(), submission.program()):
            submission.mark_weights(folder, f"{student} {folder.name}")
        submission.save()
    outside = root / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "secret.txt").write_text("outside\n")
    # Nothing listens on these ports: what exhibits may reach is what the tests look at.
    with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        world = World(outside, course, tcp.getsockname()[1], udp.getsockname()[1], "hostile-class", "hostile-class")
        for exhibit in hostile:
            submission = Submission(course / "submitted" / exhibit.student / LAB)
            exhibit.build(submission, world)
            submission.save()
    return course


def run_all(course: Path, name: str, jobs: int, failed: list[str]) -> float:
    """Run the three commands; their wall time together."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    total = 0.0
    for command in COMMANDS:
        whole = [*command, "--jobs", str(jobs)] if "grade" in command else command
        started = time.monotonic()
        done = subprocess.run(whole, cwd=course.parent, env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - started
        total += seconds
        print(f"{name}: {' '.join(command[:2])}: {seconds:.1f} s, exit code {done.returncode}", flush=True)
        if done.returncode:
            failed.append(" ".join(command))
            print("\n".join((done.stdout + done.stderr).splitlines()[-5:]))
    return total


def read_pages(course: Path, students: list[str]) -> dict[str, str]:
    """Feedback and report of each honest student, without what `STRIPPED` lists; a page that is missing is empty."""
    pages = {}
    for student in students:
        for kind, path in (
            ("feedback", course / "feedback" / student / LAB / f"{LAB}.html"),
            ("report", course / "reports" / LAB / f"{student}.html"),
        ):
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            for pattern in STRIPPED.values() if kind == "report" else ():
                text = re.sub(pattern, "", text, flags=re.DOTALL)
            pages[f"{kind} of {student}"] = text
    return pages


def compare(alone: dict[str, str], mixed: dict[str, str]) -> list[str]:
    """A line for each page that differs, with the first place."""
    lines = []
    for name, page in alone.items():
        if not page or not mixed[name]:
            lines.append(f"{name}: missing {'alone' if not page else 'beside the others'}")
        elif page != mixed[name]:
            changes = difflib.unified_diff(page.splitlines(), mixed[name].splitlines(), lineterm="", n=0)
            lines.append(f"{name}: {' | '.join(line[:150] for line in list(changes)[3:5])}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
