"""Loading staged sets and cutting batches, against `DistributedSampler` and torchvision's ToTensor semantics."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.data.augment import AffineAndJitter, CropAndFlip
from course_lib.data.batches import Batches, PackedDataset, Split, fits, load, on_device
from data_prep.errors import DataError
from data_prep.staged import read

NAME = "fashion-mnist-small"
GREY = {"mean": (0.0,), "std": (1.0,)}
COLOUR = {"mean": (0.3, 0.5, 0.1), "std": (0.2, 0.25, 0.4), "shuffle": True}


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
            share = {"rank": rank, "world_size": ranks}
            batches = Batches(split, size, **GREY, shuffle=True, seed=seed, **share)
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
            shares = [Batches(numbered(count), 3, **GREY, rank=r, world_size=ranks) for r in range(ranks)]
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


def colours(count):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 16, 16, 3), generator=generator, dtype=torch.uint8)
    return Split(images.permute(0, 3, 1, 2), torch.arange(count))


def pixels(epoch=0, augment=None, split=None, **options):
    batches = Batches(split or colours(24), 4, **COLOUR, augment=augment, **options)
    batches.set_epoch(epoch)
    return torch.cat([images for images, _ in batches])


def test_augment_is_applied_before_normalisation():
    seen = []

    def darken(images, generator):
        seen.append(images)
        return images / 2

    split = colours(24)
    batches = Batches(split, 4, **COLOUR, augment=darken)
    for images, labels in batches:
        original = split.images[labels].float() / 255
        assert torch.allclose(seen[-1], original, atol=1e-7)
        assert seen[-1].is_contiguous(memory_format=torch.channels_last)
        mean, std = (torch.tensor(COLOUR[name]).view(3, 1, 1) for name in ("mean", "std"))
        expected = (original / 2 - mean) / std
        assert torch.allclose(images, expected, atol=1e-5)
    assert len(seen) == 6


@pytest.mark.parametrize("augment", [CropAndFlip(), AffineAndJitter()], ids=lambda augment: type(augment).__name__)
def test_augmentation_is_of_seed_epoch_and_rank(augment):
    # One picture, so that the order does not matter.
    split = Split(colours(1).images.expand(48, -1, -1, -1), torch.zeros(48))
    first = pixels(3, augment, split, seed=5)
    assert torch.equal(first, pixels(3, augment, split, seed=5))
    for other in ({"epoch": 4}, {"seed": 6}, {"rank": 1, "world_size": 2}):
        options = {"epoch": 3, "seed": 5, **other}
        again = pixels(options.pop("epoch"), augment, split, **options)
        assert not torch.equal(first[: len(again)], again), other
    # Seed 3 in epoch 5 is drawn from otherwise than seed 5 in epoch 3, though their order is the same.
    assert not torch.equal(first, pixels(5, augment, split, seed=3))
    assert torch.equal(pixels(0, augment, split, seed=-1), pixels(0, augment, split, seed=-1))


def test_a_run_that_resumes_is_augmented_as_if_it_had_not_stopped():
    split, augment = colours(24), AffineAndJitter()
    batches = Batches(split, 4, **COLOUR, augment=augment, seed=2)
    through = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        through.append(torch.cat([images for images, _ in batches]))
    assert torch.equal(through[2], pixels(2, augment, split, seed=2)) and not torch.equal(through[0], through[1])


def test_augment_changes_neither_order_nor_the_global_generator():
    split = colours(24)
    plain = Batches(split, 4, **COLOUR, seed=9)
    augmented = Batches(split, 4, **COLOUR, seed=9, augment=CropAndFlip())
    state = torch.random.get_rng_state()
    assert labels_of(plain) == labels_of(augmented)
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(ValueError, match="augment is for training") as raised:
        Batches(split, 4, **COLOUR | {"shuffle": False}, augment=CropAndFlip())
    assert "\n" not in str(raised.value)


def test_images_stay_on_a_gpu_where_half_of_its_free_memory_holds_them(monkeypatch):
    images, free = torch.zeros(10, 1, 2, 2, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[-1], 10**9))
    assert fits(images, torch.device("cpu"))  # where nothing is asked
    for bytes_free, held in ((80, True), (79, False), (0, False)):
        free.append(bytes_free)
        assert fits(images, torch.device("cuda")) == held


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("augment", [None, CropAndFlip(), AffineAndJitter()])
def test_images_left_on_the_host_give_the_same_batches(augment, monkeypatch):
    ways = []
    for resident in (True, False):
        monkeypatch.setattr("course_lib.data.batches.fits", lambda *_, resident=resident: resident)
        batches = Batches(colours(24), 4, "cuda", **COLOUR, augment=augment)
        assert batches.images.is_cuda == resident
        ways.append([(images.cpu(), labels.cpu()) for images, labels in batches])
    for (images, labels), (others, same) in zip(*ways, strict=True):
        assert torch.equal(images, others) and torch.equal(labels, same)


def test_the_training_pixels_come_out_with_mean_0_and_deviation_1(small):
    pixels = torch.cat([images for images, _ in Batches(small.train, 500, mean=small.mean, std=small.std)]).double()
    assert len(pixels) == 5000 and abs(pixels.mean()) < 1e-4 and abs(pixels.std() - 1) < 1e-4


def test_bad_batches_are_one_line():
    for size, ranks, word in ((0, 1, "batch_size"), (6, 2, "exceeds"), (-1, 1, "batch_size")):
        with pytest.raises(ValueError) as raised:
            Batches(numbered(10), size, **GREY, shuffle=True, world_size=ranks)
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
    def loaded(seed):
        np.random.seed(seed)
        torch.manual_seed(seed)
        return load(NAME, train_samples=300, test_samples=50)

    mine, others = loaded(1), loaded(2)
    assert torch.equal(mine.train.images, others.train.images) and torch.equal(mine.train.labels, others.train.labels)
    assert (len(mine.train), len(mine.test), mine.describe()["train_samples"]) == (300, 50, 300)

    def rows(split):
        return [(image.numpy().tobytes(), int(label)) for image, label in zip(split.images, split.labels, strict=True)]

    chosen = set(rows(mine.train))
    assert chosen <= set(rows(small.train)) and len(chosen) == 300
    assert len(set(mine.train.labels.tolist())) == 10  # not the first 300 of a sorted set


MADE_UP = [
    ("cifar10-synthetic", 2000, 500, 32, 10),
    ("cifar100-synthetic", 4000, 1000, 32, 100),
    ("tiny-imagenet-synthetic", 2000, 400, 64, 200),
]


@pytest.mark.parametrize("name, train, test, side, classes", MADE_UP)
def test_made_up_sets_are_loaded_from_nowhere(tmp_path, name, train, test, side, classes):
    data = load(name, root=str(tmp_path / "missing"))
    assert data.train.images.shape == (train, 3, side, side) and data.test.images.shape == (test, 3, side, side)
    assert len(data.classes) == classes and set(data.train.labels.tolist()) == set(range(classes))
    assert data.provenance == data.describe()["provenance"] == "synthetic" and "synthetic" in str(data)
    assert len(load(name, train_samples=100).train) == 100 and not list(tmp_path.iterdir())
    std, mean = torch.std_mean(data.train.images.float() / 255, (0, 2, 3))
    for measured, stated in ((mean, data.mean), (std, data.std)):
        assert torch.allclose(measured, torch.tensor(stated), atol=1e-4)
    data.train.images[:] = 0  # a copy: the next load is whole
    assert load(name).train.images.any()


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
        assert (
            image.dtype == torch.float32 and image.shape == (channels, 3, 2) and label == index and type(label) is int
        )
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


@pytest.mark.parametrize("count, share, cut", [(12, 6, 10), (14, 6, 11), (9, 3, 6), (5, 6, 4)])
def test_the_last_images_are_held_out(count, share, cut):
    split = numbered(count)
    training, validation = split.hold_out(share)
    assert training.labels.tolist() == list(range(cut)) and validation.labels.tolist() == list(range(cut, count))
    assert torch.equal(torch.cat([training.images, validation.images]), split.images)
    assert validation.images.untyped_storage().data_ptr() == split.images.untyped_storage().data_ptr()
