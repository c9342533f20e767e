"""What the input costs: augmentation, its share of a training step, and image files against packed arrays.

1. Images per second of one core for the source's augmentation (flip, rotation, shear and scale, colours) and the
   homework's (crop and flip): batched on the device (`Batches`) against torchvision's transforms of PIL images, in a
   plain loop and in a DataLoader without workers. All of them give normalised batches. Kornia is measured where it is
   installed. Target for the source's: 6 times torchvision.
2. The share of a training step that is spent waiting for input, with either.
3. ImageFolder on JPEG files against the packed arrays of the same images: time to the first batch, and images per second.

The pipelines alternate within one run; ratios are taken repeat by repeat. Without a GPU everything runs in one thread, and
seconds are those of the processor, which other programs on the machine disturb less than the clock on the wall.

    python benchmarks/input_pipeline.py [--repeats 5] [--dataset cifar10-synthetic]
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from harness import alternate, conditions, parse_options, ratios, summary
from torch import nn
from torch.utils.data import DataLoader

from course_lib.data.augment import AffineAndJitter, CropAndFlip
from course_lib.data.batches import Batches, ImageData, PackedDataset, load, on_device
from course_lib.models import HomeworkResNet, WideResNet
from course_lib.system.torchvision_import import import_torchvision
from course_lib.training.precision import accelerate_model
from data_prep import staging, synthetic

import_torchvision()
from torchvision import transforms  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402

BATCH = 128
CLOCK = time.perf_counter if torch.cuda.is_available() else time.process_time
AUGMENTATIONS = {
    "source's": (
        AffineAndJitter(),
        [
            transforms.RandomHorizontalFlip(),
            transforms.RandomRotation(10),
            transforms.RandomAffine(0, shear=10, scale=(0.8, 1.2)),
            transforms.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2),
        ],
    ),
    "homework's": (CropAndFlip(), [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]),
}
MODELS = {"WideResNet (16, 32, 64)": lambda: WideResNet((16, 32, 64), in_channels=3), "HomeworkResNet": HomeworkResNet}


class PilLoop:
    """Batches by torchvision's transforms, sample after sample, without a DataLoader."""

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(self.dataset)).tolist()
        for start in range(0, len(order) - BATCH + 1, BATCH):
            samples = [self.dataset[index] for index in order[start : start + BATCH]]
            yield torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def make_pipelines(data: ImageData, kind: str, device: str) -> dict[str, Iterable]:
    augment, steps = AUGMENTATIONS[kind]
    normalise = [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
    dataset = PackedDataset(data.train, transforms.Compose([*steps, *normalise]))
    pipelines = {
        "ours": Batches(data.train, BATCH, device, mean=data.mean, std=data.std, shuffle=True, augment=augment),
        "torchvision, loop": PilLoop(dataset),
        "torchvision, DataLoader": DataLoader(dataset, BATCH, shuffle=True, drop_last=True),
    }
    if (module := kornia(kind)) is not None:
        augmented = {"shuffle": True, "augment": lambda images, _: module(images)}
        pipelines["Kornia"] = Batches(data.train, BATCH, device, mean=data.mean, std=data.std, **augmented)
    return pipelines


def kornia(kind: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    try:
        import kornia.augmentation as K
    except ImportError:
        return None
    if kind == "homework's":
        return K.AugmentationSequential(K.RandomCrop((32, 32), padding=4), K.RandomHorizontalFlip())
    return K.AugmentationSequential(
        K.RandomHorizontalFlip(),
        K.RandomRotation(10.0, resample="nearest", p=1.0),
        K.RandomAffine(0.0, shear=10.0, scale=(0.8, 1.2), resample="nearest", p=1.0),
        K.ColorJitter(0.2, 0.2, 0.2, 0.0, p=1.0),
    )


def images_per_second(batches: Iterable, seconds: float) -> float:
    images, start = 0, CLOCK()
    while CLOCK() - start < seconds:
        for batch, _ in batches:
            images += len(batch)
            if CLOCK() - start >= seconds:
                break
        if batch.is_cuda:
            torch.cuda.synchronize()
    return images / (CLOCK() - start)


def augmentation(data: ImageData, repeats: int, seconds: float, device: str) -> None:
    for kind in AUGMENTATIONS:
        pipelines = make_pipelines(data, kind, device)
        for batches in pipelines.values():
            next(iter(batches))
        candidates = {name: partial(images_per_second, batches, seconds) for name, batches in pipelines.items()}
        rates = alternate(candidates, repeats)
        print(f"{kind} augmentation, {data.channels}×32×32, batch {BATCH}")
        for name, values in rates.items():
            print(f"  {name}: {summary(values, 0)} images/s")
        for name in list(rates)[1:]:
            print(f"  ours / {name}: {summary(ratios(rates['ours'], rates[name]), 1)}", flush=True)


def shares(data: ImageData, repeats: int, steps: int, device: str) -> None:
    print(f"share of a training step's time spent waiting for input, batch {BATCH}, {steps} steps per run")
    for model_name, make in MODELS.items():
        torch.manual_seed(0)
        model = accelerate_model(make(), device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for kind in AUGMENTATIONS:
            pipelines = make_pipelines(data, kind, device)
            candidates = {
                name: partial(waiting_percent, model, optimizer, pipelines[name], steps, device)
                for name in ("ours", "torchvision, DataLoader")
            }
            for name, percent in alternate(candidates, repeats).items():
                print(f"  {model_name}, {kind}, {name}: {summary(percent, 1)} %", flush=True)


def waiting_percent(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable, steps: int, device: str
) -> float:
    """Train for some steps after a warm-up; the share of the time that was spent waiting for input."""
    source, waited, began = iter(on_device(batches, device)), 0.0, 0.0
    for step in range(steps + 1):
        if step <= 1:
            waited, began = 0.0, now(device)
        asked = now(device)
        images, labels = next(source)
        waited += now(device) - asked
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return 100 * waited / (now(device) - began)


def now(device: str) -> float:
    """The clock, once the device has finished: a GPU works after the loop has moved on."""
    if device == "cuda":
        torch.cuda.synchronize()
    return CLOCK()


def files_against_arrays(repeats: int, seconds: float, device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        synthetic.write_tiny_imagenet(Path(folder))
        staging.synthesize("tiny-imagenet", Path(folder) / "root", report=lambda line: None)
        tree, root = Path(folder, "tiny-imagenet-200", "train"), str(Path(folder, "root"))

        def image_folder() -> Iterable:
            return DataLoader(ImageFolder(tree, transforms.ToTensor()), BATCH, shuffle=True, drop_last=True)

        def packed_dataset() -> Iterable:
            return DataLoader(PackedDataset(load("tiny-imagenet", root).train), BATCH, shuffle=True, drop_last=True)

        def batches() -> Iterable:
            data = load("tiny-imagenet", root)
            return Batches(data.train, BATCH, device, mean=data.mean, std=data.std, shuffle=True)

        def first_and_rate(make: Callable[[], Iterable]) -> tuple[float, float]:
            """Milliseconds to the first batch, and images per second."""
            start = CLOCK()
            loader = make()
            next(iter(loader))
            return (CLOCK() - start) * 1e3, images_per_second(loader, seconds)

        loaders = {"ImageFolder": image_folder, "packed, DataLoader": packed_dataset, "packed, Batches": batches}
        results = alternate({name: partial(first_and_rate, make) for name, make in loaders.items()}, repeats)
        print("1,600 JPEG files of 3×64×64 against packed arrays (synthetic, files in the page cache), not augmented")
        rates = {}
        for name, pairs in results.items():
            first, rates[name] = zip(*pairs, strict=True)
            print(f"  {name}: first batch after {summary(first, 1)} ms, {summary(rates[name], 0)} images/s")
        for name in list(rates)[1:]:
            print(f"  {name} / ImageFolder: {summary(ratios(rates[name], rates['ImageFolder']), 1)} in images/s")


def main() -> None:
    options = parse_options(
        __doc__, repeats=5, seconds=(1.0, "of each measurement"), steps=(4, "of each training"),
        dataset=("cifar10-synthetic", "of 3×32×32 images"),
    )  # fmt: skip
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = load(options.dataset)
    print(conditions(device=device, repeats=options.repeats, data=data))
    augmentation(data, options.repeats, options.seconds, device)
    shares(data, options.repeats, options.steps, device)
    files_against_arrays(options.repeats, options.seconds, device)


if __name__ == "__main__":
    main()
