import errno
import hashlib
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import toy_dataset
from fetch_process import go, kill_at_random_times, outcome, start
from toy_dataset import quiet

from data_prep import catalogue, staged, staging, synthetic
from data_prep.errors import Corrupt, DataError, NotStaged, Unavailable


class Broken:
    """A source that cannot."""

    def __init__(self, label, error):
        self.label, self.error = label, error

    def deliver(self, files, into, progress):
        raise self.error


class Working:
    label = "a source that works"

    def __init__(self, contents):
        self.contents = contents

    def deliver(self, files, into, progress):
        for file in files:
            (into / file.name).write_bytes(self.contents[file.name])


def visible(root):
    return sorted(path.name for path in root.iterdir() if not path.name.startswith("."))


def hidden_folders(root):
    return [path.name for path in root.iterdir() if path.is_dir() and path.name.startswith(".")]


def intact(root, files):
    """Whether the staged arrays are the official content, by NumPy alone."""
    for key, name in zip(("train_images", "train_labels", "test_images", "test_labels"), files, strict=True):
        header = 16 if key.endswith("images") else 8
        if np.load(root / "toy" / f"{key}.npy").tobytes() != files[name][header:]:
            return False
    return staged.verify("toy", root) == [f"{key}.npy" for key in staged.ARRAYS]


def test_sources_are_tried_in_order_each_told_in_one_line(tmp_path, toy, files):
    lines = []
    toy([Broken("first", Unavailable("no way")), Broken("second", Corrupt("w", "f", "e", "x")), Working(files)])
    (tmp_path / "empty").mkdir()
    dataset = staging.fetch("toy", tmp_path / "root", mirror=tmp_path / "empty", report=lines.append)
    assert [line.split(": ")[1] for line in lines[:4]] == [f"mirror {tmp_path}/empty", "first", "second", Working.label]
    assert len(lines) == 5 and all(line.startswith("toy: ") and "\n" not in line for line in lines)
    assert lines[1] == "toy: first: no way"
    assert lines[2] == "toy: second: w: f is corrupt: SHA-256 expected e, found x"
    assert lines[4].startswith(f"toy: staged in {tmp_path / 'root' / 'toy'}: 40 + 10 images, official, from a source")
    assert dataset.source == "a source that works"
    assert visible(tmp_path / "root") == ["toy"] and hidden_folders(tmp_path / "root") == []
    assert intact(tmp_path / "root", files)


def test_a_second_fetch_does_nothing_and_says_so(tmp_path, toy, mirror):
    staging.fetch("toy", tmp_path, mirror=mirror, report=quiet)
    before = (tmp_path / "toy" / "dataset.json").stat()
    lines = []
    staging.fetch("toy", tmp_path, mirror=mirror, report=lines.append)
    assert len(lines) == 1 and lines[0].startswith(f"toy: already staged in {tmp_path / 'toy'}: official, from mirror")
    assert (tmp_path / "toy" / "dataset.json").stat().st_mtime_ns == before.st_mtime_ns


def test_everybody_may_read_what_was_staged(tmp_path, toy, mirror):
    old = os.umask(0o022)
    try:
        staging.fetch("toy", tmp_path, mirror=mirror, report=quiet)
    finally:
        os.umask(old)
    assert (tmp_path / "toy").stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "toy").iterdir()} == {0o644}


def test_no_source_is_one_line_with_remedies(tmp_path, toy):
    toy([Broken("only", Unavailable("no way"))])
    with pytest.raises(DataError) as caught:
        staging.fetch("toy", tmp_path, report=quiet)
    assert "none of 1 sources" in str(caught.value) and "--mirror DIR" in str(caught.value)
    assert "fashion-mnist-small" in str(caught.value) and "\n" not in str(caught.value)
    assert visible(tmp_path) == [] and hidden_folders(tmp_path) == []
    with pytest.raises(NotStaged):
        staged.read("toy", tmp_path)


@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_a_set_that_cannot_be_fetched_has_a_stand_in_of_the_same_form(tmp_path, monkeypatch, name):
    entry = replace(catalogue.CATALOGUE[name], sources=())
    monkeypatch.setitem(catalogue.CATALOGUE, name, entry)
    with pytest.raises(DataError) as caught:
        staging.fetch(name, tmp_path, report=quiet)
    offered = re.search(r"or use ([\w-]+), which is", str(caught.value))[1]
    assert staged.read(offered, tmp_path).image_shape == entry.image_shape


SPOILS = {
    "flipped": lambda content: content[:99] + bytes([content[99] ^ 1]) + content[100:],
    "short": lambda content: content[:-1],
    "long": lambda content: content + b"\0",
}


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_corrupt_mirror_file_is_named_with_both_hashes(tmp_path, toy, files, how, gzipped):
    wrong = {**files, "t10k-images-idx3-ubyte": SPOILS[how](files["t10k-images-idx3-ubyte"])}
    mirror = toy_dataset.write_mirror(tmp_path / "wrong", wrong, gzipped)
    toy([Working(files)])  # a mirror somebody named is not passed over in silence
    with pytest.raises(DataError) as caught:
        staging.fetch("toy", tmp_path / "root", mirror=mirror, report=quiet)
    expected = hashlib.sha256(files["t10k-images-idx3-ubyte"]).hexdigest()
    found = hashlib.sha256(wrong["t10k-images-idx3-ubyte"]).hexdigest()
    text = str(caught.value)
    assert f"{mirror}: t10k-images-idx3-ubyte is corrupt: SHA-256 expected {expected}, found {found}" in text
    assert "\n" not in text and "put the official file there" in text
    assert visible(tmp_path / "root") == [] and hidden_folders(tmp_path / "root") == []


