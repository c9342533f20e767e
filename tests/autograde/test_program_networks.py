"""Weights of a program's run in the network that the submitted program makes: own, borrowed, forged, of another, with tricks."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save
from test_networks import SEED, chosen, fit_head

import autograde.grading.held_out
from autograde.grading.evidence import read_program
from autograde.grading.held_out import program_cell, try_weights
from autograde.grading.run_judging import judge_run
from autograde.rubric.schema import find_rubric
from autograde.sandbox.limits import Limits
from autograde.submission.run_folder import EvidenceError
from course_lib.data.batches import load
from course_lib.runs.run_evidence.criteria import KINDS
from course_lib.runs.run_evidence.evidence import Evidence, HeldOut, parse_evidence
from course_lib.runs.run_evidence.run_record import RunRecord

LAB, DATA, IMAGES = "05_resnet_hw", "cifar100-synthetic", 24
RULES = next(run for run in find_rubric(LAB).runs if run.id == "resnet_cifar100")
SOLUTION = Path(__file__).parents[2] / "course_lib" / "exercises" / "answers" / "programs" / "resnet_cifar100.py"
OWN = """
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32)
        self.head = nn.Linear(32 * 7 * 7, classes)

    def forward(self, x):
        return self.head(nn.functional.max_pool2d(self.norm(self.first(x - 0.5)), 2).flatten(1))

def build_network(num_classes):
    return Mine(num_classes)

def train(run):
    raise RuntimeError("nobody trains here")

if __name__ == "__main__":
    raise SystemExit("the program was started")
"""


def made_by(text):
    names = {"__name__": "program"}
    exec(text, names)
    torch.manual_seed(0)
    return names["build_network"](100)


@pytest.fixture
def tried(warm, monkeypatch):
    """Tries weights in the network of a program's text, on images that are not changed."""
    monkeypatch.setattr(autograde.grading.held_out, "augment", lambda images, random: np.array(images))

    def tried(text, weights):
        record = RunRecord(LAB, {}, 1, "cpu", DATA, "synthetic", "made up", datetime.now(UTC), None, False)
        rules = msgspec.structs.replace(RULES.model, datasets=(DATA,), images=IMAGES)
        evidence = Evidence(LAB, record, EvidenceError("none"), EvidenceError("none"))
        cells = [program_cell(RULES, text.encode())]
        return try_weights(rules, evidence, weights, warm, np.random.default_rng(SEED), Limits(seconds=120), cells, {})

    return tried


def knowing(text):
    """Weights of a program's network that is right on each of the images."""
    model, split = made_by(text), chosen(load(DATA), IMAGES)
    assert fit_head(model, split.images.float() / 255, split.labels) == IMAGES
    return save({name: tensor.contiguous() for name, tensor in model.state_dict().items()})


def of_own_network(held):
    return KINDS["own_network"].check(Evidence(LAB, None, None, None, held), {"threshold": 0.2})


def test_a_network_of_ones_own(tried):
    held = tried(OWN, knowing(OWN))
    assert (held.accuracy, held.borrowed) == (1.0, "") and of_own_network(held).passed


def test_our_solution_s_network(tried):
    model = made_by(SOLUTION.read_text())
    held = tried(SOLUTION.read_text(), save(model.state_dict()))
    assert held.images == IMAGES and held.borrowed == ""
    assert "has not learned" in of_own_network(replace(held, correct=0)).reason


@pytest.mark.parametrize("name", ["sync_sgd_cifar100", "async_sgd_cifar100"])
def test_lab_07_s_solutions_make_networks(tried, name):
    text = SOLUTION.with_name(f"{name}.py").read_text()
    assert (
        next(run for run in find_rubric("07_sync_async_sgd").runs if run.id == name).model.network
        == RULES.model.network
    )
    model = made_by(text)
    held = tried(text, save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))
    assert held.images == IMAGES and not held.borrowed


BORROWED = {
    "torchvision's": """
from course_lib.system.torchvision_import import import_torchvision

def build_network(num_classes):
    return import_torchvision().models.resnet18(num_classes=num_classes)
""",
    "the library's": """
from course_lib.models import HomeworkResNet as build_network
""",
    "a class of one's own around the library's": """
from course_lib.models import HomeworkResNet

class Mine(HomeworkResNet):
    pass

def build_network(num_classes):
    return Mine(num_classes)
""",
}


