"""`lab sweep` on a lab that takes no time: what it leaves behind, what it refuses, how it continues after an interruption."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from filelock import FileLock
from rank_processes import survivors
from toy_sweep import CELLS, make_toy_course

from course_lib.runs.sweep import local
from course_lib.runs.sweep.command import sweep as command

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def toy(tmp_path, monkeypatch, warm_server):
    """A course of one toy lab in the working folder; sweeps use the warm process of the tests."""
    monkeypatch.setattr(local.WarmServer, "private", lambda: nullcontext(warm_server))
    monkeypatch.chdir(make_toy_course(tmp_path))
    return tmp_path


def sweep(*words):
    """Run the command in this process; returns its exit code and its output."""
    done = CliRunner().invoke(command, ["1", *map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


def table(folder="runs/sweep-01_toy"):
    return pd.read_csv(Path(folder) / "results.csv", keep_default_na=False, na_values=[""])


def outcome(folder):
    return json.loads((Path(folder) / "point.json").read_text())


def test_every_trial_is_a_folder_and_a_row(toy):
    code, said = sweep("-g", "num_gpus=1,2", "-p", "batch_size", 64, "--repeat", 2, "--jobs", 2)
    assert code == 0, said
    folder = toy / "runs" / "sweep-01_toy"
    trials = [f"{n}ranks-64bs-0.1lr-0.9m-5w/seed-{s}" for n in (1, 2) for s in (0, 1)]
    found = table()
    assert list(found["folder"]) == trials and set(found["status"]) == {"done"}
    assert list(found.columns[:6]) == ["num_gpus", "batch_size", "base_lr", "momentum", "warmup_epochs", "seed"]
    row = found.iloc[-1]  # the values that the toy's formula gives
    assert (row["ranks"], row["effective_batch"], row["epochs"], row["seed"]) == (2, 128, 2, 1)
    assert row["images_per_sec"] == 1801 and row["train_seconds"] == 20  # the first epoch, 1 image/s, is left out
    assert row["final_accuracy"] == row["best_accuracy"] == pytest.approx(0.917) and row["provenance"] == "synthetic"
    for trial in trials:
        names = {path.name for path in (folder / trial).iterdir()}
        assert names >= {"01_toy.ipynb", "run.json", "learning_curve.csv", "assessment.out", "point.json", "output.log"}
        assert not names & {"unfinished", "unfinished.ipynb"}
        assert "Epoch =  1" in (folder / trial / "output.log").read_text()
    assert {path.name for path in folder.glob("*.png")} == {
        f"{n}.png" for n in ("throughput", "speedup", "efficiency", "accuracy", "learning_curves")
    }
    assert "4 of 4 trials done" in said and "[4/4, 0 s left]" in said
    # Ranks × threads never exceed the cores.
    parameters = [json.loads(path.read_text())["parameters"] for path in Path("runs").rglob("run.json")]
    assert {(p["num_gpus"], p["cores"], p["threads"]) for p in parameters} == {
        (n, n * (CORES // 2), n * (CORES // 2)) for n in (1, 2)
    }


VISIBLE = """
import pathlib, time
seen = pathlib.Path(output_dir).resolve().parents[1] / "seen"
seen.mkdir(exist_ok=True)
(seen / f"{num_gpus}-{seed}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
end = time.monotonic() + 300
while num_gpus == 1 and len(list(seen.glob("1-*"))) < 2 and time.monotonic() < end:
    time.sleep(0.05)  # both run at the same time
"""


def test_each_trial_has_gpus_of_its_own(tmp_path, monkeypatch, warm_server):
    monkeypatch.setattr(local.WarmServer, "private", lambda: nullcontext(warm_server))
    monkeypatch.setattr(local.Machine, "here", lambda: local.Machine(range(CORES), ("3", "7")))
    monkeypatch.chdir(make_toy_course(tmp_path, [*CELLS, (None, VISIBLE)]))
    code, said = sweep("-g", "num_gpus=1,2", "--repeat", 2, "--jobs", 2)
    assert code == 0, said
    seen = {path.name: path.read_text() for path in tmp_path.rglob("seen/*")}
    assert {seen.pop("2-0"), seen.pop("2-1")} == {"3,7"} and set(seen.values()) == {"3", "7"}, seen


def test_what_is_done_is_not_run_again_and_more_values_extend_the_sweep(toy):
    assert sweep("-g", "batch_size=32,64")[0] == 0
    first = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("point.json")}
    code, said = sweep("-g", "batch_size=32,64,128", "--repeat", 2)
    assert code == 0 and "2 of 6 trials have ended before" in said
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert len(table()) == 6 and len(list(Path("runs").rglob("point.json"))) == 6
    code, said = sweep("-g", "batch_size=32,64,128", "--repeat", 2)
    assert code == 0 and "6 of 6 trials have ended before" in said and "6 of 6 trials done" in said


@pytest.mark.skipif(CORES < 2, reason="one core")
def test_other_cores_per_rank_are_noted_and_an_interruption_does_not_change_them(toy):
    assert sweep("-g", "num_gpus=1")[0] == 0
    code, said = sweep("-g", "num_gpus=1,2")
    assert code == 0
    assert f"1 of these trials ran with {CORES} core(s) per rank, and now a rank has {CORES // 2}" in said
    place = Path("runs/sweep-01_toy/1ranks-32bs-0.1lr-0.9m-5w/seed-0")
    (place / "point.json").unlink()  # as if it had been interrupted there: the trial of two ranks goes first
    code, said = sweep("-g", "num_gpus=1,2")
    assert code == 0 and outcome(place)["cores"] == CORES // 2 and "per rank" not in said


def test_a_profile_that_was_edited_is_noted(toy):
    assert sweep("-g", "batch_size=32", "--profile", "smoke")[0] == 0
    profiles = toy / "labs" / "01_toy" / "profiles.yaml"
    profiles.write_text(profiles.read_text().replace("epochs: 1", "epochs: 3"))
    code, said = sweep("-g", "batch_size=32,64", "--profile", "smoke")
    assert code == 0 and "1 of these trials ran with epochs = 1 (now 3)" in said
    assert dict(table().set_index("batch_size")["epochs"]) == {32: 1, 64: 3}


def test_a_trial_that_fails_keeps_its_traceback_and_does_not_stop_the_rest(toy):
    code, said = sweep("-g", "rule=raises,linear,dies")
    assert code == 1 and "2 trials failed" in said and "--retry" in said
    found = table().set_index("rule")
    assert dict(found["status"]) == {"raises": "failed", "linear": "done", "dies": "failed"}
    assert found.loc["raises", "error"] == "failed in cell 4: ValueError: the optimiser ran away"
    assert "kernel died" in found.loc["dies", "error"]
    failed = Path("runs/sweep-01_toy") / found.loc["raises", "folder"]
    assert "and a second line" in outcome(failed)["traceback"] and "\x1b[" not in outcome(failed)["traceback"]
    assert "the optimiser ran away" in (failed / "unfinished.ipynb").read_text()
    assert not (failed / "run.json").exists()
    # Without --retry they stay as they are; with it they are run again, and what has been mended goes through.
    code, said = sweep("-g", "rule=raises,linear,dies")
    assert code == 1 and "3 of 3 trials have ended before, 2 of them failed (--retry" in said
    assert outcome(failed)["attempts"] == 1
    notebook = toy / "labs" / "01_toy" / "01_toy.ipynb"
    notebook.write_text(notebook.read_text().replace("raise ValueError", "print"))
    code, said = sweep("-g", "rule=raises,linear,dies", "--retry")
    assert code == 1 and "has changed since" in said
    assert outcome(failed)["status"] == "done" and outcome(failed)["attempts"] == 2
    assert not (failed / "unfinished.ipynb").exists()
    assert dict(table().set_index("rule")["status"]) == {"raises": "done", "linear": "done", "dies": "failed"}


def test_a_diverged_training_is_a_failed_trial_that_says_so(toy, monkeypatch):
    captions = []
    monkeypatch.setattr("matplotlib.figure.Figure.supxlabel", lambda figure, text, **look: captions.append(text))
    code, said = sweep("-g", "rule=linear,diverges", "-g", "batch_size=32,64", "-p", "epochs", 3)
    assert code == 1 and "2 of 4 trials done, 2 failed" in said
    found = table().set_index(["rule", "batch_size"])
    diverged = found.loc[("diverges", 32)]
    assert diverged["status"] == "failed" and pd.isna(diverged["final_accuracy"])
    assert diverged["error"].startswith("the training diverged: its validation loss is nan in epoch 2")
    run = Path("runs/sweep-01_toy") / diverged["folder"] / "unfinished"
    assert json.loads((run / "run.json").read_text())["diverged"] == diverged["error"]
    assert len((run / "learning_curve.csv").read_text().splitlines()) == 1 + 1 + 2  # it ended there, not after epoch 3
    assert captions and all(diverged["folder"] in text for text in captions)
    assert all("2 run(s) diverged and are left out" in text for text in captions)


def test_all_cells_run_when_asked(toy):
    code, said = sweep("-g", "batch_size=32", "--whole")
    assert code == 1 and "this cell teaches" in said


def test_a_process_that_is_killed_is_a_failed_trial(toy, monkeypatch):
    real = local._start

    def kill(*words):
        process = real(*words)
        os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(local, "_start", kill)
    code, _ = sweep("-g", "batch_size=32")
    assert code == 1 and table()["error"][0] == "the process was killed, as the system does when memory runs out"


@pytest.mark.parametrize(
    "words, told",
    [
        (["-g", "batchsize=1"], "did you mean batch_size"),
        (["-g", "batch_size=1", "-g", "batch_size=2"], "varied twice"),
        (["-g", f"num_gpus=1,{CORES + 1}"], f"num_gpus = {CORES + 1}: this machine has {CORES} cores"),
        (["-g", "batch_size=1", "--profile", "huge"], "no profile 'huge'"),
        (["-g", "batch_size=1", "--slurm", "partition=x"], "--executor slurm"),
        (["-g", "batch_size=1,2", "-g", "num_gpus=1", "--zip"], "batch_size has 2, num_gpus has 1"),
        (["-g", "@trials.csv"], "-g @trials.csv cannot be read: No such file"),
        (["-g", "@trials.csv", "-g", "batch_size=1"], "put what else varies into a column of the file"),
        (["--plot", "labs"], "of the other arguments it takes --target only"),
        (["-g", "batch_size=1", "--target", "85"], "'--target': 85.0 is not in the range"),
        (["-g", "batch_size=1", "-o", "labs"], "labs holds 01_toy and is no sweep's"),
        (["-g", "batch_size=1", "-o", "labs/01_toy/profiles.yaml"], "is a file"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_runs(toy, words, told):
    before = sorted(toy.rglob("*"))
    done = CliRunner().invoke(command, ["1", *words])
    assert done.exit_code == 2 and told in done.output, done.output
    assert len([line for line in done.output.splitlines() if "rror" in line]) == 1
    assert sorted(toy.rglob("*")) == before


def test_another_sweeps_folder_is_refused(toy):
    (here := Path("here")).mkdir()
    (here / ".sweep.json.abcd1234").write_text("{")  # of a sweep that was killed before its first file was whole
    assert sweep("-g", "batch_size=32", "-o", "here", "--repeat", 2)[0] == 0
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file() and path.name != ".lock"}
    for words, told in [
        (["-g", "batch_size=32"], "with --repeat 2"),
        (["-g", "batch_size=32", "--repeat", 2, "--profile", "smoke"], "with profile laptop (this one: smoke)"),
        (["-g", "batch_size=32", "--repeat", 2, "-p", "epochs", "3"], "with -p nothing (this one: epochs 3)"),
        (["-g", "base_lr=0.2"], "over batch_size"),
        (["-g", "batch_size=64"], "batch_size = 32 too"),
        (["-g", "batch_size=32", "--repeat", 2, "-p", "seed", "5"], "another sweep"),
    ]:
        for dry in ([], ["--dry-run"]):
            code, said = sweep(*words, "-o", "here", *dry)
            assert code == 2 and told in said and "-o DIR" in said, said
    with FileLock("here/.lock"):
        code, said = sweep("-g", "batch_size=32,64", "--repeat", 2, "-o", "here")
    assert code == 2 and "another sweep is writing" in said
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_that_cannot_be_written(toy, monkeypatch):
    def refuse(*words, **more):
        raise PermissionError(13, "Permission denied", "there")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    code, said = sweep("-g", "batch_size=32", "-o", "there/deep")
    assert code == 2 and "cannot be written (Permission denied)" in said


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB; needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_the_sweep_and_loses_nothing(toy, small_disk):
    assert sweep("-g", "batch_size=32", "-o", small_disk / "s")[0] == 0
    done = (small_disk / "s/1ranks-32bs-0.1lr-0.9m-5w/seed-0/point.json").read_bytes()
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        try:
            while file.write(b"x" * 65536):
                file.flush()
        except OSError:
            pass
    code, said = sweep("-g", "batch_size=32,64,128", "-o", small_disk / "s")
    assert code == 1 and ("no space left" in said.lower()), said
    assert (small_disk / "s/1ranks-32bs-0.1lr-0.9m-5w/seed-0/point.json").read_bytes() == done
    filler.unlink()
    code, said = sweep("-g", "batch_size=32,64,128", "-o", small_disk / "s")
    assert code == 0 and len(table(small_disk / "s")) == 3, said


def test_trials_of_a_file_are_run_and_the_folder_is_drawn_again_without_the_notebook(toy):
    Path("trials.csv").write_text("\ufeffnum_gpus,batch_size\n1,64\n1,32\n", encoding="utf-8")
    code, said = sweep("-g", "@trials.csv", "--target", "0.9", "-o", "s")
    assert code == 0, said
    found = table("s")
    assert list(zip(found["num_gpus"], found["batch_size"], strict=True)) == [(1, 64), (1, 32)]
    assert list(found["seconds_to_target"]) == [10, 10] and list(found["target"]) == [0.9, 0.9]
    Path("trials.csv").write_text("num_gpus,batch_size\n1,32\n1,128\n")
    code, said = sweep("-g", "@trials.csv", "-o", "s")
    assert code == 2 and "holds a sweep that has num_gpus = 1, batch_size = 64 too" in said
    code, said = sweep("-g", "num_gpus=1", "-g", "batch_size=32,64", "-o", "s")
    assert code == 2 and "combined in another way" in said
    shutil.rmtree("labs")

    def published():
        return {path: path.read_bytes() for path in Path("s").glob("*.[cmps]*") if path.is_file()}

    before = published()
    assert len(before) == 3 + 2 * 3
    for path in before:
        path.unlink()
    done = CliRunner().invoke(command, ["--plot", "s", "--target", "0.9"], catch_exceptions=False)
    assert done.exit_code == 0 and "2 of 2 trials done" in done.output, done.output
    assert published() == before
    done = CliRunner().invoke(command, ["--plot", "nowhere"])
    assert done.exit_code == 2 and "nowhere is no sweep's folder" in done.output and "Traceback" not in done.output


def test_dry_run_shows_trials_and_time_and_writes_nothing(toy):
    code, said = sweep("-g", "batch_size=32,64", "--dry-run")
    assert code == 0 and "2 trials, 2 to run" in said and "unknown, no past run" in said and not Path("runs").exists()
    assert sweep("-g", "batch_size=32")[0] == 0
    path = next(Path("runs").rglob("point.json"))
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"seconds": 50.0}))
    code, said = sweep("-g", "batch_size=32,64,128", "--repeat", 2, "--dry-run", "--jobs", min(2, CORES))
    assert "(has ended)" in said and "6 trials, 5 to run" in said
    expected = 50 * 5 if CORES == 1 else 50 * 3  # 5 trials, two at a time
    assert f"estimated time: {expected / 60:.0f} min" in said


# What follows runs the real command in a process of its own, to kill it.


def start(folder, *words, mark="1"):
    environment = {**os.environ, "SWEEP_TEST": mark}
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "lab"), "sweep", "1", *map(str, words)], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        # Whoever runs the tests in a shell's background has Ctrl-C ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def family(mark):
    """All processes that descend from a command started with this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SWEEP_TEST") == mark:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_for(what, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about")


