"""Speed-up, the knee, and parameters that are refused in one line."""

import math
import os
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from course_lib.metrics.speed import efficiency, saturation_knee, speedup
from course_lib.runs import labs, parameters
from course_lib.runs.labs import UnknownLabError, find_lab
from course_lib.runs.parameters import ParameterError, Rule, check_values, read_rules
from course_lib.system.hardware import Utilisation, available_cores


def one_line(raised, *words):
    text = str(raised.value)
    assert "\n" not in text and all(word in text for word in words), text


def test_speedup_and_efficiency_are_their_quotients():
    times = {4: 40.0, 1: 120.0, 2: 66.0, 8: 24.0}
    exact = {ranks: float(Fraction(120) / Fraction(seconds)) for ranks, seconds in times.items()}
    assert speedup(times) == pytest.approx(exact) and list(speedup(times)) == [1, 2, 4, 8]
    assert efficiency(times) == pytest.approx({1: 1.0, 2: 120 / 132, 4: 0.75, 8: 0.625})


@pytest.mark.parametrize("times", [{2: 1.0}, {}, {1: 0.0}, {1: 1.0, 2: -3.0}, {1: 1.0, 2: math.nan}])
def test_times_that_make_no_sense_are_one_line(times):
    for metric in (speedup, efficiency):
        with pytest.raises(ValueError) as raised:
            metric(times)
        one_line(raised)


def test_knee_is_the_closed_form_of_a_saturating_curve():
    a, b = 10.0, 0.6  # t(B) = a + b·B reaches 90 % of its limit at 9a/b = 150
    throughput = {size: size / (a + b * size) for size in (1, 50, 149, 151, 1000, 10**9)}
    assert saturation_knee(throughput) == 151
    assert saturation_knee(throughput, share=0.5) == 50  # a/b = 16.7
    assert saturation_knee({8: 5.0}) == 8
    with pytest.raises(ValueError, match="no measurements"):
        saturation_knee({})


CELL = """
num_gpus = 1             # [1, machine] ranks
epochs = 1               # [1, 10000] at most; the source: 40
batch_size = 1           # [1, train_samples / num_gpus] images per step
                         # and per rank
base_lr = 0.1            # (0.0, 1e6] learning rate
momentum = 0.0           # [0.0, 1.0) of SGD
target_accuracy = 0.85   # [0.0, 1.0]
sizes = [64, 128]        # [1, train_samples]
optimizer = "sgd"        # {sgd, novograd, lars}: ours is novograd
dataset = "fashion-mnist-small"  # {grey data} a staged data set
small = "mnist"          # {data up to 32x32}
train_samples = 0        # [0, dataset.train]
test_samples = 0         # [0, dataset.test]
output_dir = "# [1, 2]"  # the run folder
"""
RULES = read_rules(CELL)
GOOD = {}
exec(CELL, GOOD)
GOOD = {name: GOOD[name] for name in RULES}


def test_good_parameters_pass():
    assert set(RULES) == set(re.findall(r"^(\w+) =", CELL, re.M)) - {"output_dir"}
    check_values(GOOD, RULES)
    check_values({**GOOD, "base_lr": 1, "target_accuracy": 1.0, "epochs": 2.0, "anything": object()}, RULES)
    check_values({**GOOD, "num_gpus": 4, "batch_size": 1250, "train_samples": 5000}, RULES)


@pytest.mark.parametrize(
    "name, value, words",
    [
        *((name, value, ()) for name, values in {
            "num_gpus": (0, -2, "2", 1.5, True, 10**6, math.nan), "epochs": (0, math.nan, math.inf, 10_001, 2.5, "1"),
            "batch_size": (0, None), "base_lr": (0.0, -0.1, math.nan, math.inf), "momentum": (1.0, -0.1),
            "target_accuracy": (85, -0.1), "train_samples": (-1,), "sizes": ([], [64, 0], ["64"]),
        }.items() for value in values),
        ("batch_size", 5001, ("at most 5000 here", "5000 / 1", "images per step and per rank")),
        ("sizes", [64, 6000], ("6000", "5000")),
        ("train_samples", 6000, ("at most 5000 here", "training images of fashion-mnist-small")),
        ("test_samples", 1001, ("at most 1000 here", "test images of fashion-mnist-small")),
        ("optimizer", "novgrad", ("sgd, novograd, lars; did you mean novograd?",)),
        ("optimizer", 3, ("sgd, novograd, lars",)),
        ("dataset", "cifar10", ("fashion-mnist, mnist, fashion-mnist-small",)),
        ("dataset", "fashion-minst", ("did you mean fashion-mnist?",)),
        ("small", "tiny-imagenet-synthetic", ("cifar100-synthetic",)),
    ],
)  # fmt: skip
def test_each_bad_parameter_is_one_line_that_names_it(name, value, words):
    with pytest.raises(ParameterError) as raised:
        check_values({**GOOD, name: value}, RULES)
    one_line(raised, name, *words)


