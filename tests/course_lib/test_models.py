"""The wide residual network against the multi-GPU tutorial's list of layers, the small CNN, the sparse dropout.

And what no network can be built from.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.models import ParallelSGDNet, ResNetV2, SmallCNN, SparseDropout, WideResNet, cifar_resnet


def parameters_by_hand(widths, in_channels, classes):
    """The multi-GPU tutorial: cbrblock = 3×3 conv without bias + BN; a stage = a block with a 1×1 shortcut with bias, one without."""

    def conv_bn(cin, cout):
        return 9 * cin * cout + 2 * cout

    count, before = conv_bn(in_channels, 16), 16
    for width in widths:
        count += conv_bn(before, width) + conv_bn(width, width) + (before * width + width)
        count += 2 * conv_bn(width, width)
        before = width
    return count + before * classes + classes


@pytest.mark.parametrize(
    "widths, channels, classes", [((160, 320, 640), 3, 100), ((16, 32, 64), 1, 10), ((16, 5, 7), 2, 3)]
)
def test_parameters_are_those_of_the_documents_layers(widths, channels, classes):
    with torch.device("meta"):
        model = WideResNet(widths, channels, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters_by_hand(widths, channels, classes)


def test_the_default_is_the_documents_network():
    with torch.device("meta"):
        model = WideResNet()
    assert sum(p.numel() for p in model.parameters()) == parameters_by_hand((160, 320, 640), 1, 10) == 17_117_466
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert sorted(c.kernel_size for c in convolutions) == [(1, 1)] * 3 + [(3, 3)] * 13
    assert all((c.bias is not None) == (c.kernel_size == (1, 1)) for c in convolutions)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 13
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.01] * 6


@pytest.mark.parametrize("channels, size, classes", [(1, 28, 10), (3, 32, 100)])
def test_forward_is_the_documents_written_out(channels, size, classes):
    """conv-BN-ReLU, six blocks with the shortcut added after the last ReLU, pooled after the second and fourth."""
    torch.manual_seed(0)
    model = WideResNet((4, 6, 8), channels, classes).eval()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    x = torch.randn(2, channels, size, size)

    def conv_bn_relu(layers, x):
        conv, norm = layers
        x = nn.functional.conv2d(x, conv.weight, padding=1)
        shape = (1, -1, 1, 1)
        x = (x - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + norm.eps).sqrt()
        return (x * norm.weight.view(shape) + norm.bias.view(shape)).relu()

    def layers_of(module):
        """3×3 convolutions and batch norms, in order."""
        return [m for m in module.modules() if isinstance(m, nn.BatchNorm2d) or getattr(m, "kernel_size", 0) == (3, 3)]

    out = conv_bn_relu(layers_of(model.stem), x)
    for number, stage in enumerate((model.stage1, model.stage2, model.stage3)):
        for block in stage:
            inner = layers_of(block)
            assert len(inner) == 4
            shortcut = [m for m in block.modules() if getattr(m, "kernel_size", None) == (1, 1)]
            skipped = nn.functional.conv2d(out, shortcut[0].weight, shortcut[0].bias) if shortcut else out
            out = conv_bn_relu(inner[2:], conv_bn_relu(inner[:2], out)) + skipped
        if number < 2:
            out = nn.functional.max_pool2d(out, 2)
    assert out.shape == (2, 8, size // 4, size // 4)  # the tutorial's 7×7 map for 28×28
    out = out.mean((2, 3)) @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(model(x), out, rtol=1e-4, atol=1e-5)


def test_the_small_networks_parameters_are_those_counted_by_hand():
    convolutions = 9 * (1 * 16 + 16 * 32 + 32 * 64)
    norms = 2 * (16 + 32 + 64)
    linear = 64 * 4 * 4 * 10 + 10  # 28 → 14 → 7 → 4
    assert sum(p.numel() for p in SmallCNN().parameters()) == convolutions + norms + linear == 33_658


@pytest.mark.parametrize("channels, size, classes", [(1, 28, 10), (3, 32, 100), (3, 33, 7)])
def test_the_small_networks_logits_for_other_images(channels, size, classes):
    model = SmallCNN((4, 8), channels, classes, size)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)


@pytest.mark.parametrize(
    "make, wrong, words",
    [
        *((WideResNet, widths, "widths") for widths in ((16, 32), (16, 32, 64, 128), (16, 0, 64), (16, -1, 64), ())),
        *((SmallCNN, widths, "positive channel counts") for widths in ((), (16, 0))),
        *((cifar_resnet, depth, "6n") for depth in (2, 7, 18, 49, 0, -4)),
        *((ResNetV2, blocks, "blocks") for blocks in ((3, 4, 6), (3, 1, 6, 3))),
        (lambda size: ResNetV2((2, 2, 2, 2), image_size=size), 31, "image_size"),
    ],
)
def test_a_network_that_cannot_be_is_one_line(make, wrong, words):
    with pytest.raises(ValueError, match=words) as raised:
        make(wrong)
    assert "\n" not in str(raised.value)


# Dropout. n trials of probability p: the count lies within 5 standard deviations but once in two million tests.


def within_5_sigma(hits, trials, p):
    return abs(hits - trials * p) <= 5 * math.sqrt(trials * p * (1 - p))


@pytest.mark.parametrize("p", [0.001, 0.01, 0.1, 0.2, 0.5])
def test_dropout_rate_scale_and_gradient(p):
    torch.manual_seed(1)
    x = torch.full((200, 5000), 2.0, requires_grad=True)
    output = SparseDropout(p)(x)
    dropped = output == 0
    assert within_5_sigma(int(dropped.sum()), x.numel(), p)
    torch.testing.assert_close(output[~dropped], torch.full_like(output[~dropped], 2 / (1 - p)))
    output.sum().backward()
    assert torch.equal(x.grad == 0, dropped)  # the gradient goes the same ways
    torch.testing.assert_close(x.grad[~dropped], torch.full_like(x.grad[~dropped], 1 / (1 - p)))


def test_dropout_hits_every_place_equally_and_independently():
    torch.manual_seed(2)
    p, draws, places = 0.1, 4000, 12
    layer, x = SparseDropout(p), torch.ones(places)
    hit = torch.stack([layer(x) == 0 for _ in range(draws)]).double()
    assert all(within_5_sigma(int(count), draws, p) for count in hit.sum(0))
    together = hit.T @ hit
    for i in range(places):
        for j in range(i):
            assert within_5_sigma(int(together[i, j]), draws, p * p), (i, j)
    # The number of hits is binomial, not fixed: variance n·p·(1−p), and P(none) = (1−p)^n.
    counts = hit.sum(1)
    assert abs(counts.var().item() / (places * p * (1 - p)) - 1) < 0.15
    assert within_5_sigma(int((counts == 0).sum()), draws, (1 - p) ** places)


def test_dropout_keeps_the_layout_and_the_input():
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    before = x.clone()
    output = SparseDropout(0.05)(x)
    assert output.is_contiguous(memory_format=torch.channels_last) and torch.equal(x, before)
    assert output.dtype == x.dtype and SparseDropout(0.05)(x.bfloat16()).dtype == torch.bfloat16
    kept = output != 0
    torch.testing.assert_close(output[kept], (x / 0.95)[kept])


def test_dropout_on_a_view_with_gaps_drops_as_often():
    torch.manual_seed(3)
    x = torch.ones(600, 600)[::2, ::3]
    assert not x.is_contiguous()
    assert within_5_sigma(int((SparseDropout(0.05)(x) == 0).sum()), x.numel(), 0.05)


def test_dropout_is_reproducible_and_off_in_evaluation():
    layer, x = SparseDropout(0.05), torch.randn(50, 50)
    torch.manual_seed(7)
    first, second = layer(x), layer(x)
    torch.manual_seed(7)
    assert torch.equal(layer(x), first) and not torch.equal(first, second)
    assert torch.equal(copy.deepcopy(layer).eval()(x), x)
    assert torch.equal(SparseDropout(0.0)(x), x)


def test_dropout_of_a_large_share_is_the_stock_layers():
    x = torch.randn(40, 40)
    torch.manual_seed(5)
    ours = SparseDropout(0.5)(x)
    torch.manual_seed(5)
    assert torch.equal(ours, nn.Dropout(0.5)(x))


def test_dropout_of_nothing():
    assert SparseDropout(0.01)(torch.ones(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("size", [28, 32])
def test_the_network_is_the_parallel_sgd_lab_s(size):
    torch.manual_seed(0)
    model = ParallelSGDNet().eval()
    conv1, conv2 = (model.features[i] for i in (0, 3))
    fc1, fc2, output = (model.classifier[i] for i in (0, 2, 3))
    x = torch.randn(2, 1, size, size)
    # The document's forward, line by line.
    out = F.relu(F.max_pool2d(F.conv2d(x, conv1.weight, conv1.bias), 2))
    out = F.relu(F.max_pool2d(F.conv2d(out, conv2.weight, conv2.bias), 2))
    out = F.max_pool2d(out, 2).view(-1, 32 * 2 * 2)
    out = F.linear(
        F.linear(F.relu(F.linear(out, fc1.weight, fc1.bias)), fc2.weight, fc2.bias), output.weight, output.bias
    )
    torch.testing.assert_close(model(x), out)
    counts = [16 * 1 * 25 + 16, 32 * 16 * 25 + 32, 128 * 512 + 512, 512 * 256 + 256, 256 * 10 + 10]
    assert sum(counts) == sum(p.numel() for p in model.parameters()) == 213_194
    assert list(model.buffers()) == []


def test_the_network_has_the_dropout_and_the_sizes_that_are_asked_for():
    dropouts = [module for module in ParallelSGDNet(dropout=0.25).modules() if isinstance(module, nn.Dropout)]
    assert [module.p for module in dropouts] == [0.25] and ParallelSGDNet().features[6].p == 0.4
    assert ParallelSGDNet(num_classes=7, in_channels=3)(torch.randn(1, 3, 28, 28)).shape == (1, 7)
