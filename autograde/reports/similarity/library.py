"""Answers that are much like the library's own solution: a reason to look and talk, never a grade.

The library's text is public, and a function of it that is pasted into an answer runs. Fragments are those of
`autograde.reports.similarity.comparison`: tokens in a row, of which names that somebody chose are any name. An answer's own fragments are
those that neither the starter code nor the reference solution has, and not more than a fifth of the class where that is
more than five students. An answer is flagged where at least `FLOOR` of its own fragments, and `LEAST` of them, are in
one withheld module.

Tried on the answers in this repository's tests (November 2026): of 74 right and wrong ones, written in many styles, one
is flagged, a line of sends that is the library's slower way too; the reference solutions have nothing of their own. Of
293 functions of withheld modules, nine common names in them changed, 273 are flagged; those that are not are short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autograde.reports.similarity.comparison import COMMON_SHARE, COMMON_STUDENTS, AnswerTokens, StarterTokens

__all__ = ["FLOOR", "LEAST", "LibraryMatch", "alike_library"]

FLOOR = 0.6
LEAST = 18


@dataclass(frozen=True)
class LibraryMatch:
    """One answer that is alike a module: `score` is the share of its own fragments that the module has."""

    student: str
    grade_id: str
    module: str
    score: float


def alike_library(
    answers: Mapping[str, Mapping[str, str]],
    starter: Mapping[str, str],
    reference: Mapping[str, str],
    library: Mapping[str, str],
) -> list[LibraryMatch]:
    """Find answers that are much like a module of the library, for each the module that is most alike.

    Parameters
    ----------
    answers : mapping
        Student → grade_id → source.
    starter, reference : mapping
        grade_id → the source as handed out, and the course's own solution.
    library : mapping
        Path → source of the modules that hold solutions.

    Returns
    -------
    list of LibraryMatch
        By students' ids and grade_ids.
    """
    found = []
    for grade_id in sorted(starter):
        start = StarterTokens.read(starter[grade_id])
        given = start.fragments | set(AnswerTokens(reference.get(grade_id, ""), start).fragments)
        modules = {path: set(AnswerTokens(source, start).fragments) for path, source in sorted(library.items())}
        own = {
            student: set(AnswerTokens(row.get(grade_id, ""), start).fragments) - given
            for student, row in answers.items()
        }
        writers = Counter(fragment for fragments in own.values() for fragment in fragments)
        limit = max(COMMON_STUDENTS, COMMON_SHARE * sum(map(bool, own.values())))
        for student, fragments in own.items():
            fragments = {fragment for fragment in fragments if writers[fragment] <= limit}
            shared = {path: len(fragments & theirs) for path, theirs in modules.items()}
            path = max(shared, key=shared.__getitem__, default="")
            if shared and shared[path] >= LEAST and shared[path] >= FLOOR * len(fragments):
                found.append(LibraryMatch(student, grade_id, path, round(shared[path] / len(fragments), 2)))
    return sorted(found, key=lambda match: (match.student, match.grade_id))
