"""Judge a run folder: the grader and the visible run check read the same files by the same criteria.

`LAB.toml` beside this file holds a lab's criteria and their points. A rubric that lists none of its own takes them from
there (docs/grading.md).
"""