@pytest.mark.parametrize("whose", BORROWED)
def test_another_s_network_costs_its_part(tried, whose):
    held = tried(BORROWED[whose], knowing(BORROWED[whose]))
    found = of_own_network(held)
    assert held.accuracy == 1.0 and not found.passed and "the network is not your own: it has a '" in found.reason


FAILS = {
    "weights of another network": (OWN.replace("32, 3, stride=2", "32, 5, stride=2, padding=1"), "size mismatch"),
    "no build_network": (OWN.replace("def build_network", "def make_network"), "build_network"),
    "no classes": (OWN.replace("return Mine(num_classes)", "return None"), "NoneType"),
    "the library's answer": ("from course_lib.exercises.answers.programs.resnet_cifar100 import build_network", "build_network"),
    "reads the labels": (
        OWN.replace("return self.head(", "from data_prep.staged import read; read('cifar100').arrays['test_labels']; return self.head("),
        "cifar100",
    ),
    "a list of one's own": (OWN.replace("return self.head(", "return [1] or ("), "list"),
    "not Python": ("def build_network(:", "build_network"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILS)
def test_a_program_that_predicts_nothing_is_one_line(tried, name):
    text, words = FAILS[name]
    with pytest.raises(EvidenceError) as error:
        tried(text, save(made_by(OWN).state_dict()))
    line = str(error.value)
    assert "does not fit the network that build_network of the submitted program makes" in line and "\n" not in line
    assert words in line


def points_of(make_run, folder, accuracies, held):
    run = make_run(accuracies, lab=LAB, program="resnet_cifar100")
    run.record["data"]["name"] = "cifar100"
    folder = run.write(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".safetensors"}
    flags = []
    results = judge_run(RULES, replace(parse_evidence(LAB, files), held_out_or_error=held), flags)
    return {result.id: result.points for result in results}, [flag.kind for flag in flags], results


def test_an_honest_run_earns_everything_and_one_that_learned_nothing_nothing(make_run, tmp_path):
    points, flags, _ = points_of(make_run, tmp_path / "a", [0.3, 0.5, 0.62], HeldOut(1240, 2000, "cifar100", "copy"))
    assert sum(points.values()) == RULES.max_points == 12 and not flags
    points, flags, _ = points_of(make_run, tmp_path / "b", [0.0, 0.0], HeldOut(20, 2000, "cifar100", "copy"))
    assert sum(points.values()) == 0 and not flags


def test_a_curve_that_claims_more_than_the_predictions_earns_nothing(make_run, tmp_path):
    points, flags, results = points_of(make_run, tmp_path, [0.4, 0.7], HeldOut(620, 2000, "cifar100", "copy"))
    assert sum(points.values()) == 0 and flags == ["forged"]
    assert "the submitted weights score 0.310" in results[0].reason


def test_another_s_network_costs_two_points_alone(make_run, tmp_path):
    held = HeldOut(1240, 2000, "cifar100", "copy", "torchvision.models.resnet.ResNet")
    points, flags, _ = points_of(make_run, tmp_path, [0.3, 0.5, 0.62], held)
    assert (sum(points.values()), points["own-network"]) == (10, 0) and not flags


def test_the_program_is_read_from_beside_the_notebook(tmp_path):
    submission = tmp_path / "submitted" / "ada" / LAB
    submission.mkdir(parents=True)
    path = submission / "resnet_cifar100.py"
    assert "resnet_cifar100.py" in str(read_program(submission, "resnet_cifar100"))  # there is none
    path.write_text(OWN)
    assert read_program(submission, "resnet_cifar100") == OWN.encode()
    path.unlink()
    path.symlink_to(SOLUTION)
    assert isinstance(read_program(submission, "resnet_cifar100"), EvidenceError)
    with pytest.raises(EvidenceError, match=r"resnet_cifar100\.py is not UTF-8"):
        program_cell(RULES, b"\xff\xfe")