def test_a_batch_is_measured_against_the_images_that_a_rank_has(tmp_path, monkeypatch):
    with pytest.raises(ParameterError) as raised:
        check_values({**GOOD, "train_samples": 1024, "num_gpus": 2, "batch_size": 513}, RULES)
    one_line(raised, "batch_size = 513", "at most 512", "1024 / 2")
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    check_values({**GOOD, "dataset": "mnist", "batch_size": 10**6}, RULES)  # not staged: that is another error's line


def test_ranks_are_bounded_by_gpus_or_by_cores(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    check_values({"num_gpus": 4}, RULES)
    with pytest.raises(ParameterError) as raised:
        check_values({"num_gpus": 5}, RULES)
    one_line(raised, "num_gpus = 5", "4")
    check_values({"num_gpus": 5}, RULES, machine=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(parameters, "available_cores", lambda: 2)
    check_values({"num_gpus": 16}, RULES)
    with pytest.raises(ParameterError) as raised:
        check_values({"num_gpus": 17}, RULES)
    one_line(raised, "num_gpus = 17", "2 cores")


@pytest.mark.parametrize(
    "rule", ["[1, two words]", "[one, 2]", "[1, __import__('os')]", "[1, a.write]", "[1, 3e]", "(see, b)"]
)
def test_what_is_no_rule_is_refused(rule):
    with pytest.raises(ValueError):
        Rule(rule)


def test_a_rule_is_never_executed(tmp_path):
    """`lab run` reads the rules outside of the sandbox."""
    canary = tmp_path / "canary"
    for text in (f"[1, open({str(canary)!r}, 'w')]", "[1, a.b]", "(see above, please)", "[1]", "{}"):
        check_values({"a": 1}, read_rules(f"a = 1  # {text}"))
    assert read_rules("a = (") == {}
    assert not canary.exists()


def test_the_notebooks_first_cell_refuses_under_plain_papermill(repository, tmp_path):
    import nbformat
    import papermill

    notebook = nbformat.read(repository / "labs" / "12_assessment" / "12_assessment.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.id in ("parameters", "setup")]
    nbformat.write(notebook, tmp_path / "cells.ipynb")
    values = {"dataset": "cifar10-synthetic", "output_dir": str(tmp_path / "run"), "batch_size": 4096}
    paths = str(tmp_path / "cells.ipynb"), str(tmp_path / "out.ipynb")
    with pytest.raises(papermill.PapermillExecutionError) as raised:
        papermill.execute_notebook(*paths, values, progress_bar=False, cwd=str(tmp_path))
    assert raised.value.ename == "ParameterError" and "batch_size = 4096: must" in raised.value.evalue


@pytest.mark.parametrize(
    "name, expected", [("1", "01_single_gpu"), ("01", "01_single_gpu"), ("02_ddp", "02_ddp"), ("2", "02_ddp")]
)
def test_a_lab_is_found_by_number_or_name(name, expected, repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from anywhere
    lab = find_lab(name)
    assert lab.name == expected and lab.notebook == repository / "labs" / expected / f"{expected}.ipynb"


@pytest.mark.parametrize("name", ["99", "0", "01_single", "", "single_gpu", "../labs/01_single_gpu", "¹", "-1"])
def test_an_unknown_lab_is_one_line_with_those_there_are(name):
    with pytest.raises(UnknownLabError) as raised:
        find_lab(name)
    one_line(raised, repr(name), "01_single_gpu", "02_ddp")


def test_labs_of_the_working_folder_come_first(tmp_path, monkeypatch):
    (tmp_path / "labs" / "01_mine").mkdir(parents=True)
    (tmp_path / "labs" / "01_mine" / "01_mine.ipynb").write_text("{}")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert find_lab("1").notebook == tmp_path / "labs" / "01_mine" / "01_mine.ipynb"
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr(labs, "__file__", str(tmp_path / "site-packages" / "course_lib" / "runs" / "labs.py"))
    with pytest.raises(UnknownLabError) as raised:
        find_lab("1")
    one_line(raised, "no lab in", "lab start 1")


def test_profiles_overlay_defaults_and_overrides_overlay_profiles():
    lab = find_lab("1")
    defaults = lab.defaults()
    assert defaults["num_gpus"] == 1 and defaults["output_dir"] == "run" and defaults["base_lr"] == 0.1
    assert lab.parameters("laptop", {}) == defaults
    smoke = lab.profiles()["smoke"]
    assert lab.parameters("smoke", {}) == {**defaults, **smoke}
    assert lab.parameters("smoke", {"epochs": "7"}) == {**defaults, **smoke, "epochs": 7}


@pytest.mark.parametrize(
    "lab, name, text, value",
    [("1", "epochs", "3", 3), ("1", "base_lr", "1e-3", 0.001), ("1", "base_lr", "1", 1.0), ("1", "base_lr", ".5", 0.5),
     ("1", "momentum", "0", 0.0), ("1", "dataset", "mnist", "mnist"), ("1", "dataset", "1", "1"),
     ("1", "output_dir", "true", "true"), ("1", "epochs", 3, 3), ("2", "sync_batchnorm", "true", True)],
)  # fmt: skip
def test_text_is_read_as_yaml_of_the_default_s_type(lab, name, text, value):
    read = find_lab(lab).parameters("laptop", {name: text})[name]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    "lab, profile, overrides, words",
    [
        ("2", "laptop", {"sync_batchnorm": "1"}, ("sync_batchnorm",)),
        ("1", "nope", {}, ("'nope'", "smoke", "laptop", "gpu")),
        ("1", "smoke", {"lr": "1"}, ("'lr'", "base_lr")),
        ("1", "smoke", {"batchsize": "1"}, ("'batchsize'", "did you mean batch_size?")),
        ("1", "smoke", {"epochs": "2.5"}, ("epochs", "2.5")),
        ("1", "smoke", {"epochs": "many"}, ("epochs", "many")),
        ("1", "smoke", {"epochs": "true"}, ("epochs",)),
        ("1", "smoke", {"base_lr": "fast"}, ("base_lr", "fast")),
        ("1", "smoke", {"base_lr": "true"}, ("base_lr",)),
        ("1", "smoke", {"epochs": "[1"}, ("epochs", "[1")),
        ("1", "smoke", {"epochs": ""}, ("epochs",)),
        ("1", "smoke", {"seed": "0x"}, ("seed",)),
    ],
)
def test_an_unknown_profile_or_parameter_or_a_wrong_type_is_one_line(lab, profile, overrides, words):
    with pytest.raises(ParameterError) as raised:
        find_lab(lab).parameters(profile, overrides)
    one_line(raised, *words)


def test_available_cores_is_the_affinity_less_the_quota():
    affinity = len(os.sched_getaffinity(0))
    assert 1 <= available_cores() <= affinity
    quota = Path("/sys/fs/cgroup/cpu.max")
    if not quota.exists() or quota.read_text().startswith("max"):
        assert available_cores() == affinity


def test_utilisation_sees_a_busy_process():
    a, deadline = torch.randn(400, 400), time.monotonic() + 300
    with Utilisation(interval=0.05) as seen:  # PyTorch's work releases the interpreter's lock, as training does
        while len(seen.cpu) < 3 and time.monotonic() < deadline:
            a @ a
    assert len(seen.cpu) >= 3 and seen.mean_cpu == pytest.approx(sum(seen.cpu) / len(seen.cpu))
    assert 0 < seen.mean_cpu <= 100 and str(seen).startswith(f"CPU {seen.mean_cpu:.0f} %")
    assert all(math.isnan(value) or 0 <= value <= 100 for value in (seen.mean_gpu, Utilisation().mean_cpu))
