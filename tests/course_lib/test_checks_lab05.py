"""Lab 05's visible checks: the reference passes, and typical mistakes are told apart."""

import pytest
import torch
from notebook_answers import answers
from torch import nn
from torch.nn import functional as F

import course_lib.models
from course_lib.checks import CheckFailed, check
from course_lib.checks.lab05_blocks import MISTAKES, arrangements, block_output, layers_of, wanted_layers
from course_lib.checks.lab05_training import factor
from course_lib.data.augment import CropAndFlip
from course_lib.optim import no_decay_groups

REFERENCE = answers("05_resnet_hw")
ANSWERS = {
    "shortcut": REFERENCE["make_shortcut"],
    "basic-block": REFERENCE["BasicBlock"],
    "bottleneck": REFERENCE["Bottleneck"],
    "network": REFERENCE["HomeworkResNet"],
    "crop-flip": REFERENCE["crop_and_flip"],
    "validation-set": REFERENCE["validation_set"],
    "recipe": (REFERENCE["parameter_groups"], REFERENCE["one_cycle"]),
    "transfer": REFERENCE["transfer"],
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab05.{exercise}", ANSWERS[exercise]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and not told.err


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab05.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# Blocks. The oracle of the formula is the library's block, which other tests compare with torchvision's.


@pytest.mark.parametrize(
    "kind, block", [("basic", course_lib.models.BasicBlock), ("bottleneck", course_lib.models.Bottleneck)]
)
@pytest.mark.parametrize("in_channels, channels, stride", [(8, 2, 1), (8, 8, 1), (5, 7, 2)])
def test_the_formula_is_the_librarys(kind, block, in_channels, channels, stride):
    torch.manual_seed(0)
    module = block(in_channels, channels, stride).train()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight)
            nn.init.uniform_(norm.bias)
    x = torch.randn(3, in_channels, 6, 6)
    convs, norms, projects = wanted_layers(kind, in_channels, channels, stride)
    values = [block_output(kind, x, c, n, stride, projects) for c, n in arrangements(layers_of(module), convs, norms)]
    with torch.no_grad():
        assert sum(torch.allclose(value, module(x), atol=1e-5) for value in values) == 1
    for mistake in MISTAKES:
        wrong = [
            block_output(kind, x, c, n, stride, projects, mistake)
            for c, n in arrangements(layers_of(module), convs, norms)
        ]
        assert not any(value is not None and torch.allclose(value, module(x), atol=1e-5) for value in wrong), mistake


def test_the_librarys_blocks_and_network_pass():
    check("lab05.shortcut", course_lib.models.residual_blocks.projection)
    check("lab05.basic-block", course_lib.models.BasicBlock)
    check("lab05.bottleneck", course_lib.models.Bottleneck)
    check("lab05.network", course_lib.models.HomeworkResNet)


