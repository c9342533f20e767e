"""Lab 05's answers, right and wrong: blocks and network; `training.py` has the others."""

from __future__ import annotations

from types import SimpleNamespace

from torch import nn
from torch.nn import functional as F

from course_lib.exercises.answers.lab05.training import ANSWERS as OTHERS
from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _shortcut(projects=lambda c_in, c, stride: stride != 1 or c_in != c, kernel=1, norm=True, bias=False, strided=True):
    def make_shortcut(in_channels, channels, stride):
        if not projects(in_channels, channels, stride):
            return nn.Identity()
        step = stride if strided else 1
        conv = nn.Conv2d(in_channels, channels, kernel, stride=step, padding=kernel // 2, bias=bias)
        return nn.Sequential(conv, nn.BatchNorm2d(channels)) if norm else conv

    return make_shortcut


_RIGHT_SHORTCUT = _shortcut()


def _relu_after(out, way):
    return F.relu(out + way)


def _block(
    widths=lambda c: (c, c), kernels=(3, 3), strided=0, way=_RIGHT_SHORTCUT, inner=F.relu, last=_relu_after, bias=False,
    padding=True, norm_late=False, out=lambda c: c,
):  # fmt: skip
    """A class of blocks: its convolutions, the one with the stride, the shortcut, and what follows the last norm."""

    class Block(nn.Module):
        def __init__(self, in_channels, channels, stride=1):
            super().__init__()
            sizes = [in_channels, *widths(channels)]
            self.convs = nn.ModuleList(
                nn.Conv2d(sizes[n], sizes[n + 1], kernel, stride=stride if n == strided else 1,
                          padding=kernel // 2 if padding else 0, bias=bias)
                for n, kernel in enumerate(kernels)
            )  # fmt: skip
            self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes[1:])
            self.shortcut = way(in_channels, out(channels), stride)

        def forward(self, x):
            y = x
            for conv, norm in list(zip(self.convs, self.norms, strict=True))[:-1]:
                y = inner(norm(conv(y)))
            y = self.convs[-1](y)
            if norm_late:
                return F.relu(self.norms[-1](y + self.shortcut(x)))
            return last(self.norms[-1](y), self.shortcut(x))

    return Block


_SLIPS = {
    "plain": ("the input is not added: that is a plain block, F(x) without + x", dict(last=lambda out, way: F.relu(out))),
    "no last ReLU": ("the last ReLU is missing: it comes after the addition", dict(last=lambda out, way: out + way)),
    "ReLU before the addition too": ("there is a ReLU on F(x) before the addition too: then a block can only add, never "
        "take away", dict(last=lambda out, way: F.relu(F.relu(out) + way))),
    "ReLU before the addition": ("the ReLU is before the addition; move it after the addition",
        dict(last=lambda out, way: F.relu(out) + way)),
    "no inner ReLU": ("there is no ReLU between the convolutions: two linear maps in a row are one",
        dict(inner=lambda t: t)),
    "norm after the addition": ("the last batch norm comes before the addition, on F(x) alone", dict(norm_late=True)),
    "bias": ("a convolution has a bias; the batch norm behind it takes it away again: bias=False", dict(bias=True)),
    "no padding": ("the 3×3 convolution needs padding=1: without it the map loses its border", dict(padding=False)),
    "shortcut alone": ("F(x) is not added: yours returns the shortcut", dict(last=lambda out, way: F.relu(way))),
}  # fmt: skip


def _of_shortcut(diagnosis, **options):
    way = _shortcut(**options)
    return Mistake(diagnosis, way, _block(way=way))


basic = Answers((_RIGHT_SHORTCUT, _block()), {
    "nothing": Mistake("it returned nothing: is there a return?", lambda *_: None, lambda *_, **__: None),
    "always projects": _of_shortcut("where nothing has to match, the shortcut is the identity, without parameters",
        projects=lambda *_: True),
    "never projects": _of_shortcut("the shortcut is the identity even where channels or size change: two maps of "
        "different shape cannot be added", projects=lambda *_: False),
    "no stride": _of_shortcut("the shortcut needs the stride of the block, too", strided=False),
    "3×3": _of_shortcut("the shortcut's kernel is 1×1: it mixes channels and looks at no neighbour", kernel=3),
    "no norm": _of_shortcut("the shortcut's convolution has a batch norm behind it", norm=False),
    "bias in the shortcut": _of_shortcut("the shortcut's convolution has a bias; the batch norm behind it takes it away "
        "again: bias=False", bias=True),
    "both strided": Mistake("the stride belongs to one of the two convolutions, the first", None,
        _block(strided=1)),
    **{name: Mistake(why, None, _block(**options)) for name, (why, options) in _SLIPS.items()},
})  # fmt: skip

_NARROW = dict(widths=lambda c: (c, c, 4 * c), kernels=(1, 3, 1), strided=1, out=lambda c: 4 * c)

bottleneck = Answers((_block(**_NARROW),), {
    "nothing": Mistake("it returned nothing: is there a return?", lambda *_, **__: None),
    "no expansion": Mistake("the last 1×1 convolution goes up to 4 × channels",
        _block(**_NARROW | dict(widths=lambda c: (c, c, c), out=lambda c: c))),
    "stride in the first": Mistake("the stride belongs to the 3×3 convolution, as in torchvision; yours is in the first "
        "1×1", _block(**_NARROW | dict(strided=0))),
    "3×3 everywhere": Mistake("the first and the last convolution are 1×1", _block(**_NARROW | dict(kernels=(3, 3, 3)))),
    **{name: Mistake(why, _block(**_NARROW, **options)) for name, (why, options) in _SLIPS.items()},
})  # fmt: skip


def _stage(before, channels, blocks, stride, block=None, shared=False):
    block = block or _block()
    rest = [block(channels, channels) for _ in range(blocks - 1)]
    rest = [rest[0]] * len(rest) if shared else rest
    return nn.Sequential(block(before, channels, stride), *rest)


def _network(change=lambda model, given: None, forward=None, block=None):
    """The network of the exercise after a change."""

    class HomeworkResNet(nn.Module):
        def __init__(self, num_classes=100, in_channels=3, dropout=0.1):
            super().__init__()
            first = nn.Conv2d(in_channels, 32, 3, padding=1, bias=False)
            self.stem = nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(dropout))
            self.conv2_x = _stage(32, 32, 2, 1, block)
            self.conv3_x = _stage(32, 64, 4, 2, block)
            self.conv4_x = _stage(64, 128, 4, 2, block)
            self.conv5_x = _stage(128, 256, 2, 2, block)
            self.pool = nn.AdaptiveMaxPool2d(1)
            self.classifier = nn.Linear(256, num_classes)
            change(self, SimpleNamespace(classes=num_classes, channels=in_channels, dropout=dropout))

        def forward(self, x):
            if forward is not None:
                return forward(self, x)
            x = self.conv3_x(self.conv2_x(self.stem(x)))
            x = self.conv5_x(self.conv4_x(x))
            return self.classifier(self.pool(x).flatten(1))

    return HomeworkResNet


