"""Is this machine ready for the labs? Each problem with its remedy: ``lab doctor``, and `doctor` in a notebook."""

from course_lib.system.doctor.finding import Finding
from course_lib.system.doctor.report import as_json, as_text, doctor, examine

__all__ = ["Finding", "as_json", "as_text", "doctor", "examine"]
