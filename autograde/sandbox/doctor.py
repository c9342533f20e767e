"""Whether students' code can be run here: what `lab doctor` says of it where the grader is installed."""

from collections.abc import Iterator
from pathlib import Path

from autograde.sandbox.bubblewrap import missing_sandbox
from course_lib.system.doctor.finding import Finding, absent, fine

__all__ = ["sandbox"]

SYSTEM = Path("/proc/sys")
# What forbids user namespaces to all but root: the setting, its value that does, how it is said, and what root runs.
RESTRICTIONS = (
    (
        "kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor keeps bubblewrap from making user namespaces",
        "install -m 644 deploy/bwrap.apparmor /etc/apparmor.d/bwrap && apparmor_parser -r /etc/apparmor.d/bwrap",
    ),
    (
        "kernel/unprivileged_userns_clone", "0", "this kernel's settings forbid user namespaces",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    ("user/max_user_namespaces", "0", "this kernel's settings forbid user namespaces", "sysctl user.max_user_namespaces=15000"),
)  # fmt: skip


def sandbox() -> Iterator[Finding]:
    """The namespaces of a sandbox, made once. No lab stops without them."""
    why = missing_sandbox()
    if why is None:
        yield fine("sandbox", "bubblewrap makes namespaces")
        return
    found, remedy = why.partition(";")[0], ""
    for name, value, said, command in RESTRICTIONS if "not on PATH" not in why else ():
        if _setting(name) == value:
            found, remedy = f"{said} ({name.replace('/', '.')} = {value})", f"as root: {command}; "
            break
    yield absent("sandbox", found, f"{remedy}lab grade refuses here: docs/administrator.md, Grading machines")


def _setting(name: str) -> str:
    try:
        return (SYSTEM / name).read_text().strip()
    except OSError:
        return ""
