"""Lab 05's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
import torch
from graded_lab import GradedLab, cases, loses
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F

import course_lib.models
from autograde.grading.networks import DRIVER
from autograde.sandbox.limits import Limits

LAB = "05_resnet_hw"
POINTS = {
    "shortcut": 3, "basic-block": 5, "bottleneck": 4, "network": 8, "crop-flip": 5, "validation-set": 4, "recipe": 5, "transfer": 4,
}  # fmt: skip
PARTS = {
    "shortcut": "identity channels stride layers",
    "basic-block": "identity channels stride layers",
    "bottleneck": "identity channels stride layers",
    "network": "shapes parameters identity dropout",
    "crop-flip": "crops offsets flips generator",
    "validation-set": "classes untouched errors",
    "recipe": "groups rise fall without",
    "transfer": "head rates frozen",
}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2) if exercise == "network" else (1, 2, 3):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    runs = {cell: points for cell, points in in_notebook.items() if cell.startswith("run-")}
    assert {run.cell: run.max_points for run in lab.rubric.runs} == runs
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == {
        cell: points for cell, points in in_notebook.items() if cell not in runs
    }


RIGHT = {
    "shortcut": """
from course_lib.models.residual_blocks import projection as make_shortcut
""",
    "basic-block": """
class BasicBlock(nn.Module):
    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        self.way = make_shortcut(in_channels, channels, stride)
        self.branch = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return (self.way(x) + self.branch(x)).clamp(min=0)
""",
    "bottleneck": """
from course_lib.models import Bottleneck
""",
    "network": """
from course_lib.models import HomeworkResNet
""",
    "crop-flip": """
from course_lib.data.augment import CropAndFlip

def crop_and_flip(images, padding, generator):
    return CropAndFlip(padding)(images, generator)
""",
    "validation-set": """
import csv

def validation_set(tree):
    names = sorted(line.strip() for line in open(tree / "wnids.txt"))
    images = {path.name: path for path in (tree / "val" / "images").iterdir()}
    pairs = []
    with open(tree / "val" / "val_annotations.txt", newline="") as file:
        for row in csv.reader(file, delimiter="\\t"):
            if row[0] not in images:
                raise ValueError("missing " + row[0])
            pairs.append([str(images.pop(row[0])), names.index(row[1])])
    if images:
        raise ValueError(f"no line for {list(images)}")
    return pairs
""",
    "recipe": """
from course_lib.optim import no_decay_groups as parameter_groups
import numpy as np

def one_cycle(step, total, warm):
    return float(np.interp(step, [0, warm], [0.04, 1])) if step < warm else np.cos((step - warm) / (total - warm) * np.pi / 2).item() ** 2
""",
    "transfer": """
def transfer(network, classes, lr_head, lr_body):
    head = nn.Linear(network.classifier.weight.shape[1], classes)
    network.classifier = head
    mine = {id(parameter) for parameter in head.parameters()}
    body = [parameter for parameter in network.parameters() if id(parameter) not in mine]
    for parameter in body:
        parameter.requires_grad = lr_body > 0
    groups = [dict(params=[parameter], lr=lr_body) for parameter in body if lr_body]
    return groups + [dict(params=head.parameters(), lr=lr_head)]
""",
}


@pytest.mark.parametrize("exercise", POINTS)
def test_another_style_gets_every_point(lab, exercise):
    judged = (lab.with_library() if "course_lib" in RIGHT[exercise] else lab).judge(exercise, RIGHT[exercise])
    assert judged.points == judged.max_points, judged.reasons


OWN_NAMES = """
class Stem(nn.Module):
    def __init__(self, channels, share):
        super().__init__()
        self.share, self.norm = share, nn.BatchNorm2d(32, momentum=0.01)
        self.conv = nn.Conv2d(channels, 32, 3, padding="same", bias=False)

    def forward(self, x):
        return F.dropout(F.relu(self.norm(self.conv(x)), inplace=True), self.share, self.training)

class Stage(nn.Module):
    def __init__(self, before, channels, blocks, stride):
        super().__init__()
        self.rest = nn.ModuleList(BasicBlock(channels, channels) for _ in range(blocks - 1))
        self.entry = BasicBlock(before, channels, stride)

    def forward(self, x):
        x = self.entry(x)
        for block in self.rest:
            x = block(x)
        return x

class HomeworkResNet(nn.Module):
    def __init__(self, num_classes=100, in_channels=3, dropout=0.1):
        super().__init__()
        self.classifier = nn.Linear(256, num_classes)
        self.conv5_x, self.conv4_x = Stage(128, 256, 2, 2), Stage(64, 128, 4, 2)
        self.conv3_x, self.conv2_x = Stage(32, 64, 4, 2), Stage(32, 32, 2, 1)
        self.stem = Stem(in_channels, dropout)

    def forward(self, x):
        for part in (self.stem, self.conv2_x, self.conv3_x, self.conv4_x, self.conv5_x):
            x = part(x)
        return self.classifier(x.amax((2, 3)))
