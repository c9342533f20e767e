import hashlib
import io
import json
import pickle
import tarfile
from dataclasses import replace

import cifar_files
import numpy as np
import pytest
from toy_dataset import quiet

from data_prep import catalogue, cifar_pickle, staged, staging
from data_prep.errors import Corrupt, DataError, Unavailable
from data_prep.sources import Archive, WebArchive

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
MAKERS = {"cifar10": cifar_files.cifar10, "cifar100": cifar_files.cifar100}


@pytest.fixture(params=["cifar10", "cifar100"])
def name(request):
    return request.param


@pytest.fixture
def made(name):
    return MAKERS[name]()


@pytest.fixture
def mirror(tmp_path, name, made):
    cifar_files.write(tmp_path / "mirror" / FOLDERS[name], made)
    return tmp_path / "mirror"


def mirror_file(mirror, name, part):
    return next(path for path in (mirror / FOLDERS[name]).iterdir() if part in path.name)


@pytest.fixture
def publisher(name, monkeypatch):
    """Makes the catalogue believe that these are the official files."""

    def publish(files):
        entry = catalogue.CATALOGUE[name]
        sums = [replace(f, md5=hashlib.md5(files[f.name]).hexdigest(), size=len(files[f.name])) for f in entry.files]
        monkeypatch.setitem(catalogue.CATALOGUE, name, replace(entry, files=tuple(sums)))

    return publish


