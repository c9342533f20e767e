"""Which students' environment gets JupyterLab's GPU charts; nothing is installed here."""

import hub_install
import pytest


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """What would have been installed; ``driver`` puts an nvidia-smi on the PATH."""

    class Installed(list):
        def driver(self):
            program = tmp_path / "nvidia-smi"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)

    found = Installed()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(hub_install, "_pip", lambda environment, *words: found.append([*map(str, words)]))
    return found


def charts(folder, gpu):
    return hub_install.install_gpu_charts(folder, gpu, say=lambda _: None)


def test_without_a_driver_nothing_is_added(installed, tmp_path):
    assert charts(tmp_path, None) is False
    assert installed == []


def test_with_a_driver_the_charts_are_added_once(installed, tmp_path):
    installed.driver()
    assert charts(tmp_path, None) is True
    assert charts(tmp_path, None) is False
    [words] = installed
    assert words[-1].endswith("requirements-gpu.txt")
    assert words[:1] == ["-c"]  # what the labs pin stays


def test_who_installs_may_say_otherwise(installed, tmp_path):
    assert charts(tmp_path, True) is True
    (tmp_path / "other").mkdir()
    installed.driver()
    assert charts(tmp_path / "other", False) is False
    assert len(installed) == 1


def test_a_failed_attempt_is_made_again(installed, tmp_path, monkeypatch):
    def fail(*_):
        raise hub_install.InstallError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(hub_install, "_pip", fail)
        with pytest.raises(hub_install.InstallError):
            charts(tmp_path, True)
    assert charts(tmp_path, True) is True


def test_what_is_added_is_pinned_and_is_no_pytorch(deploy):
    lines = [line for line in (deploy / "requirements-gpu.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line.partition("==")[0] for line in lines] == ["jupyterlab-nvdashboard"]
    students = (deploy / "requirements-students.txt").read_text()
    assert "nvdashboard" not in students
