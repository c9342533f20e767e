"""Hostile submissions that come through the exchange to the service: they earn what they earn in a batch."""

import functools
import os
from dataclasses import replace
from pathlib import Path

import pytest
import test_hostile_corpus as corpus
from exhibits import EXHIBITS, LAB, World, lay_out

from autograde.batch.grade_lab import grade_lab
from autograde.batch.grade_on_submission import GradingService
from autograde.rubric.verdict import load_verdict, verdict_path

pytestmark = [pytest.mark.slow, corpus.pytestmark]
ALL = list(EXHIBITS.values())
# nbgrader's limit on the size of a file keeps theirs out of the course
TOO_LARGE = ("weights-of-a-gigabyte", "weights-of-300-megabytes", "program-files-are-giants")


def to_exchange(course: Path, student: str) -> None:
    """Move what is in ``submitted/`` to where `nbgrader submit` would have put it."""
    folder, stamp = course / "submitted" / student / LAB, "2026-11-20 22:00:00.000000 UTC"
    if not folder.is_symlink():  # one hands in a link in its place
        (folder / "timestamp.txt").write_text(stamp)
        folder.chmod(0o777)
    folder.rename(course.parent / "exchange/distributed-training/inbound" / f"{student}+{LAB}+{stamp}+AAAA")


@pytest.mark.parametrize("exhibits", [ALL[::24], ALL], ids=["some", "every one"])
def test_the_service_gives_the_verdicts_of_a_batch(tmp_path, monkeypatch, exhibits):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # its workers take turns with no other grader of this machine
    course = lay_out(tmp_path, "canary-grading-secret", **corpus.LIMITS)
    (tmp_path / "exchange/distributed-training/inbound").mkdir(parents=True)
    (tmp_path / "exchange/distributed-training/feedback").mkdir()
    with open(tmp_path / "nbgrader_config.py", "a") as config:
        config.write(f"\nc.Exchange.root = {str(tmp_path / 'exchange')!r}\nc.ExchangeCollect.check_owner = False\n")
    world = World(tmp_path / "outside", course, 9, 9, socket_name="none", mark="hostile-on-submission")
    world.folder.mkdir(mode=0o777)
    (world.folder / "secret.txt").write_text("canary-outside\n")
    corpus.hand_in(world, exhibits)
    students = [*corpus.HONEST_STUDENTS, *(each.student for each in exhibits)]
    for student in students:
        to_exchange(course, student)
    grade = functools.partial(grade_lab, rubrics=tmp_path / "rubrics")
    service = GradingService(course, [LAB], grade, jobs=2, log=print)
    try:
        while service.step():
            pass
        refused = {row.student: row.reason for row in service.queue.of("refused")}
        done = {row.student for row in service.queue.of("done")}
    finally:
        service.close()
    print(f"{len(done)} graded, refused: {refused}")
    assert done | set(refused) == set(students) and not set(refused) & set(corpus.HONEST_STUDENTS)
    wrong = {}
    for exhibit in exhibits:
        if exhibit.student in TOO_LARGE:
            exhibit = replace(exhibit, flags=frozenset({"missing"}), reason="is missing")
        if exhibit.student in done:
            try:
                corpus.assert_as_expected(exhibit, load_verdict(verdict_path(course, exhibit.student, LAB)))
            except AssertionError as error:
                wrong[exhibit.student] = str(error)
    assert not wrong, wrong
    for student in corpus.HONEST_STUDENTS:
        assert corpus.points(load_verdict(verdict_path(course, student, LAB))) == {
            corpus.CELLS[name]: most for name, most in corpus.HONEST.items()
        }
    assert not [path for path in tmp_path.glob("outside/*") if path.name != "secret.txt" and os.access(path, os.R_OK)]