def archive(path, folder, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in {"readme.html": b"<p>", **files}.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_images_and_labels_are_torchvisions(tmp_path, name, mirror, assert_torchvision_reads):
    dataset = staging.fetch(name, tmp_path / "root", mirror=mirror, report=quiet)
    assert_torchvision_reads(dataset, mirror)


def test_the_catalogue_has_torchvisions_lists(name, torchvision_datasets):
    theirs = torchvision_datasets.CIFAR10 if name == "cifar10" else torchvision_datasets.CIFAR100
    entry = catalogue.entry(name)
    expected = {file: md5 for file, md5 in theirs.train_list + theirs.test_list}
    expected[theirs.meta["filename"]] = theirs.meta["md5"]
    assert {file.name: file.md5 for file in entry.files} == expected
    assert [source.label for source in entry.sources] == [theirs.url]
    assert entry.archive == Archive(theirs.filename, theirs.base_folder)


def test_coarse_labels_are_kept_and_described(tmp_path):
    files = cifar_files.cifar100()
    cifar_files.write(tmp_path / "mirror" / "cifar-100-python", files)
    staging.fetch("cifar100", tmp_path / "root", mirror=tmp_path / "mirror", report=quiet)
    dataset = staged.read("cifar100", tmp_path / "root")
    oracle = pickle.loads(files["test"], encoding="latin1")
    assert dataset.arrays["test_coarse_labels"].tolist() == oracle["coarse_labels"]
    assert isinstance(dataset.arrays["train_coarse_labels"], np.memmap)
    assert len(dataset.more_labels["coarse_labels"]) == 20 and dataset.more_labels["coarse_labels"][17] == "trees"
    description = json.loads((tmp_path / "root" / "cifar100" / "dataset.json").read_text())
    assert description["more_labels"]["coarse_labels"][0] == "aquatic_mammals"
    assert {"train_coarse_labels.npy", "test_coarse_labels.npy"} < set(staged.verify("cifar100", tmp_path / "root"))
    (tmp_path / "root" / "cifar100" / "test_coarse_labels.npy").unlink()
    with pytest.raises(DataError, match=r"test_coarse_labels\.npy is missing: run `lab data fetch cifar100`"):
        staged.read("cifar100", tmp_path / "root")


@pytest.mark.parametrize("place", ["", "cifar10"])
def test_an_archive_is_as_good_as_the_tree(tmp_path, place):
    files = cifar_files.cifar10()
    archive(tmp_path / "mirror" / place / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    # What an interrupted `tar` left beside it is passed over.
    cifar_files.write(tmp_path / "mirror" / "cifar-10-batches-py", {"data_batch_1": b"half"})
    packed = staging.fetch("cifar10", tmp_path / "one", mirror=tmp_path / "mirror", report=quiet)
    cifar_files.write(tmp_path / "tree", files)
    tree = staging.fetch("cifar10", tmp_path / "two", mirror=tmp_path / "tree", report=quiet)
    for key in staged.ARRAYS:
        assert np.array_equal(packed.arrays[key], tree.arrays[key])


def test_a_broken_archive_is_passed_over_with_a_reason(tmp_path, monkeypatch):
    path = archive(tmp_path / "mirror" / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar_files.cifar10())
    path.write_bytes(path.read_bytes()[:200_000])
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", replace(catalogue.CATALOGUE["cifar10"], sources=()))
    lines = []
    with pytest.raises(DataError, match="none of 1 sources gave it"):
        staging.fetch("cifar10", tmp_path / "root", mirror=tmp_path / "mirror", report=lines.append)
    assert len(lines) == 1 and lines[0].startswith(f"cifar10: mirror {tmp_path / 'mirror'}: the package ")


def test_provenance_is_official_for_the_publishers_bytes_and_copy_otherwise(tmp_path, name, mirror, made, publisher):
    assert staging.fetch(name, tmp_path / "before", mirror=mirror, report=quiet).provenance == "copy"
    publisher(made)
    assert staging.fetch(name, tmp_path / "after", mirror=mirror, report=quiet).provenance == "official"


def test_a_damaged_original_is_not_taken_for_a_copy(tmp_path, name, mirror, made, publisher):
    publisher(made)
    path = mirror_file(mirror, name, "test")
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        staging.fetch(name, tmp_path / "root", mirror=mirror, report=quiet)
    expected, found = (hashlib.md5(data).hexdigest() for data in (made[path.name], content))
    assert f"{path.name} is corrupt: MD5 expected {expected}, found {found}" in str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "root" / name).exists()


def test_a_copy_may_keep_the_official_meta_file(tmp_path, name, mirror, made, publisher):
    publisher({file: content if "meta" in file else content + b"x" for file, content in made.items()})
    assert staging.fetch(name, tmp_path / "root", mirror=mirror, report=quiet).provenance == "copy"


def test_the_publishers_own_address_must_give_official_files(tmp_path, monkeypatch, web):
    files = cifar_files.cifar10()
    archive(tmp_path / "web" / "c.tar.gz", "f", files)
    entry = replace(catalogue.CATALOGUE["cifar10"], sources=(WebArchive(web, Archive("c.tar.gz", "f")),))
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", entry)
    with pytest.raises(DataError, match="data_batch_1 is corrupt: MD5 expected c99cafc1") as caught:
        staging.fetch("cifar10", tmp_path / "root", report=quiet)
    assert isinstance(caught.value.__cause__, Corrupt)
    sums = tuple(replace(file, md5=hashlib.md5(files[file.name]).hexdigest()) for file in entry.files)
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", replace(entry, files=sums))
    assert staging.fetch("cifar10", tmp_path / "root", report=quiet).provenance == "official"
    (tmp_path / "into").mkdir()
    with pytest.raises(Unavailable, match=r"holds no elsewhere/batches\.meta"):
        WebArchive(web, Archive("c.tar.gz", "elsewhere")).deliver(entry.files, tmp_path / "into", quiet)


def test_a_file_without_end_is_given_up(tmp_path, name, mirror, publisher, made, monkeypatch):
    publisher(made)
    monkeypatch.setitem(catalogue.CATALOGUE, name, replace(catalogue.CATALOGUE[name], sources=()))
    path = mirror_file(mirror, name, "test")
    with path.open("ab") as sink:
        sink.truncate(5_000_000)
    lines = []
    with pytest.raises(DataError):
        staging.fetch(name, tmp_path / "root", mirror=mirror, report=lines.append)
    assert "cannot be used: more than" in lines[0]


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *args, state=None):
        self.call = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.call


