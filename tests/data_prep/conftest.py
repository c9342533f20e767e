import functools
import http.server
import threading

import pytest
import toy_dataset

from data_prep import catalogue


@pytest.fixture
def files():
    """The toy data set's files: 40 training and 10 test images."""
    return toy_dataset.contents(40)


@pytest.fixture
def toy(files, monkeypatch):
    """Puts the toy data set, without sources, into the catalogue; call it with sources to give it some."""

    def put(sources=()):
        monkeypatch.setitem(catalogue.CATALOGUE, "toy", toy_dataset.entry(files, sources))
        return catalogue.CATALOGUE["toy"]

    put()
    return put


@pytest.fixture
def mirror(tmp_path, files):
    return toy_dataset.write_mirror(tmp_path / "mirror", files)


@pytest.fixture
def web(tmp_path):
    """Serves ``tmp_path/web`` on loopback; the address."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def torchvision_datasets():
    """`torchvision.datasets`, which reads files of other sums too."""
    from course_lib.system.torchvision_import import import_torchvision

    import_torchvision()
    from torchvision import datasets

    with pytest.MonkeyPatch.context() as patch:
        for theirs in (datasets.CIFAR10, datasets.CIFAR100):
            patch.setattr(theirs, "_check_integrity", lambda self: True)
        patch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
        yield datasets


@pytest.fixture(scope="session")
def assert_torchvision_reads(torchvision_datasets):
    """Checks that torchvision's own reader of a folder with CIFAR finds what was staged."""

    def check(dataset, folder):
        theirs = {"cifar10": torchvision_datasets.CIFAR10, "cifar100": torchvision_datasets.CIFAR100}[dataset.name]
        for split in ("train", "test"):
            oracle = theirs(folder, train=split == "train")
            images, labels = dataset.arrays[f"{split}_images"], dataset.arrays[f"{split}_labels"]
            assert images.shape[1:] == (32, 32, 3) and (images == oracle.data).all()
            assert labels.tolist() == oracle.targets
            assert list(dataset.classes) == oracle.classes

    return check
