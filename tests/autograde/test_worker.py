"""A grading worker by itself."""

import os
import signal

import pytest
from fake_runs import AUTOMATIC

from autograde.batch import worker
from autograde.sandbox.bubblewrap import SandboxError, missing_sandbox

pytestmark = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")


@pytest.fixture
def setting(lab_course, hand_in):
    hand_in("ada")
    lab = "01_single_gpu"
    yield worker.GradingJob(lab, lab_course, lab_course.parent / "labs" / lab / f"{lab}.ipynb")
    worker.close_context()


def test_a_warm_interpreter_that_was_ended_is_started_again(setting):
    first = worker.grade_one(setting, "ada")
    assert first.score == AUTOMATIC
    os.kill(worker._context.warm.pid, signal.SIGKILL)
    again = worker.grade_one(setting, "ada")
    assert again.score == first.score and [r.reason for r in again.results] == [r.reason for r in first.results]


def test_where_it_cannot_be_started_the_worker_says_so(setting, monkeypatch):
    def refuse(*_, **__):
        raise SandboxError("no sandbox")

    monkeypatch.setattr("autograde.sandbox.warm.WarmInterpreter.execute", refuse)
    with pytest.raises(SandboxError, match="no sandbox"):
        worker.grade_one(setting, "ada")
