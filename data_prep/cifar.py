"""CIFAR-10 and CIFAR-100 in the form in which they are published.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). Each file is a pickled dictionary:
``data``, uint8 (N, 3072), a row holding an image's 1,024 red values, then the green, then the blue, row by row;
``labels`` (CIFAR-10) or ``fine_labels`` and ``coarse_labels`` (CIFAR-100), lists of N integers. The meta file names
the classes.
"""

from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from data_prep import cifar_pickle
from data_prep.errors import DataError

Open = Callable[[str], BinaryIO]
"""Opens one of the set's files by its name."""

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(_HUNDRED.split())

_TWENTY = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
"""
CIFAR100_SUPERCLASSES = tuple(_TWENTY.split())


def cifar10_arrays(open_file: Open) -> dict[str, np.ndarray]:
    """CIFAR-10's four arrays.

    Parameters
    ----------
    open_file : callable
        Opens the file of that name.

    Returns
    -------
    dict
        ``train_images`` and ``test_images``, uint8 (N, 32, 32, 3); ``train_labels`` and ``test_labels``, uint8 (N,).

    Raises
    ------
    DataError
        A file is not of the published form: see `data_prep.cifar_pickle`.
    """
    batches = {"train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]}
    return _arrays(open_file, batches, {"labels": ("labels", 10)})


def cifar100_arrays(open_file: Open) -> dict[str, np.ndarray]:
    """CIFAR-100's arrays: those of `cifar10_arrays`, the labels being the fine ones, and ``*_coarse_labels``."""
    labels = {"labels": ("fine_labels", 100), "coarse_labels": ("coarse_labels", 20)}
    return _arrays(open_file, {"train": ("train",), "test": ("test",)}, labels)


def cifar10_names(open_file: Open) -> dict[str, tuple[str, ...]]:
    """The class names in the meta file, by the kind of label: ``labels``."""
    return _names(open_file, "batches.meta", {"labels": "label_names"})


def cifar100_names(open_file: Open) -> dict[str, tuple[str, ...]]:
    """The class names in the meta file, by the kind of label: ``labels`` and ``coarse_labels``."""
    return _names(open_file, "meta", {"labels": "fine_label_names", "coarse_labels": "coarse_label_names"})


def _arrays(open_file: Open, batches: dict, kinds: dict[str, tuple[str, int]]) -> dict[str, np.ndarray]:
    arrays = {}
    for split, files in batches.items():
        parts = [_batch(open_file, file, kinds) for file in files]
        for key in parts[0]:
            arrays[f"{split}_{key}"] = np.concatenate([part[key] for part in parts]) if parts[1:] else parts[0][key]
    return arrays


def _batch(open_file: Open, file: str, kinds: dict[str, tuple[str, int]]) -> dict[str, np.ndarray]:
    with open_file(file) as stream:
        content = cifar_pickle.load(stream, file)
    rows = content.get("data")
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{file}: its data is no array of rows of 3072 bytes")
    batch = {"images": np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))}
    for kind, (key, classes) in kinds.items():
        labels = content.get(key)
        if type(labels) is not list or len(labels) != len(rows):
            raise DataError(f"{file}: its {key} are no list of {len(rows)}, one for each image")
        if not all(type(label) is int and 0 <= label < classes for label in labels):
            raise DataError(f"{file}: its {key} are not all integers from 0 to {classes - 1}")
        batch[kind] = np.array(labels, np.uint8)
    return batch


def _names(open_file: Open, file: str, kinds: dict[str, str]) -> dict[str, tuple[str, ...]]:
    with open_file(file) as stream:
        content = cifar_pickle.load(stream, file)
    names = {}
    for kind, key in kinds.items():
        values = content.get(key)
        if type(values) is not list or not all(isinstance(value, str | bytes) for value in values):
            raise DataError(f"{file}: its {key} are no list of names")
        names[kind] = tuple(cifar_pickle.text(value) for value in values)
    return names
