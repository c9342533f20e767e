"""Whether students' code can be run here: what `lab doctor` says of it where the grader is installed."""

from collections.abc import Iterator

from autograde.sandbox.bubblewrap import missing_sandbox
from course_lib.system.doctor.finding import Finding, absent, fine

__all__ = ["sandbox"]


def sandbox() -> Iterator[Finding]:
    """The namespaces of a sandbox, made once. No lab stops without them."""
    why = missing_sandbox()
    if why is None:
        yield fine("sandbox", "bubblewrap makes namespaces")
    else:
        yield absent(
            "sandbox", why.partition(";")[0], "lab grade refuses here: docs/administrator.md, Grading machines"
        )
