"""`lab export --to lti` and `lab roster` against an LMS in this process, which checks what they send and fails on demand."""

import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from fake_class import RECORD, verdict
from fake_runs import LAB, open_book
from lti_platform import LEARNER, TEACHER, LtiPlatform, jwt, new_key, pem
from test_exports import graded, scores_of_four, set_score  # noqa: F401

import autograde.gradebook.lms.platform as client
from autograde.commands.export import export
from autograde.commands.roster import roster
from autograde.reports.export.lti import plain_comment

POINTS = {"u-ada": 25.5, "u-bob": 18.0}  # final; cyd's waits for a person, dan handed nothing in


@pytest.fixture
def lms(graded, tmp_path, monkeypatch):  # noqa: F811
    """The LMS, with the four students and their teacher; `course` uses it, `pauses` are the client's."""
    lms = LtiPlatform()
    lms.course, lms.pauses, lms.config = graded, [], tmp_path / "nbgrader_config.py"
    monkeypatch.setattr(client, "sleep", lms.pauses.append)
    for name in ("ada", "bob", "cyd", "dan"):
        lms.member(
            f"u-{name}", lis_person_sourcedid=name, given_name=name.title(), family_name="X", email=f"{name}@lms.edu"
        )
    lms.member("u-grace", TEACHER, lis_person_sourcedid="grace", given_name="Grace")
    key = tmp_path / "key.pem"
    key.touch(0o600)
    key.write_bytes(pem(lms.tool_key))
    lms.config.write_text(lms.config.read_text() + lms.settings(key))
    lms.key = key
    yield lms
    lms.server.shutdown()


def run(lms, *options, lab="1"):
    return CliRunner().invoke(export, [lab, "--to", "lti", "--course", str(lms.course), *options])


def record(lms):
    return lms.course / "exports" / f"{LAB}_lti.json"


def change(lms, student, points):
    with open_book(lms.course) as gradebook:
        set_score(gradebook, student, points)


def refused(done, *texts):
    """Failed in one line that has the texts."""
    assert done.exit_code == 1 and len(done.output.strip().splitlines()) == 1, done.output
    assert all(text in done.output for text in texts), done.output
    return True


def test_scores_arrive_once(lms):
    dry = run(lms, "--dry-run")
    assert dry.output.splitlines()[:3] == [
        "would make the line item 'Training on a single GPU' of 28 points", "would send 'ada': 25.5 of 28", "would send 'bob': 18 of 28"
    ]  # fmt: skip
    assert not lms.posts and not lms.items and not record(lms).exists()
    done = run(lms)
    assert done.exit_code == 0 and "2 sent, 0 unchanged" in done.output, done.output
    assert "1 of 4 still need hand grading: left out" in done.output
    assert lms.scores() == POINTS and "comment" not in lms.posts[0]
    (item,) = lms.items.values()
    assert (item["resourceId"], item["scoreMaximum"]) == (LAB, 28)
    assert "2 unchanged" in run(lms).output and len(lms.posts) == 2
    record(lms).unlink()  # what the LMS has is not sent again
    assert "0 sent, 2 unchanged" in run(lms).output and len(lms.posts) == 2
    change(lms, "bob", 22)
    assert "1 sent, 1 unchanged" in run(lms).output
    assert lms.scores()["u-bob"] == 22 and len(lms.items) == 1


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_score_that_the_lms_lost_is_sent_again(lms, how):
    run(lms)
    lms.results["u-bob"]["resultScore"] = 3  # a teacher's; ours is as it was
    assert "0 sent, 2 unchanged" in run(lms).output
    lms.results.pop("u-ada") if how == "gone" else lms.results["u-ada"].pop("resultScore")
    dry = run(lms, "--dry-run").output
    assert "would send 'ada': 25.5 of 28" in dry and "1 would be sent, 1 unchanged" in dry
    assert "1 sent, 1 unchanged" in run(lms).output
    assert lms.scores() == {"u-ada": 25.5, "u-bob": 3}
    assert "0 sent, 2 unchanged" in run(lms).output and len(lms.posts) == 3