"""


def test_a_network_with_its_own_names_and_order_gets_every_point(lab):
    judged = lab.judge("network", OWN_NAMES, basic_block=RIGHT["basic-block"])
    assert judged.points == judged.max_points, judged.reasons


@pytest.mark.parametrize("exercise", [exercise for exercise in POINTS if "course_lib" in RIGHT[exercise]])
def test_the_library_s_solution_earns_nothing(lab, exercise):
    judged = lab.judge(exercise, RIGHT[exercise])
    assert judged.points == 0 and judged.flags == ["crash"]
    assert all("is withheld here: an exercise of this lab" in reason for reason in judged.reasons.values())


BLOCK = "identity channels stride"
WRONG = {
    "always a projection": (
        "shortcut", "stride == 1 and in_channels == channels", "False", "identity layers", "other layers",
    ),
    "a bias": ("shortcut", "bias=False", "bias=True", "layers", "with a bias"),
    "no stride": ("shortcut", "stride=stride, ", "", "stride", "not the formula's"),
    "three by three": (
        "shortcut", "kernel_size=1, stride=stride", "kernel_size=3, padding=1, stride=stride", "channels stride layers", "other layers",
    ),
    "no norm": ("shortcut", "nn.Sequential(projection, nn.BatchNorm2d(channels))", "projection", "channels stride layers", "other layers"),
    "a plain block": ("basic-block", "out + self.shortcut(x)", "out", BLOCK, "not the formula's"),
    "no last ReLU": ("basic-block", "F.relu(out + self.shortcut(x))", "out + self.shortcut(x)", BLOCK, "not the formula's"),
    "ReLU too early": ("basic-block", "F.relu(out + self.shortcut(x))", "F.relu(out) + self.shortcut(x)", BLOCK, "not the formula's"),
    "no inner ReLU": ("basic-block", "F.relu(self.bn1(self.conv1(x)))", "self.bn1(self.conv1(x))", BLOCK, "not the formula's"),
    "an identity only": (
        "basic-block", "make_shortcut(in_channels, channels, stride)", "nn.Identity()", "channels stride layers", "no output in some case",
    ),
    "a bias in the block": ("basic-block", "padding=1, bias=False)\n        self.bn2", "padding=1)\n        self.bn2", "layers", "with a bias"),
    "a layer in vain": (
        "basic-block", "self.bn2 = ", "self.more = nn.Linear(3, 3)\n        self.bn2 = ", "layers", "other layers",
    ),
    "x is changed": (
        "basic-block", "out = F.relu(self.bn1(self.conv1(x)))", "x = x.mul_(2) / 2\n        out = F.relu(self.bn1(self.conv1(x)))",
        BLOCK, "the input is changed",
    ),
    "the stride in the first": (
        "bottleneck", "channels, 1, bias=False)\n        self.across = nn.Conv2d(channels, channels, 3, stride=stride, ",
        "channels, 1, stride=stride, bias=False)\n        self.across = nn.Conv2d(channels, channels, 3, ", "stride", "not the formula's",
    ),
    "no expansion": ("bottleneck", "4 * channels", "channels", BLOCK + " layers", "not the formula's"),
    "average": ("network", "AdaptiveMaxPool2d", "AdaptiveAvgPool2d", "identity", "with the residual branches at 0"),
    "pooling of a fixed size": ("network", "AdaptiveMaxPool2d(1)", "MaxPool2d(4)", "shapes identity", "another shape"),
    "one block less": ("network", "stage(64, 128, 4, 2)", "stage(64, 128, 3, 2)", "parameters", "another number"),
    "no stride in a stage": ("network", "stage(128, 256, 2, 2)", "stage(128, 256, 2, 1)", "shapes identity", "another shape"),
    "no dropout": ("network", ", nn.Dropout(dropout)", "", "dropout", "does not drop"),
    "dropout of a fixed share": ("network", "nn.Dropout(dropout)", "nn.Dropout(0.1)", "dropout", "does not drop"),
    "a bias in the stem": ("network", "padding=1, bias=False)", "padding=1)", "parameters", "another number"),
    "one draw for all": (
        "crop-flip", "(2, count), generator=generator, device=device)", "(2, 1), generator=generator, device=device).expand(2, count)",
        "offsets generator", "not drawn for each image",
    ),
    "one flip for all": ("crop-flip", "(count, 1), generator", "(1, 1), generator", "flips", "not each image"),
    "an offset short": ("crop-flip", "2 * padding + 1, (2", "2 * padding, (2", "offsets", "not uniform"),
    "its own generator": (
        "crop-flip", "    count, _,", "    generator = torch.Generator().manual_seed(3)\n    count, _,", "generator", "in a row the same one",
    ),
    "the global generator": ("crop-flip", "generator=generator, ", "", "generator", "equal generators give different"),
    "a reflected border": ("crop-flip", "(padding,) * 4)", "(padding,) * 4, mode='reflect')", "crops offsets flips generator", "no crop"),
    "unsorted": ("validation-set", "sorted((tree", "list((tree", "classes untouched errors", "another class"),
    "moved": (
        "validation-set", "    if odd",
        "    for path in there.values():\n        path.with_suffix('.old').write_text('x'), path.write_text('y')\n    if odd", "untouched", "moved",
    ),
    "unnamed": ("validation-set", "odd[0]}: ", "''}: ", "errors", "raises no ValueError"),
    "everything decays": ("recipe", '"weight_decay": 0.0', '"weight_decay": weight_decay', "groups", "wrong weight decay"),
    "others left out": ("recipe", ', {"params": others, "weight_decay": 0.0}', "", "groups", "in no group"),
    "a rise from 0": ("recipe", "1 / 25 + (1 - 1 / 25) * ", "", "rise", "during the warm-up"),
    "a straight fall": ("recipe", "0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))", "1 - (step - warm) / (total - warm)",
                        "fall without", "after the warm-up"),
    "no case without": ("recipe", "if step < warm", "if step < warm or 1 / warm < 0", "without", "divides by zero"),
    "the old head": ("transfer", "    network.classifier = nn.Linear(network.classifier.in_features, classes)\n", "", "head", "the old one"),
    "one rate": ("transfer", '"lr": lr_body', '"lr": lr_head', "rates", "wrong learning rate"),
    "not frozen": ("transfer", "requires_grad_(False)", "requires_grad_(True)", "frozen", "asks for a gradient"),
    "frozen and in a group": ("transfer", "        return groups\n", "", "frozen", "in a group"),
}  # fmt: skip


@pytest.mark.parametrize(
    "mistake", cases(WRONG, "shortcut basic-block bottleneck crop-flip validation-set recipe transfer")
)
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


def test_a_plain_block_costs_the_network_its_identity_path_alone(lab):
    judged = lab.judge("network", basic_block=lab.edited("basic-block", "out + self.shortcut(x)", "out"))
    assert "identity" in judged.lost and "shapes" not in judged.lost, judged.reasons


@pytest.mark.parametrize("exercise", POINTS)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values())
    assert judged.flags == ["missing"]


LURKING = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

class Answer(nn.Module):
    def __init__(self, *args, **options):
        super().__init__()
    def forward(self, x):
        return VALUE
"""
VALUES = {
    "None": "None",
    "equal to everything": "Anything(0)",
    "NaN": "float('nan')",
    "a NaN tensor": "torch.full((3, 3), float('nan'))",
}
NAMES = {
    "shortcut": "make_shortcut = Answer",
    "basic-block": "BasicBlock = Answer",
    "bottleneck": "Bottleneck = Answer",
    "network": "HomeworkResNet = Answer",
    "crop-flip": "crop_and_flip = lambda *a: VALUE",
    "validation-set": "validation_set = lambda tree: VALUE",
    "recipe": "parameter_groups = one_cycle = lambda *a: VALUE",
    "transfer": "transfer = lambda *a: VALUE",
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("exercise", POINTS)
def test_returning_what_compares_equal_gets_nothing(lab, exercise, value):
    text = f"{LURKING.replace('VALUE', VALUES[value])}\n{NAMES[exercise].replace('VALUE', VALUES[value])}\n"
    judged = lab.judge(exercise, text)
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


def students_network(lab, classes):
    names = {"nn": nn, "F": F}
    for exercise in ("shortcut", "basic-block", "network"):
        exec(lab.solution(exercise), names)
    return names["HomeworkResNet"](classes)


@pytest.mark.parametrize("whose, classes", [("library", 100), ("student", 100), ("student", 200)])
def test_weights_of_a_run_are_loaded_whichever_network_it_trained(lab, whose, classes):
    torch.manual_seed(0)
    model = (course_lib.models.HomeworkResNet(classes) if whose == "library" else students_network(lab, classes)).eval()
    images = torch.randint(256, (40, 32, 32, 3), dtype=torch.uint8)
    given = {
        "weights": save(model.state_dict()), "network": "notebook:graded_network", "numbers": {}, "images": images,
        "scale": [1 / 255], "shift": [0.0], "batch": 20, "channels": 3, "classes": classes,
    }  # fmt: skip
    with lab.warm.execute(Limits(seconds=60), data={}) as execution:
        execution.cells(lab.cells)
        (reply,) = execution.call(DRIVER, "predict", given)
    mean, std = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)) if classes == 100 else (
        (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))  # fmt: skip
    normalised = (images.permute(0, 3, 1, 2) / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    with torch.no_grad():
        assert (reply["value"] == model(normalised).argmax(1)).double().mean() > 0.95, reply