@pytest.fixture
def course(tmp_path):
    return make_toy_course(tmp_path)


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(course):
    process = start(course, "-g", "rule=linear,hangs", mark=f"c{os.getpid()}")
    wait_for(lambda: list(course.rglob("hanging")))
    members = family(f"c{os.getpid()}")
    assert len(members) >= 4  # the command, the warm process, the trial's process, its kernel
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 130
    assert "stopped: 1 of 2 trials have ended; the same command continues with the others" in said
    assert "Traceback" not in said
    assert survivors(members, 600) == []
    found = pd.read_csv(course / "runs/sweep-01_toy/results.csv")
    assert list(found["status"]) == ["done"]


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_twice_or_more_and_resumed_each_trial_is_there_once(course, kills, monkeypatch):
    draw = random.Random(0) if kills == 2 else random.Random()  # 0: once while it starts, once in the thick of it
    words = ("-g", "num_gpus=1,2", "-g", "batch_size=64,128,256", "--repeat", 2, "--jobs", 2)
    mark = f"k{os.getpid()}"

    def ended():
        return len(list(course.rglob("point.json")))

    for _ in range(kills):
        before, process = ended(), start(course, *words, mark=mark)
        if draw.random() < 0.8:
            wait_for(lambda process=process, before=before: process.poll() is not None or ended() > before)
        time.sleep(draw.uniform(0, 1.0))
        members = family(mark)
        process.kill()
        process.communicate()
        assert survivors(members, 600) == []
    place = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # pytest's own is too long for a socket
    monkeypatch.setenv("TMPDIR", str(place))
    done = start(course, *words, mark=mark)
    said = done.communicate(timeout=600)[0]
    assert done.returncode == 0, said
    left = [path for path in place.rglob("*") if not path.name.startswith("torchinductor_")]  # PyTorch's own cache
    assert left == []  # of the sweep that was not killed
    shutil.rmtree(place)
    folder = course / "runs/sweep-01_toy"
    found = pd.read_csv(folder / "results.csv")
    assert len(found) == 12 and found["folder"].is_unique and set(found["status"]) == {"done"}
    for row in found.itertuples():
        rate = 1000 * row.ranks * (0.9 if row.ranks > 1 else 1) + row.seed
        assert row.final_accuracy == pytest.approx(0.92 - 0.001 * row.effective_batch / 32 + 0.001 * row.seed)
        assert row.images_per_sec == rate
    assert not list(folder.rglob("unfinished*"))
