"""Lab 14: other right answers, and what each known mistake loses. Answers are sources."""

from answer_sources import Notebook

OURS = Notebook("14_model_parallel")
edited, instead = OURS.edited, OURS.instead

# Of the mistakes in `course_lib.exercises.answers.lab14`: parts that are lost → their names.
LOSES = {
    "orders": {
        "gpipe": "newest first, backwards first",
        "1f1b few": "GPipe again, one after another, one too many, first for last, stages for all",
        "few": "more than there are",
    },
    "plan": {
        "memory choice none": "weights only, not by tensor, not by stage, one matrix, all kept, one kept, all divided, whole batch",
        "time choice none": "no bubble, p slots too many, two all-reduces, every layer, one way, no gradients, states too",
        "choice none": "memory forgotten, least memory",
        "none": "something at least",
    },
}
RIGHT = {}
WRONG = {}
SAYS = {}
