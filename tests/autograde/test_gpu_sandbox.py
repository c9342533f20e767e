"""A GPU in the sandbox of a grading run, on files that pretend two GPUs: exactly one's files, exactly where it is asked for.

Not run on a GPU so far; tests/gpu/test_grading_on_a_gpu.py is for one.
"""

import contextlib
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from fake_runs import LAB
from msgspec import structs
from test_rerun import RUBRIC
from test_sandbox import FORBIDDEN, probe

from autograde.batch.grade_lab import grade_lab
from autograde.grading.rerun import rerun
from autograde.rubric.schema import load_rubric
from autograde.sandbox import gpus
from autograde.sandbox.bubblewrap import Sandbox, SandboxError, missing_sandbox
from autograde.sandbox.gpus import one_gpu, usable_gpus
from autograde.sandbox.limits import Limits

needs_sandbox = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")
COMMON = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
INFORMATION = (
    "Model: \t\t Pretended\nGPU UUID: \t GPU-{0}\nBus Location: \t {1}\nDevice Minor: \t {2}\nGPU Excluded:\t {3}\n"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Two GPUs whose minor numbers are not in the bus's order, one that the driver excludes, and other device files."""
    places = {name: tmp_path / name for name in ("dev", "driver", "pci", "devices", "lib")}
    for place in places.values():
        place.mkdir()
    for bus, minor, excluded in (("0000:01:00.0", 3, "No"), ("0000:41:00.0", 0, "No"), ("0000:c1:00.0", 1, "Yes")):
        (places["driver"] / bus).mkdir()
        text = INFORMATION.format(bus[5:7] * 4, bus, minor, excluded)
        (places["driver"] / bus / "information").write_text(text)
        (places["devices"] / bus).mkdir()
        (places["devices"] / bus / "numa_node").write_text("0\n")
        (places["pci"] / bus).symlink_to(f"../devices/{bus}")
    for name in (*COMMON, "nvidia0", "nvidia1", "nvidia3", "nvidia-modeset", "nvidia-caps-1", "dri", "sda"):
        node = places["dev"] / name
        try:
            os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # as /dev/zero
        except PermissionError:
            node.touch()
        node.chmod(0o666)
    (places["lib"] / "libcuda.so.580.1").write_text("driver")
    (places["lib"] / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    monkeypatch.setattr(gpus, "DEVICES", places["dev"])
    monkeypatch.setattr(gpus, "DRIVER", places["driver"])
    monkeypatch.setattr(gpus, "PCI", places["pci"])
    monkeypatch.setattr(gpus, "_libraries", lambda: (places["lib"] / "libcuda.so.1",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # turns are those of this test
    return SimpleNamespace(**places)


@pytest.mark.parametrize(
    ("visible", "minors"),
    [(None, [3, 0]), ("0", [3]), ("1", [0]), ("1,0", [3, 0]), ("GPU-4141", [0]), ("GPU-01010101", [3])],
)
def test_which_gpus_are_handed_out(machine, monkeypatch, visible, minors):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.minor for gpu in usable_gpus()] == minors


def close(machine):
    for node in machine.dev.iterdir():
        node.chmod(0)
    if os.geteuid() != 0:
        return
    for node in machine.dev.iterdir():
        node.chmod(0o660)  # a group's, whose member students' code is not


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (lambda machine, patch: patch.setattr(gpus, "DRIVER", Path("/nowhere")), "no NVIDIA driver lists one"),
        (lambda machine, patch: (machine.dev / "nvidia-uvm").unlink(), "run `nvidia-modprobe -u -c 0` once"),
        (lambda machine, patch: patch.setattr(gpus, "_libraries", tuple), "does not find libcuda.so.1; run `ldconfig`"),
        (lambda machine, patch: close(machine), "give them mode 0666|opens for you"),
        (lambda machine, patch: patch.setenv("CUDA_VISIBLE_DEVICES", ""), "CUDA_VISIBLE_DEVICES='' names none"),
        (lambda machine, patch: patch.setenv("CUDA_VISIBLE_DEVICES", "7,MIG-1"), "'7,MIG-1' names none; unset it"),
    ],
)
def test_without_a_gpu_one_line_says_why(machine, monkeypatch, lack, said):
    lack(machine, monkeypatch)
    with pytest.raises(SandboxError, match=said) as error:
        usable_gpus()
    assert "\n" not in str(error.value) and "[rerun] asks for a GPU" in str(error.value)


def test_the_driver_s_libraries_are_those_that_the_linker_lists(tmp_path, monkeypatch):
    listed = "\n".join(
        f"\t{name} (libc6,x86-64) => /opt/driver/{name}"
        for name in (
            "libcuda.so.1",
            "libcudart.so.13",
            "libnvidia-ml.so.1",
            "libGL.so.1",
            "libnvidia-ptxjitcompiler.so.1",
        )
    )
    program = tmp_path / "ldconfig"
    program.write_text(f"#!/bin/sh\nprintf '%s' '3 libs found in cache\n{listed}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpus.shutil, "which", lambda name, path: str(program))
    assert [path.name for path in gpus._libraries()] == [
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-ptxjitcompiler.so.1",
    ]


@needs_sandbox
def test_one_gpu_s_files_are_there_exactly_where_it_is_asked_for(machine):
    seen = []
    for gpu in (None, *usable_gpus()):
        with contextlib.closing(Sandbox(gpu=gpu)) as sandbox:
            root = Path(f"/proc/{sandbox.pid}/root")
            below = [root / str(place)[1:] for place in (machine.lib / "libcuda.so.1", machine.pci, machine.devices)]
            read = [sorted(os.listdir(path)) if path.is_dir() else os.path.lexists(path) for path in below]
            seen.append((set(os.listdir(root / "dev")), read))
    (plain, nothing), (first, of_first), (second, of_second) = seen
    assert first - plain == {"nvidia3"} | COMMON and second - plain == {"nvidia0"} | COMMON
    assert not {name for name in plain if "nvidia" in name or name in ("dri", "sda")}
    assert nothing == [False] * 3
    every = sorted(os.listdir(machine.pci))  # names; of one there is more than the name
    assert of_first == [True, every, ["0000:01:00.0"]] and of_second == [True, every, ["0000:41:00.0"]]


INSIDE = """
import ctypes, mmap, threading
def opened(name):
    with open("/dev/" + name, "r+b", buffering=0) as file:
        return file.read(2)
files = {name: opened(name) for name in sorted(os.listdir("/dev")) if "nvidia" in name}
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
# As CUDA reserves addresses: 1 TiB, private, anonymous, not reserved in memory
reserved = libc.mmap(None, ctypes.c_size_t(1 << 40), 0, 0x4022, -1, ctypes.c_long(0)) != ctypes.c_void_p(-1).value
named = []
def name_itself():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:  # as `cuInit` names its threads
        file.write("cuda-thread")
    named.append(open(f"/proc/self/task/{threading.get_native_id()}/comm").read().strip())
thread = threading.Thread(target=name_itself)
thread.start()
thread.join()
return files, reserved, named, os.environ.get("CUDA_VISIBLE_DEVICES")
"""


@needs_sandbox
def test_student_code_opens_them_and_may_do_what_cuda_does(machine, warm):
    zero = bytes(2) if (machine.dev / "nvidia3").is_char_device() else b""
    for gpu, files, visible in ((None, set(), None), (usable_gpus()[0], {"nvidia3"} | COMMON, "0")):
        with warm.execute(Limits(seconds=60.0), gpu=gpu) as execution:
            (answer,) = execution.call(probe(INSIDE), "probe", None)
            assert answer == {"value": (dict.fromkeys(sorted(files), zero), True, ["cuda-thread"], visible)}
            (refused,) = execution.call(probe(FORBIDDEN), "probe", None)
        assert refused == {"value": ["memfd_create"] if gpu else []}


def test_processes_have_different_gpus_and_a_dead_one_s_is_free(machine):
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with one_gpu() as gpu:
                os.write(writer, bytes([gpu.minor]))
                threading.Event().wait(600)
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 1) == bytes([3])
        with one_gpu() as gpu:
            assert gpu.minor == 0
            waiting, got = threading.Event(), []

            def third():
                waiting.set()
                with one_gpu() as gpu:
                    got.append(gpu.minor)

            thread = threading.Thread(target=third)
            thread.start()
            waiting.wait(60)
            thread.join(3 * 0.2)
            assert thread.is_alive() and got == []
            os.kill(child, 9)
            thread.join(60)
            assert got == [3]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)
        os.waitpid(child, 0)
        for end in (reader, writer):
            os.close(end)