def evil(canary):
    """Pickles that would do harm, by what they try."""
    import builtins
    import os
    import subprocess

    command = f"touch {canary}"
    array = np.zeros(3, object)
    return {
        "shell": pickle.dumps(Call(os.system, command)),
        "subprocess": pickle.dumps({"data": [Call(subprocess.call, ["touch", str(canary)])]}, 2),
        "exec": pickle.dumps(Call(builtins.exec, f"open({str(canary)!r}, 'w')"), 0),
        "getattr": pickle.dumps(Call(getattr, np.ndarray, "tofile")),
        "load": pickle.dumps(Call(np.load, str(canary))),
        "objects": pickle.dumps({"data": array}, 2),
        "floats": pickle.dumps({"data": np.zeros(3)}, 2),
        "huge array": b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R.",
        "wrong shape": cifar_files.pickled({"data": np.zeros((2, 3), np.uint8)}).replace(b"J\3\0\0\0", b"J\3\0\0\7"),
        "codec": b"\x80\x02c_codecs\nencode\nX\x02\0\0\0abX\x03\0\0\0hex\x86R.",
        # BUILD, the opcode that sets attributes, on a name instead of an object.
        "attribute": b"\x80\x02c_codecs\nencode\nN}X\x03\0\0\0fooK\x01s\x86b.",
        "persistent": b"Ppid\n.",
        "extension": b"\x82\x01.",
    }


def test_a_mirrors_pickles_run_nothing(tmp_path):
    canary = tmp_path / "canary"
    for what, content in evil(canary).items():
        with pytest.raises(DataError) as caught:
            cifar_pickle.load(io.BytesIO(content), "data_batch_1")
        assert str(caught.value).startswith("data_batch_1: not a CIFAR file: "), what
        assert "\n" not in str(caught.value) and not canary.exists(), what
    assert not hasattr(cifar_pickle._Bytes, "foo")
    # The canary sings for the ordinary unpickler.
    pickle.loads(evil(canary)["shell"])
    assert canary.exists()


def test_an_evil_mirror_ends_in_one_line_and_stages_nothing(tmp_path, name, mirror):
    path = mirror_file(mirror, name, "meta")
    path.write_bytes(evil(tmp_path / "canary")["shell"])
    with pytest.raises(DataError) as caught:
        staging.fetch(name, tmp_path / "root", mirror=mirror, report=quiet)
    text = str(caught.value)
    assert text.startswith(f"{name}: mirror {mirror}: {path.name}: not a CIFAR file: it names posix.system")
    assert "\n" not in text and not (tmp_path / "canary").exists() and not (tmp_path / "root" / name).exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"labels": [0]}, "its labels are no list of 2"),
        ({"labels": [0, 10]}, "its labels are not all integers from 0 to 9"),
        ({"labels": [0, -1]}, "its labels are not all integers from 0 to 9"),
        ({"labels": ["0", "1"]}, "its labels are not all integers"),
        ({"labels": None}, "not a CIFAR file"),
        ({"data": np.zeros((2, 3071), np.uint8)}, "its data is no array of rows of 3072 bytes"),
        ({"data": [0, 1]}, "its data is no array"),
    ],
)
def test_a_batch_that_is_none_is_named(tmp_path, change, complaint):
    files = cifar_files.cifar10(2)
    batch = {"labels": [0, 1], "data": np.zeros((2, 3072), np.uint8), **change}
    files["data_batch_3"] = b"junk" if batch["labels"] is None else cifar_files.pickled(batch)
    cifar_files.write(tmp_path / "mirror", files)
    with pytest.raises(DataError, match=rf"^cifar10: mirror .*: data_batch_3: .*{complaint}"):
        staging.fetch("cifar10", tmp_path / "root", mirror=tmp_path / "mirror", report=quiet)


def test_files_with_other_class_names_are_another_set(tmp_path, name, mirror):
    path = mirror_file(mirror, name, "meta")
    path.write_bytes(path.read_bytes().replace(b"bear" if name == "cifar100" else b"ship", b"beer"))
    with pytest.raises(DataError, match=r"class names of its labels are not those of CIFAR-10.*: 'beer'"):
        staging.fetch(name, tmp_path / "root", mirror=mirror, report=quiet)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_python_3_wrote_is_read_too(protocol):
    content = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "batch_label": b"x"}
    content["fortran"] = np.asfortranarray(content[b"data"])
    read = cifar_pickle.load(io.BytesIO(pickle.dumps(content, protocol)), "x")
    assert np.array_equal(read["data"], content[b"data"]) and np.array_equal(read["fortran"], content[b"data"])
    assert read["labels"] == [1, 2] and read["batch_label"] == b"x"
