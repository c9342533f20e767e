"""How text from a submission is shown; the visible run check shows a student's files in the same way."""

from course_lib.runs.run_evidence.quoting import printable, quote

__all__ = ["printable", "quote"]