# Grading runs


@pytest.fixture
def rubric(tmp_path):
    path = tmp_path / "rubrics" / f"{LAB}.toml"
    path.parent.mkdir()
    path.write_text(RUBRIC.replace("seconds = 120", "seconds = 120\ngpu = true"))
    return load_rubric(path)


LISTING = (
    "import os\nos.makedirs('run', exist_ok=True)\nopen('run/assessment.out', 'w').write(' '.join(os.listdir('/dev')))"
)


def one_cell():
    """A repaired notebook whose only cell writes what is in /dev."""
    return SimpleNamespace(notebook=nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LISTING)]), edited={})


@pytest.fixture
def cuda_starts(monkeypatch):
    monkeypatch.setattr("autograde.grading.rerun._check", lambda gpu, context: None)


@needs_sandbox
def test_a_run_has_a_gpu_if_its_rubric_says_so(machine, lab_course, bench_of, rubric, cuda_starts):
    context = bench_of(lab_course, rubric)
    for asked in (True, False):
        structs.force_setattr(rubric.rerun, "gpu", asked)
        files = rerun(context, one_cell()).files["assessment.out"].decode().split()
        assert {name for name in files if "nvidia" in name} == ({"nvidia3"} | COMMON if asked else set())


@needs_sandbox
def test_cuda_that_does_not_start_is_one_line_and_nobody_s_zero(machine, lab_course, bench_of, rubric):
    context = bench_of(lab_course, rubric)
    with pytest.raises(
        SandboxError, match=r"CUDA does not start in the sandbox on GPU 0000:01:00.0 \(.+\); leave"
    ) as error:
        rerun(context, one_cell())
    assert "\n" not in str(error.value)


