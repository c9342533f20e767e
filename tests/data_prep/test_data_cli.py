import subprocess
import sys

import pytest
from click.testing import CliRunner

from data_prep.cli import data


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Runs ``lab data ...`` on an empty root."""
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "root"))
    return lambda *words: CliRunner().invoke(data, [str(word) for word in words])


def test_list_shows_state_numbers_provenance_and_source(lab, toy, tmp_path, mirror):
    lines = lab("list").stdout.splitlines()
    assert lines[0] == f"data root: {tmp_path / 'root'}"
    assert " ".join(lines[1].split()) == "fashion-mnist not staged: run `lab data fetch fashion-mnist`"
    assert lines[3].startswith("fashion-mnist-small  shipped  5000 + 1000    official   from shipped subset")
    assert lab("fetch", "toy", "--mirror", mirror).exit_code == 0
    assert " ".join(toy_line(lab("list").stdout).split()) == f"toy staged 40 + 10 official from mirror {mirror}"
    (tmp_path / "root" / "toy" / "train_images.npy").write_bytes(b"")
    assert "damaged: " in toy_line(lab("list").stdout)


def toy_line(listing):
    (line,) = [line for line in listing.splitlines() if line.startswith("toy ")]
    return line


def test_root_option_goes_before_the_environment(lab, toy, tmp_path, mirror):
    other = tmp_path / "other"
    assert lab("fetch", "toy", "--mirror", mirror, "--root", other).exit_code == 0
    assert (other / "toy" / "dataset.json").is_file() and not (tmp_path / "root").exists()
    assert lab("verify", "toy", "--root", other).stdout == "toy: 4 files have not changed since they were staged\n"
    assert lab("verify", "toy").exit_code == 1


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_bad_arguments_end_with_two(lab, toy, command, tmp_path):
    result = lab(command, "toy", "nonsense")
    assert result.exit_code == 2
    assert "'nonsense'; there are fashion-mnist, mnist, fashion-mnist-small" in result.stderr
    assert lab(command).exit_code == 2


def test_fetch_of_an_unknown_name_does_no_work(lab, toy, tmp_path, mirror):
    assert lab("fetch", "toy", "nonsense", "--mirror", mirror).exit_code == 2
    assert not (tmp_path / "root").exists()


def test_a_mirror_that_is_not_there_is_a_bad_argument(lab, toy, tmp_path):
    result = lab("fetch", "toy", "--mirror", tmp_path / "missing")
    assert result.exit_code == 2 and "missing" in result.stderr


def test_failures_end_with_one_and_one_line(lab, toy, tmp_path, mirror):
    result = lab("verify", "mnist")
    assert result.exit_code == 1
    assert result.stderr == f"Error: mnist is not staged in {tmp_path / 'root'}: run `lab data fetch mnist`\n"
    result = lab("fetch", "toy")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and result.stderr.startswith("Error: toy: none of")
    # The others are done all the same.
    result = lab("verify", "mnist", "fashion-mnist-small")
    assert result.exit_code == 1 and "fashion-mnist-small: 4 files" in result.stdout


def test_data_prep_alone_without_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['data', 'list', '--root', sys.argv[1]]; import runpy, atexit;"
        "atexit.register(lambda: print('torch' in sys.modules));"
        "runpy.run_module('data_prep', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"data root: {tmp_path}" and done.stdout.splitlines()[-1] == "False"
