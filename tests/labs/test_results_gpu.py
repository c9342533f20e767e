"""`make results-gpu` with jobs for CPUs: what fits, what a kill leaves, the page."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results_gpu(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import results_gpu

    return results_gpu


def script(text):
    return (sys.executable, "-c", text)


def test_what_fits_is_run_and_what_failed_says_why(results_gpu, tmp_path, capsys):
    marker = tmp_path / "ran"
    jobs = [
        results_gpu.Job("quick", script(f"open({str(marker)!r}, 'a').write('x')"), 0.5),
        results_gpu.Job("long", script("raise SystemExit('must not run')"), 60, 0.85),
        results_gpu.Job("broken", script("raise SystemExit('no data | here')"), 0.5),
        results_gpu.Job("endless", script("import time; time.sleep(600)"), 0.05),
    ]
    for _ in range(2):
        results_gpu.evening(jobs, tmp_path / "work", tmp_path / "out", "Made-up GPU", minutes=5)
    assert marker.read_text() == "x"  # the second time it has passed already
    said = json.loads((tmp_path / "out" / "made-up-gpu.json").read_text())
    reasons = {one["job"]: (one["passed"], one["reason"]) for one in said["results"]}
    assert reasons["quick"] == (True, "") and reasons["long"] == (None, "not run")
    assert reasons["broken"] == (False, "no data | here") and reasons["endless"][1].startswith("ended after its")
    text = (tmp_path / "out" / "made-up-gpu.md").read_text()
    assert "| long | not run |" in text and "85% not tried" in text and "no data / here" in text
    assert (tmp_path / "out" / "made-up-gpu.png").stat().st_size > 1000
    assert "long: may take 60 minutes" in capsys.readouterr().out


KILLED = """
import sys
sys.path.insert(0, {benchmarks!r})
import results_gpu
from pathlib import Path
first = "import os, pathlib; pathlib.Path({pid!r}).write_text(str(os.getpid())); import time; time.sleep(600)"
jobs = [results_gpu.Job("done", (sys.executable, "-c", ""), 1), results_gpu.Job("killed", (sys.executable, "-c", first), 15)]
results_gpu.evening(jobs, Path({work!r}), Path({out!r}), "GPU")
"""


def test_kill_9_leaves_a_whole_page_and_no_job(tmp_path):
    pid, out = tmp_path / "pid", tmp_path / "out"
    text = KILLED.format(benchmarks=str(BENCHMARKS), pid=str(pid), work=str(tmp_path / "work"), out=str(out))
    process = subprocess.Popen([sys.executable, "-c", text])
    end = time.monotonic() + 300
    while not (pid.is_file() and pid.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    job = int(pid.read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    said = json.loads((out / "gpu.json").read_text())
    assert [one["passed"] for one in said["results"]] == [True, None]
    while time.monotonic() < end:
        try:
            os.kill(job, 0)
        except ProcessLookupError:
            return
        if "State:\tZ" in Path(f"/proc/{job}/status").read_text():
            return
        time.sleep(0.1)
    pytest.fail("the job outlived the evening")


@pytest.mark.slow
def test_a_lab_s_run_on_the_page(results_gpu, tmp_path):
    """The smoke profile of a lab, on this machine's device."""
    job = results_gpu.lab("01", 60, 0, threshold=0.3, profile="smoke")  # minutes: no limit, however slow the processor
    (outcome,) = results_gpu.evening([job], tmp_path / "work", tmp_path / "out", "GPU")
    assert outcome["passed"], outcome["reason"]
    assert results_gpu.holds(outcome) and outcome["images_per_second"] > 0 and len(outcome["curve"]["seconds"]) == 3
    assert "| lab 01 | yes |" in (tmp_path / "out" / "gpu.md").read_text()


def test_lab_12_s_threshold_is_reached_twice_in_a_row(results_gpu):
    outcome = {"job": "lab 12", "threshold": 0.85, "accuracy": 0.87}
    for accuracies, held in (([0.8, 0.87, 0.84, 0.86], False), ([0.8, 0.87, 0.85], True)):
        assert results_gpu.holds({**outcome, "curve": {"accuracy": accuracies}}) is held


def test_each_lab_and_each_threshold_has_a_job(results_gpu):
    jobs = {job.name: job for job in results_gpu.all_jobs(2)}
    labs = {f"lab {path.name[:2]}" for path in (BENCHMARKS.parent / "labs").glob("[0-9]*")}
    assert labs == {name for name in jobs if name.startswith("lab ")}
    asked = sorted(job.threshold for job in jobs.values() if job.threshold)
    assert asked == [0.5, 0.6, 0.6, 0.6, 0.7, 0.85, 0.92]
    for job in jobs.values():
        assert job.cwd.is_dir() and all((job.cwd / word).is_file() for word in job.command if word.endswith(".py"))
