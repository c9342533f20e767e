"""`from assessment_print import assessment_print`, as document 001 spells it."""

from course_lib.records import assessment_print

__all__ = ["assessment_print"]
