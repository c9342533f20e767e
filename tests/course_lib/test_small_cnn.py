"""The small network of labs 03 and 04: its size by hand, the shapes it takes, what it refuses."""

import pytest
import torch

from course_lib.models import SmallCNN


def test_parameters_are_those_counted_by_hand():
    convolutions = 9 * (1 * 16 + 16 * 32 + 32 * 64)
    norms = 2 * (16 + 32 + 64)
    linear = 64 * 4 * 4 * 10 + 10  # 28 → 14 → 7 → 4
    assert sum(p.numel() for p in SmallCNN().parameters()) == convolutions + norms + linear == 33_658


@pytest.mark.parametrize("channels, size, classes", [(1, 28, 10), (3, 32, 100), (3, 33, 7)])
def test_logits_for_other_images(channels, size, classes):
    model = SmallCNN((4, 8), channels, classes, size)
    assert model(torch.randn(2, channels, size, size)).shape == (2, classes)


@pytest.mark.parametrize("widths", [(), (16, 0)])
def test_no_channels_are_refused(widths):
    with pytest.raises(ValueError, match="positive channel counts"):
        SmallCNN(widths)
