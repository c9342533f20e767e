"""The clock around a training's batches, the transform of its images, the advice where a GPU's memory is full."""

import pickle
import time

import pytest
import torch
from torch import nn

from course_lib.data.batches import PackedDataset, Split
from course_lib.data.standardise import Standardise
from course_lib.data.timed_epochs import TimedEpochs
from course_lib.system.gpu_memory import DeviceMemoryError, free_memory, memory_advice, until_full


class Sleepy:
    """Two batches, each 10 ms late."""

    def __init__(self):
        self.epochs = []

    def __len__(self):
        return 2

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        for number in range(2):
            time.sleep(0.01)
            yield number


def test_each_pass_is_timed_with_its_own_order_and_first_learning_rate():
    batches, model = Sleepy(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    timed = TimedEpochs(batches, optimizer)
    for _ in range(2):
        assert list(timed) == [0, 1]
        optimizer.param_groups[0]["lr"] /= 2
        time.sleep(0.05)  # a validation, which is not counted
    assert batches.epochs == [0, 1] and timed.learning_rates == [0.5, 0.25] and len(timed) == 2
    assert len(timed.seconds) == 2 and all(seconds >= 0.02 for seconds in timed.seconds)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_standardised_as_by_torchvision(channels):
    images = torch.randint(0, 256, (4, channels, 5, 6), dtype=torch.uint8)
    mean, std = (0.25, 0.5, 0.125)[:channels], (0.5, 0.25, 0.375)[:channels]
    transform = pickle.loads(pickle.dumps(Standardise(mean, std)))  # as a worker process receives it
    data = PackedDataset(Split(images, torch.arange(4)), transform)
    for index in range(4):
        image, label = data[index]
        expected = (images[index] / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
        assert image.dtype == torch.float32 and label == index
        torch.testing.assert_close(image, expected)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("Tried to allocate 2 GiB"), RuntimeError("CUDA error: out of memory")]
)
def test_a_full_gpu_is_one_line_with_a_remedy(error):
    with (
        pytest.raises(DeviceMemoryError, match=r"cuda:0 is full.*nvidia-smi.*batch_size") as raised,
        memory_advice("cuda:0"),
    ):
        raise error
    assert "\n" not in str(raised.value)


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes"), memory_advice("cpu"):
        raise RuntimeError("shapes cannot be multiplied")


def test_the_machines_free_memory():
    assert free_memory("cpu") > 2**20


def test_measurements_end_where_a_size_does_not_fit(capsys):
    def measure(size):
        if size > 8:
            raise torch.OutOfMemoryError("Tried to allocate 2 GiB")
        return 10.0 * size

    assert until_full(measure, [4, 8, 16, 2]) == {4: 40.0, 8: 80.0}
    assert "size 16 does not fit" in capsys.readouterr().out
