"""`lab serve` as the hub's service: who submits in JupyterLab finds feedback there, and nobody has done anything."""

import os
import signal
import sqlite3
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import running_hub
from browser import MINUTE, Person
from lab_answers import LAB, answers

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETTINGS = f'[course]\ngrade_on_submission = ["{LAB}"]\n'


@pytest.fixture(scope="module")
def hub():
    if lack := running_hub.missing():
        pytest.skip(lack)
    running = running_hub.RunningHub(students=3, settings=SETTINGS)
    yield running
    running.stop()


@pytest.fixture
def person(chromium, hub):
    pictures = Path(tempfile.mkdtemp(prefix="service-pictures-"))
    print(f"\nscreenshots: {pictures}")
    people = []

    def get(name):
        people.append(Person(chromium, hub, name, pictures))
        people[-1].sign_in()
        return people[-1]

    yield get
    for one in people:
        one.picture("at-the-end")
        one.context.close()


def service(hub):
    """The process of `lab serve`."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for process in psutil.process_iter(["pid", "username", "cmdline"]):
            if process.info["username"] == hub.course and "serve" in (process.info["cmdline"] or ()):
                return process
        time.sleep(0.2)
    raise TimeoutError("the hub runs no `lab serve`")


def hand_in(student, hub, exercises=()):
    """Fetch the lab, type these answers, and submit."""
    student.assignment_list()
    student.button("Fetch").click()
    student.button("Submit").wait_for()
    if exercises:
        student.page.locator("#fetched_assignments_list .assignment-notebooks-link").click()
        student.page.locator("#fetched_assignments_list .nested_list_item a", has_text=LAB).click()
        student.wait_for_notebook()
        for number, text in exercises:
            student.type_cell(number, text)
        student.save()
        student.assignment_list()
    student.button("Submit").click()
    student.button("Fetch Feedback").wait_for()


def read_feedback(student, hub):
    """Fetch the feedback once it is there; its heading."""
    link = student.page.locator("#submitted_assignments_list a", has_text="view feedback")
    end = time.monotonic() + 300
    while not link.count():
        assert time.monotonic() < end, hub.said[-20:]
        student.button("Fetch Feedback").click()
        student.page.wait_for_timeout(3000)
    link.click()
    student.page.get_by_text(f"{LAB}.html").first.dblclick()
    heading = student.page.frame_locator(".jp-HTMLViewer iframe").locator("h1", has_text=" points")
    heading.wait_for(timeout=MINUTE)
    student.picture("feedback")
    return heading.inner_text()


def test_what_is_submitted_is_graded_and_read_whatever_ends_in_between(person, hub):
    ada = person(hub.student_a)
    hand_in(ada, hub, list(answers(hub.checkout).items())[1:3])  # after the parameters: loaders and step
    assert read_feedback(ada, hub) == f"{LAB}: 14 / 68 points"

    first = service(hub)
    os.kill(first.pid, signal.SIGKILL)
    psutil.wait_procs([first], 30)
    ben = person(hub.student_b)
    hand_in(ben, hub)
    assert read_feedback(ben, hub) == f"{LAB}: 0 / 68 points"
    assert service(hub).pid != first.pid

    assert hub.interrupt() in (0, -signal.SIGINT)
    hub.start()
    third = person(f"{hub.prefix}student003")
    hand_in(third, hub)
    assert read_feedback(third, hub) == f"{LAB}: 0 / 68 points"

    with sqlite3.connect(f"file:{hub.checkout}/course/on_submission/queue.sqlite?mode=ro", uri=True) as database:
        rows = database.execute("select student, state from submission").fetchall()
    assert sorted(rows) == [(name, "done") for name in sorted((hub.student_a, hub.student_b, third.name))]
