"""ResNet50V2 and 152V2: Keras's published counts, and its layers written out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.models import ResNetV2, keras_parameter_count, resnet50v2, resnet152v2

# keras.io/api/applications, and the UPC article for the first; with 10 classes as Keras 3 counted them.
PUBLISHED = [
    (resnet50v2, 1000, 25_613_800),
    (resnet50v2, 10, 23_585_290),
    (resnet152v2, 1000, 60_380_648),
    (resnet152v2, 10, 58_352_138),
]


@pytest.mark.parametrize("make, classes, count", PUBLISHED)
def test_the_count_is_keras_s(make, classes, count):
    with torch.device("meta"):
        model = make(classes)
    assert keras_parameter_count(model) == count
    running = sum(2 * m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert sum(p.numel() for p in model.parameters()) == count - running


def by_hand(model, x):
    """keras.applications' ResNet50V2, layer by layer."""
    state = dict(model.state_dict())

    def norm(x, name):
        weight, bias, mean, var = (
            state[f"{name}.{key}"].view(1, -1, 1, 1) for key in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (var + 1.001e-5).sqrt() * weight + bias

    def conv(x, name, stride=1, padding=0):
        return F.conv2d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), stride, padding)

    x = conv(F.pad(x, (3, 3, 3, 3)), "stem", 2)
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)  # ZeroPadding2D: zeros, below which a pixel may lie
    for s, stack in enumerate(model.stacks):
        for b in range(len(stack)):
            stride = 2 if b == len(stack) - 1 and s < 3 else 1
            name = f"stacks.{s}.{b}"
            activated = norm(x, f"{name}.preact").relu()
            shortcut = conv(activated, f"{name}.shortcut") if b == 0 else x[:, :, ::stride, ::stride]
            y = norm(conv(activated, f"{name}.conv1"), f"{name}.norm1").relu()
            y = norm(conv(y, f"{name}.conv2", stride, 1), f"{name}.norm2").relu()
            x = shortcut + conv(y, f"{name}.conv3")
    x = norm(x, "norm").relu().mean((2, 3))
    return x @ state["classifier.weight"].T + state["classifier.bias"]


def test_forward_is_keras_s_written_out():
    torch.manual_seed(0)
    model = ResNetV2((2, 3, 2, 2), 7, 2).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith(("bias", "running_mean")):
                tensor.normal_(0, 0.3)
        model.stem.bias.sub_(1.0)  # so that the zeros of the padding win over some pixels
        x = torch.randn(2, 2, 45, 38)
        torch.testing.assert_close(model(x), by_hand(model, x), rtol=1e-4, atol=1e-4)
        without = [name for name, _ in model.named_parameters() if name.endswith(("conv1.bias", "conv2.bias"))]
        assert not without  # a batch norm follows them


def test_it_starts_as_keras_does():
    torch.manual_seed(0)
    model = ResNetV2((2, 2, 2, 2), 10)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            receptive = module.weight[0, 0].numel()
            fans = receptive * (module.weight.shape[0] + module.weight.shape[1])
            limit = (6 / fans) ** 0.5
            assert 0.95 * limit < module.weight.abs().max() <= limit
            assert module.bias is None or not module.bias.any()
        if isinstance(module, nn.BatchNorm2d):
            assert (module.eps, module.momentum) == (1.001e-5, 0.01)


def test_images_are_scaled_up_inside():
    torch.manual_seed(0)
    model = ResNetV2((2, 2, 2, 2), 10, image_size=64).eval()
    small = torch.randn(1, 3, 32, 32)
    large = F.interpolate(small, size=(64, 64), mode="bilinear")
    with torch.no_grad():
        scaled = model(small)
        assert torch.equal(scaled, model(large))
        model.image_size = None
        assert torch.equal(scaled, model(large)) and not torch.equal(scaled, model(small))
