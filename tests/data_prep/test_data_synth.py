import hashlib
import subprocess
import sys
from dataclasses import replace

import cifar_files
import numpy as np
import pytest
from click.testing import CliRunner
from toy_dataset import content, quiet

from data_prep import catalogue, made_up, staged, staging, synthetic
from data_prep.cli import data
from data_prep.errors import DataError, UnknownDataset

NAMES = ["cifar10", "cifar100"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Every set, staged."""
    root = tmp_path_factory.mktemp("root")
    for name in [*NAMES, "tiny-imagenet"]:
        staging.synthesize(name, root, report=quiet)
    return root


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """Both sets' files in the official layouts."""
    mirror = tmp_path_factory.mktemp("mirror")
    for name in NAMES:
        catalogue.entry(name).synthesize(mirror)
    return mirror


@pytest.mark.parametrize("name", NAMES)
def test_torchvision_reads_the_same(root, mirror, name, assert_torchvision_reads):
    assert_torchvision_reads(staged.read(name, root), mirror)


@pytest.mark.parametrize("name", [*NAMES, "tiny-imagenet"])
def test_a_linear_classifier_learns_it_and_shuffled_labels_teach_it_nothing(root, name):
    arrays = staged.read(name, root).arrays
    classes = len(staged.read(name, root).classes)

    def accuracy(labels):
        # Ridge regression on 8×8 averages, in closed form.
        def features(images):
            square = images.shape[1] // 8
            small = images.reshape(-1, 8, square, 8, square, 3).mean((2, 4)).reshape(-1, 192) / 255 - 0.5
            return np.c_[small, np.ones(len(small))]

        x = features(arrays["train_images"])
        weights = np.linalg.solve(x.T @ x + np.eye(193), x.T @ np.eye(classes)[labels])
        return ((features(arrays["test_images"]) @ weights).argmax(1) == arrays["test_labels"]).mean()

    assert accuracy(arrays["train_labels"]) > 5 / classes
    assert accuracy(np.random.default_rng(0).permutation(arrays["train_labels"])) < 2.5 / classes


@pytest.mark.parametrize("name", NAMES)
def test_every_class_is_there_and_coarse_labels_follow_the_fine_ones(root, name):
    arrays = staged.read(name, root).arrays
    classes = len(staged.read(name, root).classes)
    for split in ("train", "test"):
        counts = np.bincount(arrays[f"{split}_labels"], minlength=classes)
        assert len(counts) == classes and counts.min() == counts.max()
        if name == "cifar100":
            assert np.array_equal(arrays[f"{split}_coarse_labels"], arrays[f"{split}_labels"] // 5)


def test_every_process_makes_the_same(tmp_path, mirror):
    code = (
        "import hashlib, pathlib, sys; from data_prep import staged, synthetic;"
        "synthetic.write_cifar10(pathlib.Path(sys.argv[1]));"
        "arrays = staged.read('tiny-imagenet-synthetic').arrays;"
        "print(hashlib.sha256(arrays['train_images'].tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert content(tmp_path / "cifar-10-batches-py") == content(mirror / "cifar-10-batches-py")
    ours = staged.read("tiny-imagenet-synthetic").arrays["train_images"]
    assert done.stdout.strip() == hashlib.sha256(ours.tobytes()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_never_shown_as_the_real_thing(tmp_path, root, mirror, name):
    # However it comes under the data root: made there, from a mirror, or declared official by the catalogue's sums.
    fetched = staging.fetch(name, tmp_path, mirror=mirror, report=quiet)
    for dataset in (staged.read(name, root), fetched):
        assert dataset.provenance == "synthetic"
        assert dataset.title == f"Synthetic stand-in for {catalogue.entry(name).title}"
        assert all(label.startswith("synthetic ") for label in dataset.classes)
        assert not set(dataset.classes) & set(catalogue.entry(name).classes)


def test_a_real_set_takes_its_place_and_never_the_other_way_round(tmp_path, monkeypatch):
    root, lines = tmp_path / "root", []
    staging.synthesize("cifar10", root, report=quiet)
    staging.synthesize("cifar10", root, report=lines.append)
    assert lines[0].startswith("cifar10: already staged in") and len(lines) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="none of 1 sources"), monkeypatch.context() as patch:
        patch.setitem(catalogue.CATALOGUE, "cifar10", replace(catalogue.entry("cifar10"), sources=()))
        staging.fetch("cifar10", root, mirror=tmp_path / "empty", report=quiet)
    assert staged.read("cifar10", root).provenance == "synthetic"  # better than nothing, until the real one comes
    cifar_files.write(tmp_path / "real", cifar_files.cifar10())
    lines.clear()
    assert staging.fetch("cifar10", root, mirror=tmp_path / "real", report=lines.append).provenance == "copy"
    assert "is synthetic; looking for the real set" in lines[0]
    with pytest.raises(DataError, match=r"the real set \(copy\) is staged in .*: choose another --root$"):
        staging.synthesize("cifar10", root, report=quiet)
    assert staged.read("cifar10", root).provenance == "copy"
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["cifar10"]


def test_the_command(tmp_path):
    def lab(*words):
        return CliRunner().invoke(data, [str(word) for word in words])

    done = lab("synth", "cifar10", "--root", tmp_path / "root")
    assert done.exit_code == 0 and "2000 + 500 images, synthetic, from lab data synth cifar10" in done.stdout
    assert "synthetic  from lab data synth" in lab("list", "--root", tmp_path / "root").stdout
    assert lab("verify", "cifar10", "--root", tmp_path / "root").exit_code == 0
    assert lab("synth", "cifar10", "--files", tmp_path / "files").exit_code == 0
    assert (tmp_path / "files" / "cifar-10-batches-py" / "data_batch_5").is_file()
    done = lab("synth", "cifar10", "--files", tmp_path / "files")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and "cannot write in" in done.stderr
    done = lab("synth", "mnist")
    assert done.exit_code == 2 and "there is no synthetic set for 'mnist'; there are cifar10, cifar100" in done.stderr
    with pytest.raises(UnknownDataset):
        staging.synthesize("nonsense", tmp_path)


def test_names_of_a_real_set_are_not_taken_for_synthetic():
    assert not any(synthetic.is_synthetic(entry.classes) for entry in catalogue.CATALOGUE.values())
    assert synthetic.is_synthetic(["synthetic a"]) and not synthetic.is_synthetic(["synthetic a", "cat"])
    assert not synthetic.is_synthetic([])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_made_on_demand_is_what_would_be_staged(root, tmp_path, name):
    made, files = staged.read(f"{name}-synthetic", tmp_path / "missing"), staged.read(name, root)
    assert made.arrays.keys() == files.arrays.keys()
    for key, array in files.arrays.items():
        assert np.array_equal(made.arrays[key], array) and made.arrays[key].dtype == array.dtype
    for fact in ("title", "classes", "more_labels", "image_shape", "mean", "std", "provenance", "licence"):
        assert getattr(made, fact) == getattr(files, fact), fact


@pytest.mark.parametrize("name", made_up.MADE_UP)
def test_made_up_arrays_are_never_the_real_ones_nor_written_to(name):
    dataset = staged.read(name)
    assert dataset.provenance == "synthetic" and synthetic.is_synthetic(dataset.classes)
    assert all(synthetic.is_synthetic(names) for names in dataset.more_labels.values())
    assert dataset.name == name and name not in catalogue.CATALOGUE
    assert staged.read(name).arrays["train_images"] is dataset.arrays["train_images"]  # made once
    with pytest.raises(ValueError, match="read-only"):
        dataset.arrays["train_images"][0] = 0


def test_tiny_imagenets_stand_in_has_every_class_alike():
    arrays = staged.read("tiny-imagenet-synthetic").arrays
    assert np.bincount(arrays["train_labels"]).tolist() == [10] * 200
    assert np.bincount(arrays["test_labels"]).tolist() == [2] * 200
    grey = np.linalg.norm(arrays["train_images"].reshape(-1, 8, 8, 8, 8, 3).mean((2, 4)) - 127.5, axis=-1)
    assert arrays["train_images"].shape[1:] == (64, 64, 3) and grey.mean() > 20  # coloured squares, not noise


def test_made_up_names_are_listed_and_not_staged(tmp_path):
    listing = CliRunner().invoke(data, ["list", "--root", str(tmp_path / "missing")])
    lines = [line.split(maxsplit=1) for line in listing.stdout.splitlines()]
    assert all([name, "made on demand, synthetic"] in lines for name in made_up.MADE_UP)
    for command in ("fetch", "verify"):
        done = CliRunner().invoke(data, [command, "cifar10-synthetic", "--root", str(tmp_path / "missing")])
        assert done.exit_code == 2 and "made when it is read" in done.stderr
    assert not list(tmp_path.iterdir())