def _put(name, make):
    return lambda model, given: setattr(model, name, make(given))


def _stem(last, bias=False):
    return _put("stem", lambda given: nn.Sequential(
        nn.Conv2d(given.channels, 32, 3, padding=1, bias=bias), nn.BatchNorm2d(32), nn.ReLU(), *last(given)))  # fmt: skip


def _dropped_in_evaluation(model, given):
    model.stem[3].forward = lambda x: F.dropout(x, given.dropout)


network = Answers((_network(),), {
    "no stride": Mistake("the first block of conv3_x, conv4_x and conv5_x has stride 2, the others 1",
        _network(lambda m, given: [setattr(m, name, _stage(b, c, n, 1)) for name, b, c, n in (
            ("conv3_x", 32, 64, 4), ("conv4_x", 64, 128, 4), ("conv5_x", 128, 256, 2))])),
    "2 blocks each": Mistake("conv3_x and conv4_x have 4 blocks, each with weights of its own ([block] * 3 repeats one)",
        _network(lambda m, given: [setattr(m, name, _stage(b, c, 2, 2)) for name, b, c in (
            ("conv3_x", 32, 64), ("conv4_x", 64, 128))])),
    "bias in the stem": Mistake("the stem's convolution has a bias; the batch norm behind it takes it away again",
        _network(_stem(lambda given: [nn.Dropout(given.dropout)], bias=True))),
    "one block repeated": Mistake("the blocks of a stage share their weights: make a new block each time, [block] * 3 "
        "repeats one", _network(lambda m, given: [setattr(m, name, _stage(b, c, 4, 2, shared=True)) for name, b, c in (
            ("conv3_x", 32, 64), ("conv4_x", 64, 128))])),
    "plain blocks": Mistake("the blocks add no shortcut: that is a plain network",
        _network(block=_block(last=lambda out, way: F.relu(out)))),
    "pooling of a fixed size": Mistake("the pooling fits images of 32×32 alone: take AdaptiveMaxPool2d(1), or the mean "
        "or maximum over height and width", _network(_put("pool", lambda given: nn.MaxPool2d(4)))),
    "no pooling": Mistake("pool each channel of the last map to one number: the classifier takes 256", _network(
        lambda m, given: (setattr(m, "pool", nn.Identity()), setattr(m, "classifier", nn.Linear(4096, given.classes))))),
    "softmax": Mistake("return the classifier's output, the logits: the loss takes the softmax", _network(
        forward=lambda self, x: self.classifier(self.pool(self.conv5_x(self.conv4_x(self.conv3_x(self.conv2_x(
            self.stem(x)))))).flatten(1)).softmax(1))),
    "no dropout": Mistake("with 0.5 half of what was left becomes 0", _network(_stem(lambda given: []))),
    "fixed dropout": Mistake("half of what was left becomes 0", _network(_stem(lambda given: [nn.Dropout(0.1)]))),
    "dropout in evaluation": Mistake("two calls of the stem differ", _network(_dropped_in_evaluation)),
})  # fmt: skip

ANSWERS = {"basic-block": basic, "bottleneck": bottleneck, "network": network, **OTHERS}
