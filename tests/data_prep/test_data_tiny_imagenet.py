import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from toy_dataset import content, quiet

from data_prep import catalogue, progress, staged, staging, synthetic
from data_prep.errors import DataError
from data_prep.provenance import by_sums
from data_prep.sources import SiteMirror


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with ``tiny-imagenet-200``; not to be changed."""
    made = tmp_path_factory.mktemp("made")
    synthetic.write_tiny_imagenet(made)
    return made


@pytest.fixture(scope="module")
def archived(made, tmp_path_factory):
    """A folder with ``tiny-imagenet-200.zip``; not to be changed."""
    folder = tmp_path_factory.mktemp("archived")
    shutil.make_archive(str(folder / "tiny-imagenet-200"), "zip", made, "tiny-imagenet-200")
    return folder


@pytest.fixture
def tree(made, tmp_path):
    """A tree that may be changed: its files are its own names for the same contents."""
    return shutil.copytree(made / "tiny-imagenet-200", tmp_path / "tiny-imagenet-200", copy_function=os.link)


def test_packing_shows_how_far_it_is(made, tmp_path, monkeypatch, capfd):
    """The real set takes minutes: a bar on a terminal, plain lines in a log."""
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    lines = []
    staging.fetch("tiny-imagenet", tmp_path / "log", mirror=made, report=lines.append)
    told = [line for line in lines if line.startswith("packing the train images: ")]
    assert "packing the train images: 1,000 of 1,600" in told and "\r" not in "".join(lines)
    assert "packing" not in capfd.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    staging.fetch("tiny-imagenet", tmp_path / "terminal", mirror=made, report=(lines := []).append)
    assert not [line for line in lines if line.startswith("packing")]
    assert "packing the train images" in capfd.readouterr().err


@pytest.fixture(scope="module")
def uninterrupted(archived, tmp_path_factory):
    root = tmp_path_factory.mktemp("uninterrupted")
    staging.fetch("tiny-imagenet", root, mirror=archived, report=quiet)
    return root


def test_packed_is_what_image_folder_reads(tree, uninterrupted):
    from course_lib.system.torchvision_import import import_torchvision

    import_torchvision()
    from torchvision.datasets import ImageFolder

    for line in (tree / "val" / "val_annotations.txt").read_text().splitlines():
        image, wnid = line.split("\t")[:2]
        (tree / "by_class" / wnid).mkdir(parents=True, exist_ok=True)
        os.link(tree / "val" / "images" / image, tree / "by_class" / wnid / image)
    dataset = staged.read("tiny-imagenet", uninterrupted)
    for split, folder in (("train", tree / "train"), ("test", tree / "by_class")):
        oracle = ImageFolder(folder)
        images, labels = dataset.arrays[f"{split}_images"], dataset.arrays[f"{split}_labels"]
        assert labels.tolist() == oracle.targets and len(images) == len(oracle)
        assert all(np.array_equal(image, np.asarray(theirs)) for image, (theirs, _) in zip(images, oracle, strict=True))
        assert isinstance(images, np.memmap) and images.shape[1:] == (64, 64, 3)
    assert len(dataset.classes) == 200 and dataset.provenance == "synthetic"
    assert len(staged.verify("tiny-imagenet", uninterrupted)) == 4


def test_grayscale_images_get_three_equal_channels(tree, uninterrupted):
    names = sorted(path for path in (tree / "train").rglob("*.JPEG"))
    gray = [position for position, path in enumerate(names) if Image.open(path).mode == "L"]
    images = staged.read("tiny-imagenet", uninterrupted).arrays["train_images"]
    assert len(gray) == 200
    assert all((images[k][..., :1] == images[k]).all() for k in gray)
    assert not any((images[k][..., :1] == images[k]).all() for k in set(range(100)) - set(gray))


def test_the_unpacked_tree_is_as_good_as_the_archive_and_is_not_touched(tree, uninterrupted, tmp_path):
    before = content(tree)
    for mirror in (tree, tree.parent):
        dataset = staging.fetch("tiny-imagenet", tmp_path / mirror.name / "root", mirror=mirror, report=quiet)
        theirs = staged.read("tiny-imagenet", uninterrupted).arrays
        assert all(np.array_equal(array, theirs[key]) for key, array in dataset.arrays.items())
    root = tree / "root"
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["tiny-imagenet"]
    shutil.rmtree(root)
    assert content(tree) == before


def test_the_archive_goes_before_the_tree_because_it_has_a_sum(tree, archived, tmp_path):
    (tmp_path / "into").mkdir()
    os.link(archived / "tiny-imagenet-200.zip", tmp_path / "tiny-imagenet-200.zip")
    entry = catalogue.entry("tiny-imagenet")
    SiteMirror(tmp_path, entry.mirror_layouts, tree=entry.tree).deliver(entry.files, tmp_path / "into", quiet)
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["tiny-imagenet-200.zip"]


def test_class_names_and_provenance_of_a_copy(tree, tmp_path):
    words = (tree / "words.txt").read_text().replace("synthetic ", "real ")
    (tree / "words.txt").unlink()  # the name only: the content has others
    (tree / "words.txt").write_text(words)
    dataset = staging.fetch("tiny-imagenet", tmp_path / "root", mirror=tree, report=quiet)
    assert dataset.provenance == "copy" and dataset.title == "TinyImageNet-200"
    assert dataset.classes[0] == "real class 0" and dataset.classes[199] == "real class 199"


def test_the_official_archive_is_known_by_its_sum(archived, tmp_path):
    entry = catalogue.entry("tiny-imagenet")
    assert by_sums(entry.files, archived, "x") == "copy"
    digest = subprocess.run(["md5sum", archived / "tiny-imagenet-200.zip"], capture_output=True, text=True, check=True)
    files = (replace(entry.files[0], md5=digest.stdout.split()[0]),)
    assert by_sums(files, archived, "x") == "official"


ANNOTATIONS, TRAIN, IMAGE = (
    "val/val_annotations.txt",
    "train/n90000003/images/n90000003_5.JPEG",
    "val/images/val_7.JPEG",
)
SMALLER = io.BytesIO()
Image.new("RGB", (64, 63)).save(SMALLER, "JPEG")
# What is wrong: the file, what becomes of its content (None: it is removed), and the complaint.
BREAKS = {
    "corrupt image": (TRAIN, lambda _: b"\xff\xd8\xff\xe0 no image", f"{TRAIN}: corrupt image: "),
    "cut image": (IMAGE, lambda old: old[:900], f"{IMAGE}: corrupt image: "),
    "another size": (IMAGE, lambda _: SMALLER.getvalue(), f"{IMAGE}: 64×63 pixels, not 64×64"),
    "missing annotation": (
        ANNOTATIONS, lambda old: re.sub(rb"val_12\.JPEG\t.*\n", b"", old), f"val/images/val_12.JPEG: {ANNOTATIONS} has no line for it",
    ),
    "annotation of an unknown class": (
        ANNOTATIONS, lambda _: b"val_0.JPEG\tn12345678\t0\t0\t1\t1\n", f"{ANNOTATIONS}, line 1: 'n12345678' is no class of wnids.txt",
    ),
    "missing image": (IMAGE, None, f"{IMAGE}: missing, though {ANNOTATIONS} has a line for it"),
    "missing class": ("train/n90000042", None, "train/n90000042: the class has no images"),
    "class that is not listed": (
        "train/n12345678/images/a.JPEG", lambda _: b"", "train/n12345678/images/a.JPEG: its class n12345678 is not in wnids.txt",
    ),
    "missing list": ("wnids.txt", lambda _: b"", "wnids.txt: 0 classes, not 200"),
    "list of folders": (
        "wnids.txt", lambda old: old.replace(b"n90000000", b"../../evil"), "wnids.txt: '../../evil' is no WordNet identifier",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_wrong_is_named_in_one_line(tree, tmp_path, what):
    name, change, complaint = BREAKS[what]
    path = tree / name
    old = path.read_bytes() if path.is_file() else b""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)  # the name only: the content has others
    if change:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change(old))
    with pytest.raises(DataError) as caught:
        staging.fetch("tiny-imagenet", tmp_path / "root", mirror=tree, report=quiet)
    assert str(caught.value).startswith(f"tiny-imagenet: mirror {tree}: {complaint}")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(": put the official files there")
    assert [path for path in (tmp_path / "root").iterdir() if path.is_dir()] == []


def test_a_zip_that_is_none_or_is_damaged_is_named(archived, tmp_path):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    archive = mirror / "tiny-imagenet-200.zip"
    archive.write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip: not a zip archive that can be read"):
        staging.fetch("tiny-imagenet", tmp_path / "root", mirror=mirror, report=quiet)
    shutil.copy(archived / archive.name, archive)
    name = "tiny-imagenet-200/train/n90000001/images/n90000001_2.JPEG"
    with zipfile.ZipFile(archive) as opened:
        offset = opened.getinfo(name).header_offset + 30 + len(name) + 700
    flipped = bytearray(archive.read_bytes())
    flipped[offset] ^= 0x55
    archive.write_bytes(flipped)
    with pytest.raises(DataError, match=r"train/n90000001/images/n90000001_2\.JPEG: corrupt image"):
        staging.fetch("tiny-imagenet", tmp_path / "root", mirror=mirror, report=quiet)
