"""Judge a run folder: the grader and the visible run check read the same files by the same criteria.

`labs/LAB.toml` holds a lab's criteria and their points. A rubric without its own criteria takes them from
there (docs/grading.md).
"""
