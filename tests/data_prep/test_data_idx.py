import gzip
import io
import struct

import numpy as np
import pytest

from data_prep import catalogue, idx
from data_prep.errors import DataError


def test_decode_reads_what_struct_wrote():
    content = struct.pack(">HBBIII", 0, 8, 3, 2, 3, 4) + bytes(range(24))
    array = idx.decode(content, "x")
    assert array.shape == (2, 3, 4) and array.dtype == np.uint8
    assert array[1, 2, 3] == 23 and array[1, 0, 0] == 12
    assert not array.flags.writeable
    assert idx.encode(array) == content


def test_shipped_labels_are_fashion_mnists():
    # The head of the official training labels, as in the data set's own documentation: an ankle boot comes first.
    path = catalogue.entry("fashion-mnist-small").shipped.path / "train-labels-idx1-ubyte.gz"
    labels = idx.decode(gzip.decompress(path.read_bytes()), "labels")
    assert labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "starts with nothing"),
        (b"\x1f\x8b\x08\x00rest", "not an IDX file of unsigned bytes (it starts with 1f8b0800)"),
        (struct.pack(">HBBI", 0, 13, 1, 1) + bytes(4), "not an IDX file of unsigned bytes"),
        (struct.pack(">HBBI", 0, 8, 0, 1), "not an IDX file of unsigned bytes"),
        (struct.pack(">HBBI", 0, 8, 3, 1), "cut short inside the IDX header (8 of 16 bytes)"),
        (struct.pack(">HBBI", 0, 8, 1, 5) + bytes(4), "takes 13 bytes, the file has 12"),
        (struct.pack(">HBBI", 0, 8, 1, 5) + bytes(6), "takes 13 bytes, the file has 14"),
        (struct.pack(">HBBII", 0, 8, 2, 2**32 - 1, 2**32 - 1), "the file has 12"),
    ],
)
def test_decode_names_what_is_wrong(content, complaint):
    with pytest.raises(DataError) as caught:
        idx.decode(content, "some-file")
    assert complaint in str(caught.value) and str(caught.value).startswith("some-file: ")
    assert "\n" not in str(caught.value)


def test_images_and_labels_are_not_mistaken_for_each_other():
    labels = struct.pack(">HBBI", 0, 8, 1, 2) + bytes(2)
    with pytest.raises(DataError, match="train-images-idx3-ubyte: 1 dimensions"):
        idx.mnist_arrays(lambda name: io.BytesIO(labels))
