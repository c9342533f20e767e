"""The LMS's students (Names and Role Provisioning Services 2.0), and nbgrader's gradebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nbgrader.api import Gradebook, Student

from autograde.gradebook.lms.platform import Platform
from autograde.submission.student_id import is_student_id
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["Member", "read_learners", "update_students", "user_ids"]

_CONTAINER = "application/vnd.ims.lti-nrps.v2.membershipcontainer+json"
_ROLES = "http://purl.imsglobal.org/vocab/lis/v2/membership"
_LONGEST = 128  # characters of nbgrader's columns


@dataclass(frozen=True)
class Member:
    """An active learner. `student` is the id here, empty where the LMS gives none that can be one."""

    user_id: str
    student: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""

    def __str__(self) -> str:
        return f"{quote(self.student)} (LMS user {quote(self.user_id)})"


def read_learners(platform: Platform) -> list[Member]:
    """The course's students in the LMS: those who are active, learners, and not also instructors."""
    settings = platform.settings
    members = platform.persist(platform.pages, settings.members_url, _CONTAINER, "members")
    return [_member(each, settings.student_field) for each in members if _learns(each)]


def user_ids(students: Iterable[tuple[str, str | None]], learners: Iterable[Member]) -> dict[str, str]:
    """Student id → the LMS's user id: by the gradebook, else by the one learner who has the student's id.

    Two students with one user id have none: one's score would go to the other.
    """
    students, learners = list(students), list(learners)
    counts = Counter(member.student for member in learners)
    found = {member.student: member.user_id for member in learners if counts[member.student] == 1}
    ids = {student: known or found.get(student) for student, known in students}
    shared = Counter(ids.values())
    return {student: user for student, user in ids.items() if user and shared[user] == 1}


def update_students(gradebook: Gradebook, learners: Iterable[Member], dry_run: bool = False) -> list[str]:
    """Add learners to the gradebook, and update names, e-mail address and LMS user id; all of it or nothing.

    A learner is who has the user id already, else who has the student's id. What the LMS leaves empty stays. Nobody is
    removed. Returns a line for each change and each doubt.
    """
    learners = list(learners)
    students = {each.id: each for each in gradebook.students}
    by_user = {each.lms_user_id: each for each in students.values() if each.lms_user_id}
    counts = Counter(member.student for member in learners)
    users = Counter(member.user_id for member in learners)
    lines, here = [], set()
    for member in learners:
        student = by_user.get(member.user_id)
        if not member.student and student is None:
            lines.append(f"left out: LMS user {quote(member.user_id)} has no id that can be a student's here")
        elif (counts[member.student] > 1 and member.student) or users[member.user_id] > 1:
            lines.append(f"left out: {member} is in the LMS more than once")
            here.add(member.student)
        elif student is not None and member.student not in ("", student.id):
            lines.append(f"left as it is: {member} is {quote(student.id)} in the gradebook")
            here.add(student.id)
        elif student is None and (other := students.get(member.student)) is not None and other.lms_user_id:
            lines.append(f"left as it is: {member} is LMS user {quote(other.lms_user_id)} in the gradebook")
            here.add(member.student)
        else:
            student = student or students.get(member.student)
            new = {
                name: value
                for name, value in (
                    ("first_name", member.first_name), ("last_name", member.last_name), ("email", member.email),
                    ("lms_user_id", member.user_id),
                )
                if value and value != getattr(student, name, None)
            }  # fmt: skip
            if student is None:
                student = Student(id=member.student)
                gradebook.db.add(student)
                lines.append(f"added: {member}")
            elif new:
                lines.append(f"changed: {member}: {', '.join(new)}")
            for name, value in new.items():
                setattr(student, name, value)
            here.add(student.id)
    lines += [f"not in the LMS (any more), left as it is: {quote(name)}" for name in sorted(students.keys() - here)]
    gradebook.db.rollback() if dry_run else gradebook.db.commit()
    return lines


def _learns(member: dict[str, Any]) -> bool:
    roles = member.get("roles")
    names = {role for role in roles if isinstance(role, str)} if isinstance(roles, list) else set()
    # In this course: "Learner", "…membership#Learner", "…membership/Instructor#TeachingAssistant". Somebody who teaches
    # elsewhere in the institution may learn here.
    ours = {name.removeprefix(_ROLES).lstrip("#/") for name in names if name.startswith(_ROLES) or ":" not in name}
    teaches = any(name.startswith(("Instructor", "Administrator", "ContentDeveloper", "Mentor")) for name in ours)
    test = any(name.endswith("person#TestUser") for name in names)
    active = member.get("status", "Active") == "Active" and bool(_user_id(member))
    return active and any(name.startswith("Learner") for name in ours) and not teaches and not test


def _member(member: dict[str, Any], field: str) -> Member:
    student = _text(member.get(field))
    names = [_text(member.get(name)) for name in ("given_name", "family_name", "email")]
    return Member(_user_id(member), student if is_student_id(student) else "", *names)


def _user_id(member: dict[str, Any]) -> str:
    """AGS takes it back as it is, so nothing of it is changed; it has at most 255 ASCII characters."""
    user = member.get("user_id")
    return user if isinstance(user, str) and len(user) < 256 and user.isascii() and user.isprintable() else ""


def _text(value: Any) -> str:
    """A member's text as one printable line; many LMSs let students choose their names."""
    if not isinstance(value, str):
        return ""
    return " ".join("".join(c if c.isprintable() else " " for c in value).split())[:_LONGEST]
