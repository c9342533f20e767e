import json
import os
import subprocess
import sys

import numpy as np
import pytest

from data_prep import catalogue, staged, staging
from data_prep import root as root_module
from data_prep.errors import Corrupt, Damaged, DataError, NotStaged, UnknownDataset
from data_prep.mmap_pages import drop_pages
from data_prep.root import data_root


@pytest.fixture
def root(tmp_path, toy, mirror):
    staging.fetch("toy", tmp_path / "root", mirror=mirror, report=lambda line: None)
    return tmp_path / "root"


def test_read_gives_the_official_arrays_mapped_and_read_only(root, files):
    dataset = staged.read("toy", root)
    pixels = np.frombuffer(files["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(40, 28, 28, 1)
    labels = np.frombuffer(files["t10k-labels-idx1-ubyte"], np.uint8, offset=8)
    assert np.array_equal(dataset.arrays["train_images"], pixels)
    assert np.array_equal(dataset.arrays["test_labels"], labels)
    for array in dataset.arrays.values():
        assert isinstance(array, np.memmap) and array.dtype == np.uint8 and not array.flags.writeable
    assert dataset.mean == pytest.approx([(pixels / 255).mean()], abs=1e-12)
    assert dataset.std == pytest.approx([(pixels / 255).std()], abs=1e-12)
    assert (dataset.name, dataset.provenance, dataset.path) == ("toy", "official", root / "toy")
    assert dataset.classes == tuple("abcdefghij") and dataset.image_shape == (28, 28, 1)


def test_channel_statistics_keep_channels_apart():
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3)).astype(np.uint8)
    images[..., 1] //= 2
    mean, std = staged.channel_statistics(images)
    assert mean == pytest.approx((images / 255).mean((0, 1, 2)), abs=1e-12)
    assert std == pytest.approx((images / 255).std((0, 1, 2)), abs=1e-12)


def test_a_mapped_array_keeps_what_was_written_when_its_pages_are_released(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3)).astype(np.uint8)
    mapped = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint8, images.shape)
    mapped[:] = images
    drop_pages(mapped)
    assert np.array_equal(mapped, images) and np.array_equal(np.load(tmp_path / "a.npy"), images)
    assert staged.channel_statistics(mapped) == staged.channel_statistics(images)
    drop_pages(images)


def test_an_array_packed_on_the_disk_is_moved_and_a_mapped_original_is_copied(tmp_path, toy):
    arrays = {f"{split}_labels": np.zeros(3, np.uint8) for split in ("train", "test")}
    arrays["train_images"] = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint8, (3, 28, 28, 1))
    np.save(tmp_path / "b.npy", np.ones((3, 28, 28, 1), np.uint8))
    arrays["test_images"] = np.load(tmp_path / "b.npy", mmap_mode="r")
    number = (tmp_path / "a.npy").stat().st_ino
    staged.write(tmp_path / "toy", toy(), arrays, "nowhere")
    assert (tmp_path / "toy" / "train_images.npy").stat().st_ino == number and not (tmp_path / "a.npy").exists()
    assert np.load(tmp_path / "b.npy").all() and np.load(tmp_path / "toy" / "test_images.npy").all()


def test_description_is_readable_without_this_package(root):
    description = json.loads((root / "toy" / "dataset.json").read_text())
    assert description["splits"] == {"train": 40, "test": 10}
    assert description["image_shape"] == [28, 28, 1]
    assert set(description["files"]) == {f"{key}.npy" for key in staged.ARRAYS}
    assert all(len(facts["sha256"]) == 64 for facts in description["files"].values())


def test_not_staged_names_place_and_remedy(tmp_path):
    with pytest.raises(NotStaged) as caught:
        staged.read("mnist", tmp_path)
    assert str(caught.value) == f"mnist is not staged in {tmp_path}: run `lab data fetch mnist`"


@pytest.mark.parametrize("name", ["nonsense", "../toy", "/etc", ".", ""])
def test_unknown_names_never_leave_the_root(root, name):
    (root / "below").mkdir()
    with pytest.raises(UnknownDataset, match="there are fashion-mnist, mnist, fashion-mnist-small"):
        staged.read(name, root / "below")


def test_a_truncated_array_is_one_clear_line(root):
    path = root / "toy" / "train_images.npy"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(Damaged) as caught:
        staged.read("toy", root)
    assert str(caught.value) == f"{path} has {size - 1} bytes, not {size}: run `lab data fetch toy`"


def test_a_missing_array_is_named(root):
    (root / "toy" / "test_labels.npy").unlink()
    with pytest.raises(Damaged, match=r"test_labels\.npy is missing: run `lab data fetch toy`"):
        staged.read("toy", root)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "name": "toy", "files": 3}']
)
def test_a_damaged_description_is_one_line(root, text):
    (root / "toy" / "dataset.json").write_text(text)
    with pytest.raises(Damaged, match="run `lab data fetch toy`") as caught:
        staged.read("toy", root)
    assert "\n" not in str(caught.value)


