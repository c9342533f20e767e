"""The synthetic sets that are always available: made in memory when they are read, never staged.

They are the pictures of `data_prep.synthetic` under separate names, ``cifar10-synthetic`` beside ``cifar10``. A test run
then has nothing to download, to write or to remove.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from data_prep import synthetic

SOURCE = "data_prep.synthetic, made on demand"
LICENCE = "MIT"


@dataclass(frozen=True)
class MadeUp:
    """One made-up set.

    Attributes
    ----------
    title : str
    classes : tuple of str
    make : callable
        Gives the arrays of `data_prep.staged.StagedDataset`, the same ones in every process.
    more_labels : dict of str to tuple of str
        As in `data_prep.staged.StagedDataset`.
    """

    title: str
    classes: tuple[str, ...]
    make: Callable[[], dict[str, np.ndarray]]
    more_labels: dict[str, tuple[str, ...]]


MADE_UP = {
    "cifar10-synthetic": MadeUp(
        "Synthetic stand-in for CIFAR-10", tuple(synthetic.names(10)), synthetic.cifar10_arrays, {}
    ),
    "cifar100-synthetic": MadeUp(
        "Synthetic stand-in for CIFAR-100",
        tuple(synthetic.names(100)),
        synthetic.cifar100_arrays,
        {"coarse_labels": tuple(synthetic.names(20, "superclass"))},
    ),
    "tiny-imagenet-synthetic": MadeUp(
        "Synthetic stand-in for TinyImageNet-200", tuple(synthetic.names(200)), synthetic.tiny_imagenet_arrays, {}
    ),
}


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """The arrays of the set `name`, made once per process; read-only, as staged ones are."""
    made = MADE_UP[name].make()
    for array in made.values():
        array.setflags(write=False)
    return made