def test_a_right_block_with_its_layers_in_another_order_passes():
    class Turned(nn.Module):
        def __init__(self, cin, c, stride=1):
            super().__init__()
            self.way = ANSWERS["shortcut"](cin, c, stride)
            self.last = nn.BatchNorm2d(c)
            self.second = nn.Conv2d(c, c, 3, padding=1, bias=False)
            self.rest = nn.Sequential(nn.Conv2d(cin, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU())

        def forward(self, x):
            way = self.way(x)
            return (way + self.last(self.second(self.rest(x)))).clamp(min=0)

    check("lab05.basic-block", Turned)


def block(**code):
    """A basic block in another style, with pieces replaced."""
    code = {
        "conv1": "nn.Conv2d(cin, c, 3, stride, 1, bias=False)",
        "conv2": "nn.Conv2d(c, c, 3, 1, 1, bias=False)",
        "way": "make_shortcut(cin, c, stride)",
        "first": "torch.relu(self.n1(self.c1(x)))",
        "second": "self.n2(self.c2(y))",
        "out": "torch.relu(y + self.way(x))",
    } | code
    text = f"""
class Block(nn.Module):
    def __init__(self, cin, c, stride=1):
        super().__init__()
        self.c1, self.c2, self.n1, self.n2 = {code["conv1"]}, {code["conv2"]}, nn.BatchNorm2d(c), nn.BatchNorm2d(c)
        self.way = {code["way"]}

    def forward(self, x):
        y = {code["first"]}
        y = {code["second"]}
        return {code["out"]}
"""
    names = {"nn": nn, "torch": torch, "F": F, "make_shortcut": ANSWERS["shortcut"]}
    exec(text, names)
    return names["Block"]


def test_another_style_passes():
    check("lab05.basic-block", block())


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"out": "torch.relu(y)"}, ("not added", "plain")),
        ({"out": "y + self.way(x)"}, ("last ReLU is missing",)),
        ({"out": "torch.relu(torch.relu(y) + self.way(x))"}, ("before the addition too",)),
        ({"out": "torch.relu(y) + self.way(x)"}, ("is before the addition",)),
        ({"first": "self.n1(self.c1(x))"}, ("no ReLU between",)),
        ({"second": "self.c2(y)", "out": "torch.relu(self.n2(y + self.way(x)))"}, ("before the addition, on F(x)",)),
        ({"out": "torch.relu(y + x if type(self.way) is nn.Identity else y + self.way[0](x))"}, ("a batch norm, and yours",)),
        ({"conv1": "nn.Conv2d(cin, c, 3, stride, 1)"}, ("has a bias", "bias=False")),
        ({"conv2": "nn.Conv2d(c, c, 1, bias=False)"}, ("should have convolutions", "2 × (6, 6, 3, 3)", "description above")),
        ({"conv1": "nn.Conv2d(cin, c, 3, 1, 1, bias=False)"}, ("cannot be added",)),
        ({"conv1": "nn.Conv2d(cin, c, 3, stride, bias=False)"}, ("padding 1",)),
        ({"way": "nn.Identity()"}, ("cannot be added", "channels")),
        ({"way": "nn.Sequential(nn.Conv2d(cin, c, 1, stride, bias=False), nn.BatchNorm2d(c))"}, ("the identity, without parameters",)),
        ({"out": "self.way(x)"}, ("has the right layers", "other values")),
        ({"out": "None"}, ("nothing (None)",)),
        ({"first": "torch.relu(self.n1(self.c1(x.clamp_(min=0))))"}, ("changes its input",)),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_basic_blocks(mistake, words):
    refused("basic-block", block(**mistake), *words)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda cin, c, s: None, ("nothing (None)",)),
        (lambda cin, c, s: nn.Identity(), ("expected (4, 10, 8, 6)", "channels")),
        (lambda cin, c, s: nn.Sequential(nn.Conv2d(cin, c, 1, s, bias=False), nn.BatchNorm2d(c)), ("the identity, without parameters",)),
        (lambda cin, c, s: nn.Identity() if (cin, s) == (c, 1) else nn.Conv2d(cin, c, 1, s, bias=False), ("a batch norm behind each",)),
        (
            lambda cin, c, s: nn.Identity() if (cin, s) == (c, 1) else nn.Sequential(nn.Conv2d(cin, c, 3, s, 1, bias=False), nn.BatchNorm2d(c)),
            ("kernel is 1×1",),
        ),
        (
            lambda cin, c, s: nn.Identity() if cin == c else nn.Sequential(nn.Conv2d(cin, c, 1, bias=False), nn.BatchNorm2d(c)),
            ("stride once",),
        ),
    ],
    ids=["none", "always identity", "never identity", "no norm", "3×3", "no stride"],
)  # fmt: skip
def test_wrong_shortcuts(answer, words):
    refused("shortcut", answer, *words)


def test_wrong_bottlenecks():
    class FirstStride(course_lib.models.Bottleneck):
        def __init__(self, cin, c, stride=1):
            super().__init__(cin, c, stride)
            self.conv1.stride, self.conv2.stride = (stride, stride), (1, 1)

    refused("bottleneck", FirstStride, "belongs to the 3×3")
    refused("bottleneck", course_lib.models.BasicBlock, "4 × channels")


# The network


def changed(change):
    """The library's network after a change."""

    def make(num_classes=100, in_channels=3, dropout=0.1):
        model = course_lib.models.HomeworkResNet(num_classes, in_channels, dropout)
        change(model)
        return model

    return make