def test_a_description_of_the_wrong_types_is_one_line(root):
    path = root / "toy" / "dataset.json"
    description = json.loads(path.read_text())
    for key in ("files", "splits", "classes", "image_shape", "mean"):
        path.write_text(json.dumps({**description, key: 3}))
        with pytest.raises(Damaged, match="run `lab data fetch toy`"):
            staged.read("toy", root)


def test_pickles_are_never_loaded(root):
    path = root / "toy" / "train_labels.npy"
    with path.open("wb") as sink:
        np.save(sink, np.array([print] * 40, dtype=object), allow_pickle=True)
    description = json.loads((root / "toy" / "dataset.json").read_text())
    description["files"]["train_labels.npy"]["bytes"] = path.stat().st_size
    (root / "toy" / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(Damaged, match="cannot be read as an array"):
        staged.read("toy", root)


def test_verify_names_the_corrupt_file_with_both_hashes(root):
    assert staged.verify("toy", root) == [f"{key}.npy" for key in staged.ARRAYS]
    path = root / "toy" / "test_images.npy"
    expected = json.loads((root / "toy" / "dataset.json").read_text())["files"]["test_images.npy"]["sha256"]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    # sha256sum, not the code under test, says what is there now.
    found = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]
    staged.read("toy", root)  # the cheap check cannot see it
    with pytest.raises(Corrupt) as caught:
        staged.verify("toy", root)
    assert f"test_images.npy is corrupt: SHA-256 expected {expected}, found {found}" in str(caught.value)


def test_write_refuses_arrays_that_do_not_fit_the_entry(tmp_path, toy):
    shapes = {"train_images": (3, 28, 28, 1), "train_labels": 3, "test_images": (2, 28, 28, 1), "test_labels": 2}
    arrays = {key: np.zeros(shape, np.uint8) for key, shape in shapes.items()}
    for key, wrong in (
        ("train_images", np.zeros((3, 28, 27, 1), np.uint8)),
        ("test_images", np.zeros((2, 28, 28, 1), np.float32)),
        ("train_labels", np.zeros(2, np.uint8)),
        ("test_labels", np.full(2, 10, np.uint8)),
    ):
        with pytest.raises(DataError):
            staged.write(tmp_path / key, toy(), {**arrays, key: wrong}, "nowhere")
        assert not (tmp_path / key).exists()


def test_the_shipped_subset_needs_no_root(tmp_path):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "root"  # cannot exist: its parent is a file
    dataset = staged.read("fashion-mnist-small", root)
    assert dataset.arrays["train_images"].shape == (5000, 28, 28, 1)
    assert dataset.arrays["test_images"].shape == (1000, 28, 28, 1)
    assert dataset.provenance == "official" and "subset" in dataset.source
    assert not any(array.flags.writeable for array in dataset.arrays.values())
    for split, low, high in (("train", 450, 560), ("test", 85, 120)):
        counts = np.bincount(dataset.arrays[f"{split}_labels"], minlength=10)
        assert low < counts.min() and counts.max() < high
    images = dataset.arrays["train_images"] / 255
    assert dataset.mean == pytest.approx([images.mean()]) and dataset.std == pytest.approx([images.std()])
    assert len(staged.verify("fashion-mnist-small", root)) == 4


def test_the_shipped_subset_is_small_and_can_be_staged(tmp_path):
    folder = catalogue.entry("fashion-mnist-small").shipped.path
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3_000_000
    packed = staged.read("fashion-mnist-small", tmp_path)
    dataset = staging.fetch("fashion-mnist-small", tmp_path, report=lambda line: None)
    assert dataset.path == tmp_path / "fashion-mnist-small" == staged.read("fashion-mnist-small", tmp_path).path
    assert all(np.array_equal(dataset.arrays[key], packed.arrays[key]) for key in staged.ARRAYS)
    assert (dataset.mean, dataset.std) == (packed.mean, packed.std)


def test_ranks_read_the_shipped_subset_at_once(tmp_path):
    code = "from data_prep.staged import read; print(read('fashion-mnist-small').arrays['train_images'].sum())"
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={"LAB_DATA": str(tmp_path)})
        for _ in range(3)
    ]
    sums = {rank.communicate(timeout=600)[0] for rank in ranks}
    assert len(sums) == 1 and int(sums.pop()) > 0
    assert list(tmp_path.iterdir()) == []


def test_data_root_order(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("LAB_DATA")
    checkout = tmp_path / "checkout"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    share = "distributed-training-labs"
    for module, xdg, expected in (
        (checkout / "data_prep", "/ignored", checkout / "data"),
        (tmp_path / "lib", "", tmp_path / "home" / ".local" / "share" / share),
        (tmp_path / "lib", "relative", tmp_path / "home" / ".local" / "share" / share),
        (tmp_path / "lib", str(tmp_path / "xdg"), tmp_path / "xdg" / share),
    ):
        monkeypatch.setenv("XDG_DATA_HOME", xdg)
        (module / "..").resolve().mkdir(exist_ok=True)
        monkeypatch.setattr(root_module, "__file__", str(module / "root.py"))
        (checkout / "pyproject.toml").touch()
        (tmp_path / "cwd").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "cwd")
        assert data_root() == expected
