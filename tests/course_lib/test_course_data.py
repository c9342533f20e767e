"""Loading staged sets and cutting batches, against `DistributedSampler` and torchvision's ToTensor semantics."""

import random
import sys

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data import Batches, PackedDataset, Split, load, on_device
from course_lib.distributed import launch
from data_prep.errors import DataError
from data_prep.staged import read

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAME = "fashion-mnist-small"


@pytest.fixture(scope="module")
def small():
    return load(NAME)


def numbered(count, channels=1):
    """Images whose label is their index."""
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, 3, 2, channels), generator=generator, dtype=torch.uint8)
    return Split(images.permute(0, 3, 1, 2), torch.arange(count))


def labels_of(batches):
    return [int(label) for _, labels in batches for label in labels]


def test_order_is_distributed_samplers():
    chance = random.Random(8)
    for _ in range(60):
        count, ranks, seed = chance.randint(8, 90), chance.randint(1, 5), chance.randint(0, 10**6)
        size = chance.randint(1, count // ranks)
        split = numbered(count)
        for rank in range(ranks):
            sampler = DistributedSampler(
                TensorDataset(split.labels), num_replicas=ranks, rank=rank, shuffle=True, seed=seed, drop_last=True
            )
            loader = DataLoader(TensorDataset(split.labels), batch_size=size, sampler=sampler, drop_last=True)
            batches = Batches(
                split, size, mean=(0.0,), std=(1.0,), shuffle=True, seed=seed, rank=rank, world_size=ranks
            )
            for epoch in (0, chance.randint(1, 50)):
                sampler.set_epoch(epoch)
                batches.set_epoch(epoch)
                expected = [labels.tolist() for (labels,) in loader]
                assert [labels.tolist() for _, labels in batches] == expected, (count, ranks, seed, size, epoch)
                assert len(batches) == len(expected) and batches.samples == sum(map(len, expected))


@pytest.mark.parametrize("counts", [(4, 7, 10, 41), (1, 2, 3)], ids=["images for all", "fewer images than ranks"])
def test_evaluation_covers_each_image_once_over_the_ranks(counts):
    for count in counts:
        for ranks in (1, 2, 3, 4):
            shares = [Batches(numbered(count), 3, mean=(0.0,), std=(1.0,), rank=r, world_size=ranks) for r in range(ranks)]
            seen = [labels_of(share) for share in shares]
            assert sorted(label for share in seen for label in share) == list(range(count))
            assert [share.samples for share in shares] == [len(part) for part in seen]
            assert [len(share) for share in shares] == [len(list(share)) for share in shares]


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_are_normalised_and_carry_the_right_images(channels):
    split = numbered(20, channels)
    mean, std = (0.3, 0.5, 0.1)[:channels], (0.2, 0.25, 0.4)[:channels]
    batches = Batches(split, 8, mean=mean, std=std, shuffle=True, seed=3)
    for images, labels in batches:
        pixels = split.images[labels].numpy().astype(np.float64)
        expected = (pixels / 255 - np.reshape(mean, (1, -1, 1, 1))) / np.reshape(std, (1, -1, 1, 1))
        assert images.dtype == torch.float32 and labels.dtype == torch.int64
        np.testing.assert_allclose(images.numpy(), expected, atol=1e-5)
        assert images.is_contiguous(memory_format=torch.channels_last)
    assert not split.images.is_floating_point()


def test_the_training_pixels_come_out_with_mean_0_and_deviation_1(small):
    pixels = torch.cat([images for images, _ in Batches(small.train, 500, mean=small.mean, std=small.std)]).double()
    assert len(pixels) == 5000 and abs(pixels.mean()) < 1e-4 and abs(pixels.std() - 1) < 1e-4


def test_bad_batches_are_one_line():
    for size, ranks, word in ((0, 1, "batch_size"), (6, 2, "exceeds"), (-1, 1, "batch_size")):
        with pytest.raises(ValueError) as raised:
            Batches(numbered(10), size, mean=(0.0,), std=(1.0,), shuffle=True, world_size=ranks)
        assert word in str(raised.value) and "\n" not in str(raised.value)


def test_loaded_arrays_are_the_staged_ones(small):
    staged = read(NAME)
    for split, part in (("train", small.train), ("test", small.test)):
        assert np.array_equal(part.images.permute(0, 2, 3, 1).numpy(), staged.arrays[f"{split}_images"])
        assert np.array_equal(part.labels.numpy(), staged.arrays[f"{split}_labels"])
        assert part.images.dtype == torch.uint8 and part.labels.dtype == torch.int64
    assert (len(small.train), len(small.test), small.channels, len(small.classes)) == (5000, 1000, 1, 10)
    assert small.describe()["provenance"] == staged.provenance and staged.provenance in str(small)
    small.train.images[0, 0, 0, 0] ^= 1  # a copy: the packaged file is not written to
    assert np.array_equal(read(NAME).arrays["train_images"], staged.arrays["train_images"])
    small.train.images[0, 0, 0, 0] ^= 1


def test_train_samples_are_the_same_for_everybody(small):
    def rank_share():
        split = load(NAME, train_samples=300, test_samples=50)
        dist.barrier()
        return split.train.images, split.train.labels, len(split.test)

    mine = load(NAME, train_samples=300)
    for images, labels, tests in launch(rank_share, 2, timeout=60):
        assert torch.equal(images, mine.train.images) and torch.equal(labels, mine.train.labels) and tests == 50
    assert len(mine.train) == 300 and len(mine.test) == 1000 and mine.describe()["train_samples"] == 300
    rows = {bytes(image.numpy().tobytes()) + bytes([label]) for image, label in zip(small.train.images, small.train.labels, strict=True)}
    chosen = [bytes(image.numpy().tobytes()) + bytes([label]) for image, label in zip(mine.train.images, mine.train.labels, strict=True)]
    assert set(chosen) <= rows and len(set(chosen)) == 300
    assert len(set(mine.train.labels.tolist())) == 10  # not the first 300 of a sorted set


@pytest.mark.parametrize("options", [{"train_samples": 5001}, {"test_samples": 1001}, {"train_samples": -1}])
def test_more_samples_than_there_are_is_one_line(options):
    with pytest.raises(ValueError) as raised:
        load(NAME, **options)
    (name,) = options
    assert name in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name, says", [("mnist", "lab data fetch mnist"), ("nope", "nope")])
def test_a_set_that_is_not_there_is_one_line(tmp_path, name, says):
    with pytest.raises(DataError) as raised:
        load(name, root=str(tmp_path))
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("channels", [1, 3])
def test_packed_dataset_gives_what_to_tensor_gives(channels):
    split = numbered(6, channels)
    plain, seen = PackedDataset(split), []
    through_pil = PackedDataset(split, transform=lambda image: seen.append(image) or np.asarray(image))
    assert len(plain) == 6
    for index in range(6):
        image, label = plain[index]
        pixels = split.images[index].numpy()  # (C, H, W)
        assert image.dtype == torch.float32 and image.shape == (channels, 3, 2) and label == index and type(label) is int
        np.testing.assert_array_equal(image.numpy(), pixels.astype(np.float32) / 255)
        array, label = through_pil[index]
        np.testing.assert_array_equal(array.reshape(3, 2, channels), pixels.transpose(1, 2, 0))
        assert label == index and seen[-1].mode == {1: "L", 3: "RGB"}[channels] and seen[-1].size == (2, 3)


def test_data_loader_and_sampler_take_it(small):
    loader = DataLoader(PackedDataset(small.test), batch_size=300)
    batches = list(on_device(loader, "cpu"))
    assert [len(labels) for _, labels in batches] == [300, 300, 300, 100]
    assert torch.equal(torch.cat([labels for _, labels in batches]), small.test.labels)
    images = torch.cat([images for images, _ in batches])
    assert torch.equal(images, small.test.images.float() / 255)
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in batches)