def test_a_line_item_of_another_maximum_is_found_among_pages(lms):
    for number, name in enumerate(("a", "b", "c", LAB), 90):
        path = f"/7/lineitems/{number}/lineitem"
        lms.items[path] = {"id": f"{lms.url}{path}?type_id=3", "resourceId": name, "scoreMaximum": 100}
    assert run(lms).exit_code == 0
    assert (
        lms.scores() == {user: round(points / 28 * 100, 2) for user, points in POINTS.items()} and len(lms.items) == 4
    )
    record(lms).unlink()
    assert "0 sent" in run(lms).output  # the LMS's rounding is no other score


def test_a_score_is_not_lowered_unless_asked(lms):
    run(lms)
    change(lms, "ada", 20)
    done = run(lms)
    assert "higher in the LMS (25.5 of 28), left so: 'ada', 20 of 28 here; --lower sends it" in done.output
    assert lms.scores()["u-ada"] == 25.5
    assert "1 sent" in run(lms, "--lower").output and lms.scores()["u-ada"] == 20


def test_what_was_sent_is_not_lowered_where_the_lms_shows_nothing(lms):
    run(lms)
    lms.results.clear()
    change(lms, "ada", 25)
    line = "25.5 of 28 was sent before and the LMS shows nothing now, not sent: 'ada', 25 of 28 here; --lower sends it"
    assert line in run(lms, "--dry-run").output.splitlines()
    for _ in range(2):  # the record keeps what was sent
        assert line in run(lms).output.splitlines() and lms.scores() == {"u-bob": 18}
    assert "1 sent, 1 unchanged" in run(lms, "--lower").output
    assert lms.scores() == {"u-ada": 25, "u-bob": 18}
    lms.results.clear()
    change(lms, "ada", 26)
    assert "2 sent" in run(lms).output and lms.scores() == {"u-ada": 26, "u-bob": 18}


def test_what_was_sent_is_compared_by_its_share_of_the_maximum(lms):
    """60 of 100, when the lab was worth 100 points: 16.8 of today's 28, less than ada has, and more than bob."""
    run(lms)
    content = json.loads(record(lms).read_text())
    content["sent"] = {user: {"scoreGiven": 60, "scoreMaximum": 100} for user in POINTS}
    record(lms).write_text(json.dumps(content))
    lms.results.clear()
    change(lms, "bob", 16)
    assert "60 of 100 was sent before and the LMS shows nothing now, not sent: 'bob', 16 of 28" in run(lms).output
    assert lms.scores() == {"u-ada": 25.5}


def test_a_score_above_the_maximum_is_sent_and_named(lms):
    change(lms, "ada", 30)
    assert "above the maximum of 28: 'ada', 30" in run(lms).output and lms.scores()["u-ada"] == 30


def test_unknown_students_are_named_and_the_others_lose_nothing(lms):
    lms.members = [each for each in lms.members if each["user_id"] != "u-ada"]
    lms.member("u-1", lis_person_sourcedid="eve")
    lms.unknown.add("u-bob")
    change(lms, "dan", 11)
    lines = run(lms).output.splitlines()
    assert "no user of the LMS, not sent: 'ada'" in lines and "1 sent, 0 unchanged" in lines
    assert any(line.startswith("refused by the LMS, not sent: 'bob': ") for line in lines)
    assert lms.scores() == {"u-dan": 11}
    lms.unknown.clear()
    assert "1 sent, 1 unchanged" in run(lms).output and lms.scores() == {"u-dan": 11, "u-bob": 18}


def test_the_gradebook_s_user_id_comes_first_and_nobody_shares_one(lms):
    with open_book(lms.course) as gradebook:
        gradebook.find_student("ada").lms_user_id = "u-other"
        gradebook.find_student("bob").lms_user_id = "u-dan"  # dan's, by the LMS
        gradebook.db.commit()
    change(lms, "dan", 11)
    lines = run(lms).output
    assert lms.scores() == {"u-other": 25.5}
    assert "not sent: 'bob'" in lines and "not sent: 'dan'" in lines