def test_runs_at_the_same_time_have_different_gpus(machine, rubric, cuda_starts):
    """Three workers, two GPUs. The first two runs wait for each other, so they are at the same time."""
    both, busy, seen = threading.Barrier(2, timeout=60), set(), []

    class Warm:
        @contextlib.contextmanager
        def execute(self, limits, gpu=None, **others):
            assert gpu not in busy
            busy.add(gpu)
            seen.append(gpu.minor)
            if len(seen) < 3:
                both.wait()
            yield SimpleNamespace(
                cells=lambda cells: [[{"id": cell["id"], "error": None} for cell in cells]],
                read=lambda names, limit: dict.fromkeys(names),
            )
            busy.remove(gpu)

    class Context(SimpleNamespace):
        def data(self, names):
            return {}

    context = Context(rubric=rubric, warm=Warm(), threads=1)
    threads = [threading.Thread(target=rerun, args=(context, one_cell())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen[:2]) == [0, 3] and len(seen) == 3


@needs_sandbox
def test_a_batch_refuses_before_anybody_is_graded(lab_course, hand_in, rubric, tmp_path, monkeypatch):
    hand_in("ada", False)
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "nothing")
    with pytest.raises(SandboxError, match=r"\[rerun\] asks for a GPU, and this machine has none") as error:
        grade_lab(LAB, lab_course, rubrics=tmp_path / "rubrics")
    assert "\n" not in str(error.value) and not (lab_course / "autograded_evidence").exists()
