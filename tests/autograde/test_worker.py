"""A grading worker by itself."""

import os
import signal
import subprocess
import sys

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


def test_a_worker_s_code_has_the_digest_of_its_import():
    """An update must not make old code, which is in memory, sign with the digest of the new files."""
    code = """
import autograde.batch.worker
from autograde.grading.grading_context import grader_digest
print(grader_digest.cache_info().currsize)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_where_it_cannot_be_started_the_worker_says_so(setting, monkeypatch):
    def refuse(*_, **__):
        raise SandboxError("no sandbox")

    monkeypatch.setattr("autograde.sandbox.warm.WarmInterpreter.execute", refuse)
    with pytest.raises(SandboxError, match="no sandbox"):
        worker.grade_one(setting, "ada")
