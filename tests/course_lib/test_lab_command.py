"""The `lab` command's bad arguments: exit code 2, one line that names the thing, no traceback."""

import os
import signal
import subprocess
import sys

import nbformat
import pytest
from click import UsageError

from course_lib.runs.cli import main


@pytest.fixture
def lab(monkeypatch, capsys):
    """The `lab` command in this process: an interpreter of its own takes seconds to import PyTorch."""

    def lab(*arguments):
        monkeypatch.setattr(sys, "argv", ["lab", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code, said.out, said.err)

    return lab


def refused(done, code, *words):
    """One `Error: …` line at the end that holds the words; no traceback."""
    assert done.returncode == code, done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ") and all(word in last for word in words), done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("run", "99"), ("'99'", "01_single_gpu")),
        (("run", "01", "--profile", "nope"), ("nope", "smoke")),
        (("run", "01", "-p", "nope", "1"), ("nope", "; it has num_gpus")),
        (("run", "01", "-p", "dataset", "nope"), ("nope", "fashion-mnist-small", "cifar10-synthetic")),
        (("run", "12", "--profile", "smoke", "-p", "augmentation", "afine"), ("did you mean affine?",)),
        (("run", "02", "--profile", "smoke", "-p", "batch_size", "4096"), ("batch_size = 4096", "at most 768")),
        (("run", "01", "-p", "output_dir", "a", "-o", "b"), ("given twice", "a", "b")),
        (("run", "01", "--profile", "smoke", "-o", "/dev/null/x"), ("/dev/null/x", "cannot be written")),
    ],
    ids=lambda value: " ".join(value) if value[0] in ("run", "sweep") else "",
)
def test_bad_arguments(lab, arguments, words):
    refused(lab(*arguments), 2, *words)


def test_a_data_set_that_is_not_staged_is_failed_work_with_the_remedy(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "empty"))
    refused(lab("run", "01", "-p", "dataset", "mnist", "-o", str(tmp_path / "run")), 1, "lab data fetch mnist")
    assert not (tmp_path / "run").exists()


def test_a_second_run_into_the_same_folder_is_refused(lab, tmp_path):
    from filelock import FileLock

    tmp_path.joinpath("unfinished").mkdir()
    with FileLock(tmp_path / ".lock"):
        refused(lab("run", "01", "--profile", "smoke", "-o", str(tmp_path)), 1, "another run", str(tmp_path))


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lab", "--debug", "run", "99"])
    with pytest.raises(UsageError, match="'99'"):  # the interpreter prints what nobody catches
        main()


def test_the_command_lists_those_of_other_packages(lab):
    done = lab("--help")
    assert done.returncode == 0 and all(f"\n  {name} " in done.stdout for name in ("run", "start", "data", "grade"))


LATER = {"torch", "numpy", "pandas", "matplotlib", "papermill", "nbformat", "nbgrader", "sqlalchemy", "msgspec"}


def test_help_imports_nothing_that_takes_long():
    program = "import sys; from course_lib.runs.cli import lab; lab(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "sweep" in done.stdout and not LATER & set(done.stdout.split())


RANK_ASLEEP = """
import time
from course_lib.distributed import launch
def sleep():
    print("begun", flush=True)
    time.sleep(600)
launch(sleep, 1)
"""
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from course_lib.runs.execute_notebook import execute_notebook
try:
    execute_notebook(*sys.argv[1:], {})
except KeyboardInterrupt:
    sys.exit("stopped")
"""


def test_an_interrupt_of_a_notebook_shows_no_traceback(tmp_path):
    cell = nbformat.v4.new_code_cell(RANK_ASLEEP)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), tmp_path / "asleep.ipynb")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path / "asleep.ipynb", tmp_path / "executed.ipynb"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    assert process.stdout.readline() == "[rank 0] begun\n"
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=600)[1]
    assert "stopped\n" in said and "Traceback" not in said