def plain(model):
    for module in model.modules():
        if isinstance(module, course_lib.models.BasicBlock) and isinstance(module.downsample, nn.Identity):
            module.downsample = None


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda m: m.conv3_x[0].conv1.__setattr__("stride", (1, 1)) or m.conv3_x[0].downsample[0].__setattr__("stride", (1, 1)),
         ("after conv3_x", "(2, 64, 16, 16)", "stride 2")),
        (lambda m: m.conv4_x.__delitem__(3), ("conv4_x", "4 blocks", "right number of blocks")),
        (lambda m: m.conv5_x[0].downsample.__setitem__(0, nn.Conv2d(128, 256, 3, 2, 1, bias=False)), ("conv5_x", "first block")),
        (lambda m: m.stem.__setitem__(0, nn.Conv2d(3, 32, 3, padding=1)), ("3,559,556", "3,559,588", "stem has 960")),
        (lambda m: setattr(m, "pool", nn.AdaptiveAvgPool2d(1)), ("averaged", "maximum")),
        (lambda m: setattr(m, "pool", nn.MaxPool2d(4)), ("64×64", "AdaptiveMaxPool2d")),
        (plain, ("every residual branch at 0",)),
        (lambda m: setattr(m.conv2_x[1], "conv1", m.conv2_x[0].conv1), ("conv2_x", "its own weights")),
        (lambda m: m.stem.__delitem__(3), ("dropout", "should differ")),
        (lambda m: m.stem.__setitem__(3, nn.Dropout(0.1)), ("dropout=0.5", "is the argument")),
        (lambda m: delattr(m, "classifier"), ("no part named classifier",)),
    ],
    ids=["stride", "a block less", "projection", "bias", "average", "size of the pool", "plain", "shared", "no dropout",
         "fixed dropout", "no classifier"],
)  # fmt: skip
def test_wrong_networks(change, words):
    refused("network", changed(change), *words)


def test_a_layer_without_use():
    class Unused(course_lib.models.HomeworkResNet):
        def forward(self, x):
            x = self.conv4_x(self.conv3_x(self.conv2_x[1](self.conv2_x[1](self.stem(x)))))
            return self.classifier(self.pool(self.conv5_x(x)).flatten(1))

    refused("network", Unused, "never called in forward")


# Crops and flips


def crops(*, each=True, high=1, flip=0.5, mode="constant", dim=3, shared=False, seeded=True, inplace=False, same=False):
    def answer(images, padding, generator):
        n, _, height, width = images.shape
        generator = generator if seeded else None
        count = n if each else 1
        top, left = (torch.randint(2 * padding + high, (count,), generator=generator).expand(n) for _ in range(2))
        left = top if shared else left
        flips = torch.rand(n, generator=generator) < flip
        padded = F.pad(images, (padding,) * 4, mode=mode)
        out = images if inplace else torch.empty_like(images)
        for i in range(n):
            crop = padded[i, :, top[i] : top[i] + height, left[i] : left[i] + width]
            out[i] = crop.flip(dim - 1) if flips[i] else crop
        if same:
            generator.manual_seed(1)
        return out

    return answer


def test_other_right_crops_pass():
    check("lab05.crop-flip", crops())
    check("lab05.crop-flip", lambda images, padding, generator: CropAndFlip(padding)(images, generator))


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"each": False}, ("shifted alike", "torchvision's batched transforms")),
        ({"flip": 0}, ("all 2,000 images are unmirrored",)),
        ({"flip": 0.2}, ("half of the images",)),
        ({"high": 0}, ("never occur", "2·padding + 1")),
        ({"mode": "reflect"}, ("padded by reflect",)),
        ({"dim": 2}, ("upside down",)),
        ({"shared": True}, ("same offset from above and from the left",)),
        ({"seeded": False}, ("generator=generator",)),
        ({"inplace": True}, ("batch given was changed",)),
        ({"same": True}, ("do not seed",)),
    ],
    ids=str,
)
def test_wrong_crops(mistake, words):
    refused("crop-flip", crops(**mistake), *words)


def test_crops_that_are_none():
    refused("crop-flip", lambda images, padding, generator: None, "return the batch")
    refused("crop-flip", lambda images, padding, generator: images[:, :, 1:], "the shape stays")
    refused("crop-flip", lambda images, padding, generator: images.roll(1, 0).clone(), "its own image")


# The validation set


def pairs_of(tree, order=sorted, move=False, errors=True, rename=None):
    wnids = order((tree / "wnids.txt").read_text().split())
    found = []
    for line in (tree / "val" / "val_annotations.txt").read_text().splitlines():
        name, wnid = line.split("\t")[:2]
        path = tree / "val" / "images" / name
        if move and path.exists():
            path = path.rename(tree / "val" / name)
        if errors and not path.exists():
            raise ValueError(f"{name} is missing")
        found.append((path, wnid if rename else wnids.index(wnid)))
    if errors and len(found) != len(list((tree / "val" / "images").iterdir())):
        raise ValueError(
            f"{ {p.name for p in (tree / 'val' / 'images').iterdir()} - {p.name for p, _ in found} } has no line"
        )
    return found


