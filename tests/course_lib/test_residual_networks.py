"""Residual blocks against torchvision's, the networks against published counts and the slides' shapes."""

import pytest
import torch
from torch import nn

from course_lib.models import BasicBlock, Bottleneck, HomeworkResNet, cifar_resnet
from course_lib.system.torchvision_import import import_torchvision


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def shuffle_norms(model):
    """Batch norms that do something, so that a wrong one is seen."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 1.5)


@pytest.mark.parametrize("ours, name", [(BasicBlock, "BasicBlock"), (Bottleneck, "Bottleneck")])
@pytest.mark.parametrize("in_channels, channels, stride", [(8, 8, 1), (8, 8, 2), (8, 12, 1), (8, 12, 2), (32, 8, 1)])
def test_blocks_are_torchvisions(ours, name, in_channels, channels, stride):
    import_torchvision()
    from torchvision.models import resnet

    theirs = getattr(resnet, name)
    torch.manual_seed(0)
    out = channels * theirs.expansion
    down = None
    if stride != 1 or in_channels != out:
        down = nn.Sequential(resnet.conv1x1(in_channels, out, stride), nn.BatchNorm2d(out))
    oracle, block = theirs(in_channels, channels, stride, down), ours(in_channels, channels, stride)
    shuffle_norms(oracle)
    block.load_state_dict(oracle.state_dict())
    x = torch.randn(2, in_channels, 6, 6)
    for mode in (True, False):
        oracle.train(mode), block.train(mode)
        torch.testing.assert_close(block(x), oracle(x))
    assert ours.expansion == theirs.expansion


def test_a_plain_block_has_no_shortcut():
    block = BasicBlock(4, 4, residual=False)
    nn.init.zeros_(block.conv2.weight)
    assert block(torch.randn(2, 4, 5, 5)).abs().max() == 0  # with a shortcut the input would come through
    assert BasicBlock(4, 4)(torch.ones(1, 4, 5, 5)).shape == (1, 4, 5, 5)


# The paper's table 6 gives 0.27, 0.46, 0.66, 0.85 and 1.7 million.
@pytest.mark.parametrize(
    "depth, parameters", [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018), (110, 1_727_962)]
)
def test_cifar_resnets_have_the_published_sizes(depth, parameters):
    with torch.device("meta"):
        assert count(cifar_resnet(depth)) == count(cifar_resnet(depth, residual=False)) == parameters
        layers = [m for m in cifar_resnet(depth).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth


def test_cifar_resnet_shapes():
    model, maps = cifar_resnet(8, num_classes=7).eval(), []
    for stage in (model.stage1, model.stage2, model.stage3):
        stage.register_forward_hook(lambda module, args, output: maps.append(tuple(output.shape[1:])))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert maps == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_option_a_takes_every_other_pixel_and_new_channels_are_zero():
    shortcut = cifar_resnet(8).stage2[0].downsample
    x = torch.randn(1, 16, 4, 4)
    y = shortcut(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2]) and y[:, :8].abs().sum() == y[:, 24:].abs().sum() == 0
    assert y.shape == (1, 32, 2, 2) and not list(shortcut.parameters())


def homework_parameters(classes, channels):
    """From the slides: conv-BN, then stages of blocks of two conv-BN; a 1×1 conv-BN where a stage begins smaller."""

    def conv_bn(kernel, cin, cout):
        return kernel * kernel * cin * cout + 2 * cout

    total, before = conv_bn(3, channels, 32), 32
    for width, blocks in ((32, 2), (64, 4), (128, 4), (256, 2)):
        total += conv_bn(3, before, width) + (2 * blocks - 1) * conv_bn(3, width, width)
        total += conv_bn(1, before, width) if before != width else 0
        before = width
    return total + 256 * classes + classes


@pytest.mark.parametrize("classes, channels, size", [(100, 3, 32), (200, 3, 64), (10, 1, 32)])
def test_the_homework_network_is_the_slides(classes, channels, size):
    model, maps = HomeworkResNet(classes, channels).eval(), []
    assert count(model) == homework_parameters(classes, channels)
    for part in (model.stem, model.conv2_x, model.conv3_x, model.conv4_x, model.conv5_x):
        part.register_forward_hook(lambda module, args, output: maps.append(tuple(output.shape[1:])))
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)
    k = size // 32
    assert maps == [
        (32, 32 * k, 32 * k),
        (32, 32 * k, 32 * k),
        (64, 16 * k, 16 * k),
        (128, 8 * k, 8 * k),
        (256, 4 * k, 4 * k),
    ]
    assert [len(stage) for stage in (model.conv2_x, model.conv3_x, model.conv4_x, model.conv5_x)] == [2, 4, 4, 2]


def test_the_gradient_reaches_the_stem_past_dead_blocks():
    """The identity path: with all residual branches at zero the stem still learns; in a plain network it does not."""
    for residual in (True, False):
        torch.manual_seed(0)
        model = cifar_resnet(20, residual=residual)
        for module in model.modules():
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
        nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3])).backward()
        assert (model.stem[0].weight.grad.abs().sum() > 0) == residual
