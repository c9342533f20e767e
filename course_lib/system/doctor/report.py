"""Runs the checks, and reports what they found."""

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import entry_points

from course_lib.system.doctor import data, gpus, machine, network, programs, software
from course_lib.system.doctor.finding import Finding, problem

__all__ = ["CHECKS", "as_json", "as_text", "doctor", "examine"]

Check = Callable[[], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    software.python,
    software.packages,
    software.extras,
    software.torchvision,
    gpus.driver,
    gpus.idle,
    gpus.nccl,
    machine.threads,
    machine.speed,
    machine.memory,
    machine.shared_memory,
    machine.disk,
    machine.open_files,
    data.staged,
    network.loopback,
    network.rendezvous,
    network.interfaces,
    programs.mpi,
    programs.slurm,
    programs.exchange,
)
"""In the order of the report: what others depend on comes first."""

_SIGNS = {"fine": "✓", "absent": "–", "problem": "✗"}
WIDTH = 118
PROGRAMS = (programs.mpi, programs.slurm)


def examine(checks: Iterable[Check] | None = None) -> list[Finding]:
    """Run the checks. One that fails itself is a problem of its own and does not stop the others.

    A package adds a check by an entry point in the group ``lab.doctor``, as the grader does.
    """
    if checks is None:
        checks = (*CHECKS, *_added())
    checks = tuple(checks)
    with ThreadPoolExecutor() as pool:  # other programs answer while this one imports
        asked = {check: pool.submit(_findings, check) for check in checks if check in PROGRAMS}
        made = [asked[check].result() if check in asked else _findings(check) for check in checks]
    return [finding for findings in made for finding in findings]


def _added() -> Iterator[Check]:
    for point in entry_points(group="lab.doctor"):
        with suppress(ModuleNotFoundError):  # the grader's sandbox has the entry point, and hides the grader
            yield point.load()


def _findings(check: Check) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        return [problem(check.__name__, f"could not be examined ({text})", "report this line to your instructor")]


def as_text(findings: Iterable[Finding]) -> str:
    """A line for each finding, and below a problem what to do."""
    findings, lines = list(findings), []
    for finding in findings:
        lines.append(f"{_SIGNS[finding.state]} {finding.check:<12}{finding.found}")
        if finding.remedy:
            lines += textwrap.wrap(
                finding.remedy,
                WIDTH,
                initial_indent=" " * 14 + "→ ",
                subsequent_indent=" " * 16,
                break_on_hyphens=False,
            )
    many = sum(finding.state == "problem" for finding in findings)
    lines.append("ready for the labs" if not many else f"{many} problem{'s' if many > 1 else ''}")
    return "\n".join(lines)


def as_json(findings: Iterable[Finding]) -> str:
    """``{"ready": …, "findings": [{"check", "state", "found", "remedy"}…]}``."""
    items = [vars(finding) for finding in findings]
    return json.dumps({"ready": all(item["state"] != "problem" for item in items), "findings": items}, indent=1)


def doctor() -> bool:
    """Print the report, in a notebook as in a shell. True where no problem was found."""
    findings = examine()
    print(as_text(findings))
    return all(finding.state != "problem" for finding in findings)