@pytest.mark.parametrize("where", [5, 200, -6, -3])
def test_a_gzip_file_with_a_flipped_byte_is_corrupt(tmp_path, toy, files, where):
    mirror = toy_dataset.write_mirror(tmp_path / "mirror", files, gzipped=True)
    path = mirror / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[where] ^= 0xFF
    path.write_bytes(content)
    if where == 5:  # the header's time: the content is whole
        staging.fetch("toy", tmp_path / "root", mirror=mirror, report=quiet)
        return
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is corrupt: SHA-256 expected .* found "):
        staging.fetch("toy", tmp_path / "root", mirror=mirror, report=quiet)


def test_a_flat_mirror_of_another_set_is_passed_over(tmp_path, toy, files, monkeypatch):
    # MNIST and FashionMNIST use the same file names.
    others = toy_dataset.contents(8)
    mirror = toy_dataset.write_mirror(tmp_path / "mirror", others)
    toy([Working(files)])
    lines = []
    monkeypatch.setitem(catalogue.CATALOGUE, "other", replace(toy_dataset.entry(others), name="other"))
    dataset = staging.fetch("toy", tmp_path / "root", mirror=mirror, report=lines.append)
    assert lines[0] == f"toy: mirror {mirror}: its train-images-idx3-ubyte is that of other"
    assert dataset.source == "a source that works"


def test_a_damaged_set_is_fetched_again(tmp_path, toy, mirror, files):
    staging.fetch("toy", tmp_path, mirror=mirror, report=quiet)
    (tmp_path / "toy" / "test_images.npy").write_bytes(b"")
    lines = []
    staging.fetch("toy", tmp_path, mirror=mirror, report=lines.append)
    assert lines[0].startswith("toy: fetching again, because ") and "has 0 bytes" in lines[0]
    assert intact(tmp_path, files) and hidden_folders(tmp_path) == []


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path, toy, files):
    # A torchvision-like root that is its own mirror: DIR/toy holds the raw files.
    toy_dataset.write_mirror(tmp_path / "toy", files)
    with pytest.raises(DataError, match="holds no staged data set: move it away"):
        staging.fetch("toy", tmp_path, mirror=tmp_path, report=quiet)
    assert {path.name: path.read_bytes() for path in (tmp_path / "toy").iterdir()} == files


def test_an_unwritable_root_is_one_line(tmp_path, toy, mirror):
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "root"
    with pytest.raises(DataError) as caught:
        staging.fetch("toy", root, mirror=mirror, report=quiet)
    assert str(caught.value).startswith(f"toy: cannot write in {root} (Not a directory): choose a place with ")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, toy, mirror, monkeypatch):
    def full(sink):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(staged, "flush", full)
    with pytest.raises(DataError, match=r"\(No space left on device\): choose a place with \d+ MB free"):
        staging.fetch("toy", tmp_path / "root", mirror=mirror, report=quiet)
    assert visible(tmp_path / "root") == [] and hidden_folders(tmp_path / "root") == []


def test_leftovers_of_other_sets_are_not_swept_up(tmp_path, toy, mirror):
    for name in (".staging-toy.1-dead", ".staging-toy-small.1-alive", ".staging-toys.1-alive"):
        (tmp_path / name / "raw").mkdir(parents=True)
    staging.fetch("toy", tmp_path, mirror=mirror, report=quiet)
    assert sorted(hidden_folders(tmp_path)) == [".staging-toy-small.1-alive", ".staging-toys.1-alive"]


def test_two_fetches_at_once_end_with_one_good_copy(tmp_path, mirror, files):
    pair = [start("toy", mirror, tmp_path / "root", "--slow", 0.5) for _ in range(2)]
    for process in pair:
        go(process)
    told = sorted((outcome(process) for process in pair), key=len)
    together = "".join(told)
    assert together.count("toy: staged in ") == 1
    assert together.count("another process is fetching it") == 1
    assert together.count("toy: staged meanwhile by another process") == 1
    assert visible(tmp_path / "root") == ["toy"] and hidden_folders(tmp_path / "root") == []
    assert intact(tmp_path / "root", files)


@pytest.mark.parametrize("point", ["collected", "half-written", "before-rename", "after-rename"])
def test_killed_at_a_given_point(tmp_path, toy, mirror, files, point):
    root = tmp_path / "root"
    process = start("toy", mirror, root, "--die", point)
    go(process)
    process.communicate(timeout=600)
    assert process.returncode == -9
    if point == "after-rename":
        assert intact(root, files)
    else:
        assert visible(root) == [] and len(hidden_folders(root)) == 1
        with pytest.raises(NotStaged):
            staged.read("toy", root)
    staging.fetch("toy", root, mirror=mirror, report=quiet)
    assert intact(root, files)
    assert hidden_folders(root) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("toy", ("--images", 20_000)), ("tiny-imagenet", ())])
def test_kills_at_random_times_leave_no_half_set(tmp_path, name, options):
    if name == "toy":
        toy_dataset.write_mirror(tmp_path / "mirror", toy_dataset.contents(20_000), gzipped=True)
    else:
        synthetic.write_tiny_imagenet(tmp_path / "tree")
        shutil.make_archive(str(tmp_path / "mirror" / name) + "-200", "zip", tmp_path / "tree", f"{name}-200")
    kill_at_random_times(name, tmp_path / "mirror", tmp_path, 10, *options)
