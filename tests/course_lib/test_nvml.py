"""What the library reads from NVML, of a machine with two GPUs that this one need not have."""

import time
import types

import pynvml
import pytest

from course_lib.system.hardware import Gpu, Utilisation, driver_cuda_version, driver_version, gpus, machine_line


@pytest.fixture
def two_gpus(monkeypatch):
    """pynvml's own names, with answers; the number of times that it is up."""
    up = []
    answers = {
        "nvmlInit": lambda: up.append(1), "nvmlShutdown": up.pop, "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index, "nvmlSystemGetCudaDriverVersion": lambda: 12040,
        "nvmlDeviceGetName": lambda handle: (b"H100", "H100")[handle],  # bytes in old versions
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=80 * 2**30, used=handle * 2**30),
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=(37, 99)[handle]),
        "nvmlSystemGetDriverVersion": lambda: "550.54",
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return up


def test_gpus_and_driver(two_gpus):
    assert gpus() == [Gpu(0, "H100", 80 * 2**30, 0), Gpu(1, "H100", 80 * 2**30, 2**30)]
    assert machine_line().endswith("2 × H100 (80 GiB)")
    assert driver_cuda_version() == (12, 4) and driver_version() == "550.54"
    assert two_gpus == []  # shut down each time


def test_the_first_gpu_s_utilisation(two_gpus):
    end = time.monotonic() + 300
    with Utilisation(interval=0.01) as busy:
        while len(busy.gpu) < 2 and time.monotonic() < end:
            time.sleep(0.01)
    assert set(busy.gpu) == {37.0} and busy.mean_gpu == 37 and str(busy).endswith(", GPU 37 %")
    assert two_gpus == []


def test_without_a_driver_there_are_none(monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert gpus() == [] and driver_cuda_version() is None and driver_version() is None
    assert machine_line().endswith("no GPU")