@pytest.mark.parametrize("where", ["token", "lineitems", "results", "scores", "members"])
@pytest.mark.parametrize("what", [500, (429, {"Retry-After": "7"}), "cut", "cut after"])
def test_what_passes_is_tried_again(lms, where, what):
    lms.fail = [(where, what)] * 2
    done = run(lms)
    assert done.exit_code == 0 and "2 sent" in done.output, done.output
    assert not lms.fail and lms.scores() == POINTS and len(lms.items) == 1
    assert len({jwt.decode(each, options={"verify_signature": False})["jti"] for each in lms.assertions}) == len(
        lms.assertions
    )
    assert lms.pauses == ([7, 7] if isinstance(what, tuple) else [1, 2])


def test_patience_is_bounded_and_the_next_call_continues(lms):
    lms.fail = [("scores", (429, {"Retry-After": "86400"}))]
    assert "Retry-After: '86400'; run the command again then" in run(lms).output and lms.pauses == []
    lms.fail = [("scores", "cut")] * 6
    assert "gave up after 6 attempts, try again later" in run(lms).output
    assert lms.pauses == [1, 2, 4, 8, 16] and not lms.fail and not lms.posts
    assert "2 sent" in run(lms).output


def test_an_expired_token_is_renewed_once(lms):
    lms.wait = lambda path: lms.tokens.clear() if path.endswith("scores") and len(lms.assertions) == 1 else None
    assert "2 sent" in run(lms).output and len(lms.assertions) == 2
    lms.wait = lambda path: lms.tokens.clear() if path != "/token" else None
    assert refused(run(lms), "answers 401", "c.LTI") and len(lms.assertions) == 4


@pytest.mark.parametrize("arrived", [True, False])
def test_a_newer_score_of_a_person_stays(lms, arrived):
    """Moodle: 409 for what is not newer, in seconds; so also for the second attempt of what has arrived."""
    lms.fail = [("scores", "cut after"), ("scores", 409)] if arrived else [("scores", 409)]
    lines = run(lms).output
    assert ("not sent: 'ada': its score is newer" in lines) is not arrived
    assert ("u-ada" in json.loads(record(lms).read_text())["sent"]) is arrived


@pytest.mark.parametrize("arrived", [False, True])
def test_a_kill_between_two_scores(lms, arrived):
    """Before the second score is sent; or when the first has arrived, and its record is not written."""
    here, count = threading.Event(), []

    def wait(path):
        count.extend([path] * path.endswith("/scores"))
        if len(count) == 2 - arrived and not here.is_set():
            if arrived:
                state = {
                    "activityProgress": "Completed",
                    "gradingProgress": "FullyGraded",
                    "timestamp": "2026-01-01T00:00Z",
                }
                lms.take_score({"userId": "u-ada", "scoreGiven": 25.5, "scoreMaximum": 28, **state}, 28)
            here.set()
            threading.Event().wait(60)

    lms.wait = wait
    command = "from autograde.commands.export import export; export()"
    with subprocess.Popen([sys.executable, "-c", command, "1", "--to", "lti", "--course", str(lms.course)]) as process:
        assert here.wait(300)
        os.kill(process.pid, signal.SIGKILL)
    assert lms.scores() == {"u-ada": 25.5}
    done = run(lms)
    assert "1 sent, 1 unchanged" in done.output, done.output
    assert lms.scores() == POINTS and len(lms.posts) == 2 and len(lms.items) == 1


def other_audience(lms):
    return 'c.LTI.audience = "https://elsewhere.edu"\n'


def other_key(lms):
    lms.key.write_bytes(pem(new_key()))
    return ""


def open_key(lms):
    lms.key.chmod(0o640)
    return ""


