"""An LMS's gradebook, by Assignment and Grade Services 2.0: a line item for a lab, and each student's score.

A record beside the exports says what the LMS has taken. It is replaced after each score, so a run that is killed or cut
off continues where it ended. Between the LMS's answer and the record one score may be sent a second time; where the LMS
shows the same score and comment already, it is not. What the LMS has lost since, and shows no more, is sent again.

Only scores that wait for nobody are sent. AGS has a state for the others (``PendingManual``), but Moodle answers it by
deleting the score that it has (``mod/lti/service/gradebookservices``, ``scores.php``).

Comments are plain text by AGS. Some platforms show them in a page without escaping, so there is no ``<`` in them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from autograde.gradebook.lms.platform import Platform, Refused
from autograde.gradebook.lms.settings import LmsError
from autograde.reports.export.reasons import plain_reasons
from autograde.reports.export.scores import Grades
from course_lib.runs.run_evidence.quoting import quote
from course_lib.system.atomic import write_atomically

__all__ = ["Outcome", "plain_comment", "send_scores"]

_KIND = "application/vnd.ims.lis.{}+json".format
_LINE_ITEMS, _LINE_ITEM, _RESULTS, _SCORE = map(
    _KIND, ("v2.lineitemcontainer", "v2.lineitem", "v2.resultcontainer", "v1.score")
)
_SAME = 0.005  # points; platforms keep two decimals
_COMMENT = 8000  # characters
_THIS_STUDENT = (400, 404, 409, 422)  # what a platform refuses of one student; the next one's score may be taken


@dataclass
class Outcome:
    """How many scores were sent (or would be), and lines for the instructor."""

    sent: int = 0
    unchanged: int = 0
    lines: list[str] = field(default_factory=list)


def send_scores(
    platform: Platform, grades: Grades, users: Mapping[str, str], title: str, course: Path, *,
    lower: bool = False, dry_run: bool = False, feedback: bool = False, say: Callable[[str], None] = print,
) -> Outcome:  # fmt: skip
    """Send final scores that the LMS does not have.

    Parameters
    ----------
    users : mapping
        Student id → the LMS's user id.
    title : str
        Of the line item, where none has the lab as its resource id.
    lower : bool
        Also send a score where the LMS has a higher one, or was sent one and shows none now.
    dry_run : bool
        Read, but write nothing; `say` gets a line for each score that would be sent.
    feedback : bool
        Send the saved verdicts' reasons as comments.

    Raises `LmsError`: the LMS is not reached or refuses everything, or the record cannot be used. What was sent before
    is in the record.
    """
    lab, maximum, outcome = grades.lab.lab, grades.lab.max_score, Outcome()
    if not maximum > 0:
        raise LmsError(f"{lab} is worth {maximum:g} points; the LMS needs a maximum above 0")
    record = _Record(course / "exports" / f"{lab}_lti.json")
    item = platform.persist(_line_item, platform, lab, title, None if dry_run else maximum)
    if item is None:
        say(f"would make the line item {title!a} of {maximum:g} points")
    sent = record.of(item)
    results = {} if item is None else _results(platform, item)
    for student in grades.lab.students:
        if (points := grades.scores.get(student.student)) is None:
            continue
        if (user := users.get(student.student)) is None:
            outcome.lines.append(f"no user of the LMS, not sent: {quote(student.student)}")
            continue
        score: dict[str, Any] = {"scoreGiven": round(points, 6), "scoreMaximum": maximum}
        reasons = plain_reasons(course, student, lab) if feedback else None
        if reasons:
            score["comment"] = plain_comment(reasons)
        elif feedback:
            outcome.lines.append(f"no readable verdict, so no comment: {quote(student.student)}")
        theirs, scale, comment = results.get(user, (None, maximum, ""))
        before, ours = sent.get(user), points / maximum * scale
        if theirs is not None and before == score:
            outcome.unchanged += 1
            continue
        known, how = -math.inf, ""
        if theirs is not None:
            known, how = theirs, f"higher in the LMS ({theirs:g} of {scale:g}), left so"
        elif before is not None:
            known, taken = _share(before) * scale, f"{before['scoreGiven']:g} of {before['scoreMaximum']:g}"
            how = f"{taken} was sent before and the LMS shows nothing now, not sent"
        if known > ours + _SAME and not lower:
            outcome.lines.append(f"{how}: {quote(student.student)}, {points:g} of {maximum:g} here; --lower sends it")
            continue
        if points > maximum + _SAME:
            outcome.lines.append(f"above the maximum of {maximum:g}: {quote(student.student)}, {points:g}")
        there = theirs is not None and abs(theirs - ours) <= _SAME and comment == score.get("comment", comment)
        if dry_run:
            if not there:
                say(f"would send {quote(student.student)}: {points:g} of {maximum:g}")
        elif not there and (refusal := _send(platform, item, user, score)):
            outcome.lines.append(f"refused by the LMS, not sent: {quote(student.student)}: {refusal}")
            continue
        outcome.sent, outcome.unchanged = outcome.sent + (not there), outcome.unchanged + there
        sent[user] = score
        if not dry_run:
            record.write(item, sent)
    return outcome


def plain_comment(lines: list[str]) -> str:
    """Text that is the same whether a platform takes it for plain text or for HTML."""
    text = "\n".join("".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines)
    text = text.replace("<", "\u2039").replace("&", "\uff06")
    return text if len(text) <= _COMMENT else text[:_COMMENT] + " …"


class _Record:
    """What the LMS has taken: line item → user id → score."""

    def __init__(self, path: Path):
        self.path = path
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            text = '{"line_item": null, "sent": {}}'
        except (OSError, UnicodeDecodeError) as error:
            raise LmsError(f"{path} cannot be read ({type(error).__name__}); see that it can be") from None
        try:
            content = json.loads(text)
            self._item, self._sent = content["line_item"], dict(content["sent"])
            for score in self._sent.values():
                _share(score)
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            raise LmsError(
                f"{path} is no record of sent scores; remove it, and equal scores are not sent again"
            ) from None

    def of(self, item: str | None) -> dict[str, Any]:
        # Another line item, another course or platform: nothing was sent there.
        return self._sent if item is not None and item == self._item else {}

    def write(self, item: str, sent: dict[str, Any]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, json.dumps({"line_item": item, "sent": sent}, indent=1))
        except OSError as error:
            raise LmsError(
                f"{self.path} cannot be written ({error.strerror}); the last score may be sent again"
            ) from None


def _line_item(platform: Platform, lab: str, title: str, maximum: float | None) -> str | None:
    """The address of the lab's line item; it is made where there is none, unless `maximum` is None.

    Looking and making are tried again together: an answer that was lost may have made it.
    """
    url = platform.settings.line_items_url
    parts = urlsplit(url)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("resource_id", lab)])
    items = platform.pages(parts._replace(query=query).geturl(), _LINE_ITEMS)
    found = [item.get("id") for item in items if item.get("resourceId") == lab]  # some platforms ignore the filter
    if len(found) > 1:
        raise LmsError(f"the LMS has {len(found)} line items with resourceId {lab}; remove all but one there")
    if not found:
        if maximum is None:
            return None
        body = {"label": title, "scoreMaximum": maximum, "resourceId": lab}
        made = platform.once("POST", url, _LINE_ITEM, body)
        try:
            found = [made.json().get("id")]
        except (ValueError, AttributeError):
            found = [None]
    if not isinstance(found[0], str):
        raise LmsError(f"{quote(url, 200)}: the LMS gives the line item of {lab} no id")
    return found[0]


def _results(platform: Platform, item: str) -> dict[str, tuple[float, float, str]]:
    """User id → points, of how many, comment."""
    found = {}
    for result in platform.persist(platform.pages, _below(item, "results"), _RESULTS):
        score, maximum = result.get("resultScore"), result.get("resultMaximum", 1)
        if _is_number(score) and _is_number(maximum) and maximum > 0:
            found[result.get("userId")] = (score, maximum, result.get("comment") or "")
    return found


def _send(platform: Platform, item: str, user: str, score: dict[str, Any]) -> str:
    """Post one score. Returns why the LMS refuses it, empty where it took it."""
    tries = 0

    def post() -> None:
        nonlocal tries
        tries += 1
        now = datetime.now(UTC).isoformat(timespec="milliseconds")  # platforms ignore what is not newer
        state = {"userId": user, "timestamp": now, "activityProgress": "Completed", "gradingProgress": "FullyGraded"}
        platform.once("POST", _below(item, "scores"), _SCORE, {**score, **state})

    try:
        platform.persist(post)
    except Refused as error:
        # Moodle counts in seconds: a second attempt whose first arrived is not newer.
        if error.status == 409 and tries > 1:
            return ""
        if error.status in _THIS_STUDENT:
            return "its score is newer" if error.status == 409 else str(error)
        raise
    return ""


def _share(score: dict[str, Any]) -> float:
    """Which part of its maximum a score is."""
    return score["scoreGiven"] / score["scoreMaximum"]


def _below(item: str, name: str) -> str:
    # A line item's address may have a query (Moodle's has), which stays behind the path.
    parts = urlsplit(item)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
