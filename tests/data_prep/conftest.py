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
