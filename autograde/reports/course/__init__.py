"""The page of the whole course: students × labs, those in trouble first; no scripts, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from nbgrader.api import MissingEntry

from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook
from autograde.reports.export.scores import LabScores, StudentScore, read_scores
from autograde.reports.report.pages import environment
from autograde.rubric.schema import RUBRICS, rubric_names
from course_lib.system.atomic import write_atomically

__all__ = ["CourseResults", "Row", "course_page", "read_course", "write_course_page"]


@dataclass(frozen=True)
class Row:
    """One student: their score in each lab, in the labs' order, and which of these count.

    A lab counts once it is handed in, or is due: its due date, with the student's extension, has passed; where it has
    none, half of the class has handed it in.
    """

    scores: tuple[StudentScore, ...]
    maxima: tuple[float, ...]
    counts: tuple[bool, ...]

    @property
    def student(self) -> str:
        """The student's id."""
        return self.scores[0].student

    @property
    def missing(self) -> int:
        """Labs that count and are not handed in."""
        return sum(counts and not score.submitted for score, counts in zip(self.scores, self.counts, strict=True))

    @property
    def points(self) -> float:
        """Points in the labs that count."""
        return sum(score.score for score, counts in zip(self.scores, self.counts, strict=True) if counts)

    @property
    def possible(self) -> float:
        """What the labs that count are worth, without the answers that nobody has marked yet."""
        each = zip(self.scores, self.maxima, self.counts, strict=True)
        return sum(most - score.unread_points for score, most, counts in each if counts)

    @property
    def part(self) -> float:
        """Part of the points that the student has; 1 where nothing counts yet."""
        return self.points / self.possible if self.possible else 1.0


@dataclass(frozen=True)
class CourseResults:
    """The labs of a course that the gradebook knows, and everybody's scores in them, read at one time (UTC)."""

    labs: tuple[LabScores, ...]
    now: datetime

    @cached_property
    def rows(self) -> list[Row]:
        """Everybody in the gradebook, the smallest part of the points first."""
        rows = []
        by_student = [{score.student: score for score in lab.students} for lab in self.labs]
        usual = [2 * sum(score.submitted for score in lab.students) >= len(lab.students) for lab in self.labs]
        maxima = tuple(lab.max_score for lab in self.labs)
        for student in by_student[0] if by_student else ():
            scores = tuple(scores[student] for scores in by_student)
            counts = tuple(
                score.submitted or self._due(score, lab, most)
                for score, lab, most in zip(scores, self.labs, usual, strict=True)
            )
            rows.append(Row(scores, maxima, counts))
        return sorted(rows, key=lambda row: (row.part, -row.missing, row.student))

    def _due(self, score: StudentScore, lab: LabScores, usual: bool) -> bool:
        due = score.extension.due if score.extension else lab.duedate
        return usual if due is None else due < self.now

    @cached_property
    def unread(self) -> int:
        """Answers that nobody has marked yet."""
        return sum(score.unread for lab in self.labs for score in lab.students)

    @cached_property
    def again(self) -> int:
        """Marks that a person must look at again."""
        return sum(score.again for lab in self.labs for score in lab.students)


def read_course(course: Path, now: datetime | None = None) -> CourseResults:
    """Read the scores of every lab that has a rubric and that the gradebook knows.

    Raises `CourseError`: there is no gradebook, it cannot be read, or it knows no such lab.
    """
    with open_gradebook(nbgrader_settings(course), existing=True) as gradebook:
        known = [lab for lab in rubric_names(RUBRICS) if _knows(gradebook, lab)]
    if not known:
        raise CourseError(f"the gradebook of {course} knows no lab; grade one first with `lab grade`")
    now = now or datetime.now(UTC).replace(tzinfo=None)
    return CourseResults(tuple(read_scores(course, lab) for lab in known), now)


def _knows(gradebook, lab: str) -> bool:
    try:
        gradebook.find_assignment(lab)
    except MissingEntry:
        return False
    return True


def write_course_page(course: Path, out: Path, now: datetime | None = None) -> Path:
    """Write the page; it links to those pages of ``lab report`` that are beside it.

    Raises `CourseError` as `read_course`, and where the page cannot be written.
    """
    results = read_course(course, now)
    html = course_page(results, _pages(out, results.labs))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, html)
    except OSError as error:
        raise CourseError(f"{out} cannot be written ({error.strerror}); choose another place with -o FILE") from None
    return out


def course_page(results: CourseResults, pages: Set[str] = frozenset()) -> str:
    """The page as HTML; `pages` are the addresses of the reports that it may link to."""
    template = environment(Path(__file__).parent).get_template("course.html")
    return template.render(course=results, written=results.now.strftime("%d %B %Y, %H:%M UTC"), pages=pages)


def _pages(out: Path, labs: Sequence[LabScores]) -> set[str]:
    """Addresses, relative to the page, of the reports that are there."""
    found = {f"{lab.lab}.html" for lab in labs if (out.parent / f"{lab.lab}.html").is_file()}
    for lab in labs:
        found |= {f"{lab.lab}/{path.name}" for path in (out.parent / lab.lab).glob("*.html")}
    return found