def no_key(lms):
    lms.key.write_text("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n")
    return ""


WRONG = [
    (other_audience, "invalid_client"), (other_key, "invalid_client"), (open_key, "can be read by others; chmod 600"),
    (no_key, "holds no RSA key"), ('c.LTI.client_id = ""', "c.LTI.client_id is not set"),
    ('c.LTI.clientid = "x"', "c.LTI has no 'clientid'"), ('c.LTI.token_url = "http://lms.edu/t"', "is no https address"),
    ('c.LTI.key_file = "/nowhere"', "cannot be read"), ("c.LTI.client_id = 3", "c.LTI"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_a_wrong_setting_is_one_line_and_nothing_is_sent(lms, wrong, text):
    lms.config.write_text(lms.config.read_text() + (wrong if isinstance(wrong, str) else wrong(lms)))
    assert refused(run(lms), text) and not lms.posts and not lms.items


def test_a_used_assertion_is_refused(lms, monkeypatch):
    monkeypatch.setattr(client.uuid, "uuid4", lambda: SimpleNamespace(hex="1"))
    assert run(lms).exit_code == 0
    assert refused(run(lms), "replayed")  # the oracle's own check: a client that reuses an id fails


def test_the_token_goes_to_the_lms_s_machine_only(lms):
    other = LtiPlatform()
    lms.items["/x"] = {"id": f"{other.url}/7/lineitems/1/lineitem", "resourceId": LAB, "scoreMaximum": 28}
    assert refused(run(lms), "not on its own machine") and not other.paths
    other.server.shutdown()


@pytest.mark.parametrize("score", [None, "3", '{"scoreGiven": 3}', '{"scoreGiven": 3, "scoreMaximum": 0}'])
def test_a_damaged_record_is_one_line(lms, score):
    record(lms).parent.mkdir()
    record(lms).write_text(f'{{"line_item": null, "sent": {{"u-ada": {score}}}}}' if score else "[]")
    assert refused(run(lms), "is no record of sent scores; remove it") and not lms.posts


def test_options_of_other_formats_are_refused(lms):
    assert run(lms, "--scale").exit_code == run(lms, "-o", "x.csv").exit_code == 2 and not lms.paths


def test_comments_are_plain_text(lms):
    path = verdict("ada", {RECORD}).save(lms.course)
    evil = json.dumps('é <script>alert(1)</script> &lt;b&gt; \x1b[31m\x00\u202e "=1+1"')[1:-1]
    path.write_text(path.read_text().replace("run-record as ada did it", evil))
    assert "no readable verdict, so no comment: 'bob'" in run(lms, "--feedback").output
    comment = next(each["comment"] for each in lms.posts if each["userId"] == "u-ada")
    assert comment.startswith("Graded from the files handed in: ") and "alert(1)" in comment and "é" in comment
    assert not set(comment) & set("<&\x1b\x00\u202e")
    assert "2 unchanged" in run(lms, "--feedback").output
    assert len(plain_comment(["x" * 10**6])) < 10_000


# ---------------------------------------------------------------- the roster


def students(lms):
    with open_book(lms.course) as gradebook:
        return {each.id: (each.first_name, each.last_name, each.email, each.lms_user_id) for each in gradebook.students}


def test_the_roster_adds_and_updates_students_and_removes_nobody(lms):
    before = students(lms)
    lms.members = [each for each in lms.members if each["user_id"] != "u-dan"]
    lms.member("u-dan", lis_person_sourcedid="dan", status="Inactive")
    lms.member("u-eve", lis_person_sourcedid="eve", given_name="Eve\x1b[31m\n<b>", family_name="Ö")
    lms.member("u-ta", lis_person_sourcedid="ta", roles=[LEARNER, f"{TEACHER.replace('#', '/')}#TeachingAssistant"])
    lms.member("u-evil", lis_person_sourcedid="../../etc")
    command = ["--course", str(lms.course)]
    dry = CliRunner().invoke(roster, [*command, "--dry-run"])
    assert dry.exit_code == 0 and "added: 'eve'" in dry.output and students(lms) == before
    done = CliRunner().invoke(roster, command)
    assert done.exit_code == 0 and "\x1b" not in done.output
    assert "left out: LMS user 'u-evil' has no id" in done.output
    assert "not in the LMS (any more), left as it is: 'dan'" in done.output and "5 students in the LMS" in done.output
    after = students(lms)
    assert after["ada"] == ("Ada", "X", "ada@lms.edu", "u-ada") and after["dan"] == before["dan"]
    assert after["eve"] == ("Eve [31m <b>", "Ö", None, "u-eve") and set(after) == {"ada", "bob", "cyd", "dan", "eve"}
    again = CliRunner().invoke(roster, command).output.splitlines()
    assert not [line for line in again if line.startswith(("added", "changed"))] and students(lms) == after
    calls = len(lms.paths)
    assert run(lms).exit_code == 0 and not any(
        "members" in path for path in lms.paths[calls:]
    )  # the gradebook knows them


def test_a_dry_run_makes_no_gradebook(lms):
    gradebook = lms.course / "gradebook.db"
    gradebook.unlink()
    before = sorted(lms.course.rglob("*"))
    done = CliRunner().invoke(roster, ["--course", str(lms.course), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        *(f"added: '{name}' (LMS user 'u-{name}')" for name in ("ada", "bob", "cyd", "dan")),
        "4 students in the LMS; nothing was changed",
    ]
    assert sorted(lms.course.rglob("*")) == before
    CliRunner().invoke(roster, ["--course", str(lms.course)])
    assert set(students(lms)) == {"ada", "bob", "cyd", "dan"}


def test_two_names_for_a_person_as_docs_administrator_has_it(lms):
    """The accounts' names are in another field of the members than the default one."""
    for number, each in enumerate(lms.members):
        name = each["lis_person_sourcedid"]
        each |= {"lis_person_sourcedid": f"1000{number}", "ext_user_username": name, "message": [{"username": name}]}
    command = ["--course", str(lms.course)]
    assert "no user of the LMS, not sent: 'ada'" in run(lms).output.splitlines()
    lines = CliRunner().invoke(roster, command).output.splitlines()
    assert "added: '10000' (LMS user 'u-ada')" in lines and "not in the LMS (any more), left as it is: 'ada'" in lines
    assert "no user of the LMS, not sent: 'ada'" in run(lms).output.splitlines() and not lms.posts
    config = lms.config.read_text()
    lms.config.write_text(config + 'c.LTI.student_field = "message"\n')
    with open_book(lms.course) as gradebook:
        for number in range(4):
            gradebook.remove_student(f"1000{number}")
    lines = CliRunner().invoke(roster, command).output
    assert "left out: LMS user 'u-ada' has no id that can be a student's here" in lines
    lms.config.write_text(config + 'c.LTI.student_field = "ext_user_username"\n')
    assert "changed: 'ada' (LMS user 'u-ada')" in CliRunner().invoke(roster, command).output
    assert "2 sent" in run(lms).output and lms.scores() == POINTS


def test_a_student_who_takes_another_s_id_gets_nothing_of_theirs(lms):
    CliRunner().invoke(roster, ["--course", str(lms.course)])
    before = students(lms)
    lms.members = [each for each in lms.members if each["user_id"] not in ("u-ada", "u-bob")]
    lms.member("u-new", lis_person_sourcedid="ada", given_name="Not Ada")
    lms.member("u-bob", lis_person_sourcedid="cyd", given_name="Bob")
    lines = CliRunner().invoke(roster, ["--course", str(lms.course)]).output
    assert students(lms) == before
    assert "left as it is: 'ada' (LMS user 'u-new') is LMS user 'u-ada' in the gradebook" in lines
    assert lines.count("'cyd'") >= 1 and "more than once" in lines
