"""The kinds of criterion that a rubric may use; they are the course library's, for the visible run check uses them too."""

from course_lib.runs.run_evidence.criteria import KINDS, NEEDS_MODEL, Finding, Kind

__all__ = ["KINDS", "NEEDS_MODEL", "Finding", "Kind"]