def test_validation_sets():
    check("lab05.validation-set", pairs_of)
    refused("validation-set", lambda tree: pairs_of(tree, order=list), "order of wnids.txt", "sorted")
    refused("validation-set", lambda tree: pairs_of(tree, move=True, errors=False), "Leave the originals alone")
    refused("validation-set", lambda tree: pairs_of(tree, errors=False), "val_9.JPEG", "passes unnoticed")
    refused("validation-set", lambda tree: pairs_of(tree, rename=True), "the class is a number")
    refused("validation-set", lambda tree: pairs_of(tree)[1:], "3 pairs")
    refused("validation-set", lambda tree: None, "list of pairs")

    def wrong_error(tree):
        try:
            return pairs_of(tree)
        except ValueError:
            raise KeyError("val") from None

    refused("validation-set", wrong_error, "raise a ValueError")


def test_classes_by_their_occurrence():
    def answer(tree):
        seen = {}
        pairs = pairs_of(tree, rename=True)
        return [(path, seen.setdefault(wnid, len(seen))) for path, wnid in pairs]

    refused("validation-set", answer, "as they occur")


# Recipe

GROUPS, CYCLE = ANSWERS["recipe"]


def test_the_recipe_is_the_librarys_and_torchs():
    check("lab05.recipe", (no_decay_groups, CYCLE))
    weight = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    # PyTorch counts its last step, the 0, as one of its total; with a linear rise it is the same curve in the fall.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    for step in range(30):
        assert factor(10 + step, 40, 10) == pytest.approx(schedule.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    "groups, words",
    [
        (lambda m, d: [{"params": m.parameters(), "weight_decay": d}], ("bias or belongs", "weight decay 0")),
        (lambda m, d: [{"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": d}], ("in no group",)),
        (lambda m, d: [{"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.0},
                       {"params": [p for p in m.parameters() if p.dim() < 2], "weight_decay": d}], ("a weight of a convolution",)),
        (lambda m, d: [*no_decay_groups(m, d), {"params": m[0].weight}], ("does not take", "more than one")),
        (lambda m, d: None, ("does not take",)),
    ],
    ids=["all", "weights alone", "turned", "twice", "none"],
)  # fmt: skip
def test_wrong_groups(groups, words):
    refused("recipe", (groups, CYCLE), *words)


@pytest.mark.parametrize(
    "cycle, words",
    [
        (lambda s, t, w: s / w if s < w else factor(s, t, w), ("from 1/25",)),
        (lambda s, t, w: factor(min(s + 1, w), t, w) if s < w else factor(s, t, w), ("step ahead",)),
        (lambda s, t, w: factor(s, t, w) if s < w else 1 - (s - w) / (t - w), ("straight line",)),
        (lambda s, t, w: factor(s, t, w) if s < w else factor(s, t, 0), ("when the warm-up is over",)),
        (lambda s, t, w: factor(s, t, w) if w or s else 1 / 25 + s / w, ("divides by zero",)),
        (lambda s, t, w: None, ("return a number",)),
    ],
    ids=["from 0", "ahead", "line", "whole cosine", "no warm-up", "none"],
)
def test_wrong_schedules(cycle, words):
    refused("recipe", (GROUPS, cycle), *words)


# Transfer


def moved(*, new=True, outputs=None, rate=None, freeze=True, leave=True, head=True, reset=False):
    def answer(network, classes, lr_head, lr_body):
        body = list(network.body.parameters())
        if new:
            network.classifier = nn.Linear(6, outputs or classes)
        if reset:
            nn.init.normal_(body[0])
        groups = [{"params": network.classifier.parameters(), "lr": lr_head}] if head else []
        if lr_body == 0 and freeze:
            for parameter in body:
                parameter.requires_grad = False
        if lr_body or not leave:
            groups.append({"params": body, "lr": rate or lr_body})
        return groups

    return answer


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({}, None),
        ({"new": False}, ("old head",)),
        ({"outputs": 10}, ("7 outputs",)),
        ({"rate": 0.3}, ("learning rate 0.3, expected 0.01",)),
        ({"freeze": False}, ("frozen", "still asks for a gradient")),
        ({"leave": False}, ("frozen", "in a group")),
        ({"head": False}, ("classifier.weight is in no group",)),
        ({"reset": True}, ("body's weights changed",)),
    ],
    ids=str,
)
def test_transfers(mistake, words):
    if words is None:
        check("lab05.transfer", moved())
    else:
        refused("transfer", moved(**mistake), *words)
