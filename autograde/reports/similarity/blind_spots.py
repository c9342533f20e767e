"""What a comparison of submissions did not see, in sentences for the reader of its page."""

from __future__ import annotations

from autograde.reports.similarity.comparison import SMALL_CLASS, Similarity

__all__ = ["EVERYWHERE", "blind_spots"]

EVERYWHERE = (
    "Only the submissions of this lab in this course folder are compared. A copy from an earlier year, from the web or from "
    "a language model is not seen, unless two students hand it in."
)


def blind_spots(similarity: Similarity, handed_in: int, questions: int, in_words: bool = False) -> list[str]:
    """A sentence for each thing that the comparison could not see; empty where it could see what it was made for.

    Parameters
    ----------
    handed_in : int
        Submissions with a verdict; those whose notebook could not be read are not in `similarity`.
    questions : int
        How many answers of this kind the lab asks for.
    """
    what = "in words" if in_words else "in code"
    if not questions:
        return [f"The lab asks for no answers {what}, so none are compared."]
    found = []
    if unread := handed_in - similarity.students:
        found.append(f"{unread} of {handed_in} notebooks could not be read; their answers are not compared.")
    if similarity.compared < SMALL_CLASS:
        found.append(
            f"Only {similarity.compared} submissions have something of their own: with fewer than {SMALL_CLASS} it is not "
            "known what is usual in the class, so a pair that had no other choice may be flagged."
        )
    if similarity.short:
        found.append(
            f"Too short or too common in this class: {', '.join(similarity.short)}. Most students wrote too little of their "
            "own there, so a copy of one of these answers alone is not flagged."
        )
    if similarity.too_little:
        found.append(
            f"{similarity.too_little} of {similarity.compared} submissions have so little of their own in all answers "
            "together that no copy of them can be flagged."
        )
    if similarity.without_reference:
        found.append(
            f"The source notebook has no solution to {', '.join(similarity.without_reference)}: what every right answer has "
            "counts as the students' own, until a fifth of the class wrote it."
        )
    if similarity.cut:
        found.append(f"Of {similarity.cut} very long answers only the beginning is compared.")
    if in_words:
        found.append("A text that was put in other words, or translated, is not seen.")
    return found
