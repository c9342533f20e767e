"""Lab 02's answers. What ranks do together is judged without a reference, and its mistakes are named by the judges."""

from course_lib.exercises.description import Answers

__all__ = ["ANSWERS"]

ANSWERS = {
    name: Answers()
    for name in (
        "set-up", "prepare-once", "loaders", "wrap", "epoch", "accumulate", "buffers", "reductions", "stop", "program",
    )
}  # fmt: skip
