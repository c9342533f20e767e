"""The format in which answers come out of the sandbox: what goes in comes out, and what is forged is refused."""

import io
import json
import math
import pickle
import random
import tracemalloc

import numpy as np
import pytest
import torch

from autograde.sandbox.inside import wire

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def there_and_back(value):
    message = wire.encode(value)
    text, blob = wire.lengths(message[: wire.HEADER.size], 1 << 30)
    rest = message[wire.HEADER.size :]
    assert len(rest) == text + blob
    return wire.decode(rest[:text], rest[text:])


PLAIN = [
    None, True, 0, math.nan, -(2**63), 2**63 - 1, 0.1, -0.0, math.inf, -math.inf, "", "é\x00\u2028 $array", b"\x00\xff", [], (), {},
    [1, [2.5, (None, "x")]], {"a": 1, 2: (3,), ("k", 1): [b"v"]},
    {"$array": [0, 10], "$object": "int"}, [{"$tuple": [1]}],  # what looks like the format's own marks
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_as_they_went_types_included(value):
    found = there_and_back(value)
    assert type(found) is type(value) and repr(found) == repr(value)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_tensors_come_back_bit_for_bit(name, shape):
    tensor = (torch.randn(shape) * 5).to(getattr(torch, name))
    found = there_and_back({"t": tensor})["t"]
    assert found.dtype == tensor.dtype and found.shape == tensor.shape and torch.equal(found, tensor)
    assert not found.requires_grad


def test_what_a_tensor_is_besides_its_numbers():
    assert there_and_back(torch.ones(2, requires_grad=True)).requires_grad
    strided = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    assert torch.equal(there_and_back(strided), strided)
    expanded = torch.ones(1).expand(5, 4)
    assert torch.equal(there_and_back(expanded), expanded)


@pytest.mark.parametrize("dtype", ["b1", "u1", "i2", "i4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(dtype, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 2, (3, 4)), dtype=dtype, order=order)
    found = there_and_back([array])[0]
    assert found.dtype == array.dtype and np.array_equal(found, array)
    assert there_and_back(np.float32(0.5)) == 0.5 and there_and_back(np.zeros((0, 3))).shape == (0, 3)


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


OPAQUE = [
    Evil(), object, lambda: 0, 2**70, {1, 2}, 1j, np.array([Evil()]), np.array(["text"]), np.zeros(1, [("a", "f4")]),
    np.array("2026-01-01", "M8[D]"), np.zeros(1, "c8"), torch.zeros(1, dtype=torch.complex64),
    torch.zeros(2, 2).to_sparse(),
]  # fmt: skip


@pytest.mark.parametrize("value", OPAQUE, ids=lambda value: type(value).__name__)
def test_what_is_no_plain_data_arrives_as_the_name_of_its_type_alone(value):
    message = wire.encode([value])
    assert b"__reduce__" not in message and b"\x80\x04" not in message
    assert isinstance(there_and_back([value])[0], wire.Opaque)


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: (value,), lambda value: {"k": value}])
def test_what_is_nested_too_deeply_is_cut(wrap):
    value = 1
    for _ in range(wire.MAX_DEPTH - 1):
        value = wrap(value)
    assert there_and_back(value) == value
    found = there_and_back(wrap(wrap(value)))
    while isinstance(found, list | tuple | dict):
        (found,) = found.values() if isinstance(found, dict) else found
    assert repr(found) == "<too deeply nested>"
    endless = []
    endless.append(endless)
    there_and_back(endless)


def npy(array, **kwargs):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **kwargs)
    return file.getvalue()


def claiming(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b" " * max(0, 118 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "blob",
    [
        npy(np.array([Evil()]), allow_pickle=True),
        pickle.dumps(Evil()),
        npy(np.zeros(3), version=(2, 0)),
        npy(np.zeros(3, ">f8")),
        npy(np.zeros(3, "c16")),
        npy(np.zeros(2, "S5")),
        npy(np.zeros(3))[:-1],
        npy(np.zeros(3)) + b"x",
        b"",
        claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
        claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
        claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }", b"8 bytes."),
        claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 10000000000000000000000), }"),
        claiming("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps(Evil())),
        claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }", b"8 bytes."),
        claiming("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }", b"8 bytes."),
        claiming("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", b"8 bytes."),
        claiming("{'descr': ('<f8', (1000000, 1000000)), 'fortran_order': False, 'shape': (1,), }", b"8 bytes."),
        claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 90 + "), }", b"8 bytes."),
        claiming("(" * 110),
    ],
    ids=range(20),
)
def test_forged_arrays_are_refused_and_take_no_memory(blob):
    for text in (
        {"$array": [0, len(blob)]},
        {"$tensor": [0, len(blob)], "dtype": "float64", "requires_grad": False},
    ):
        refused(json.dumps(text).encode(), blob)


def refused(text: bytes, blob: bytes = b"", megabytes: float = 8.0) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(wire.WireError) as caught:
            wire.decode(text, blob)
        assert tracemalloc.get_traced_memory()[1] < megabytes * (1 << 20)
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


REFUSED = [
    b"", b"{", b"{}", b"\xff", b'{"$pickle": [0, 1]}', b'{"a": 1}', b'{"$array": [0, 1]}', b'{"$array": [-1, 1]}',
    b'{"$array": [true, true]}', b'{"$array": "x"}', b'{"$bytes": [0, 1000000000000]}', b'{"$tensor": [0, 0]}',
    b'{"$tensor": [0, 0], "dtype": "__class__", "requires_grad": false}', b'{"$float": "1"}', b'{"$float": []}',
    b'{"$dict": [[1]]}', b'{"$dict": [[[1], 2]]}', b'{"$tuple": 3}', b"9" * 5_000, b"9223372036854775808", b"[" * 5_000,
    b"[" * 60 + b"]" * 60, b"[" + b"0," * 200_001 + b"0]",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30].decode("latin-1"))
def test_texts_out_of_the_format_are_refused(text):
    refused(text, megabytes=32)


def test_no_byte_of_the_arrays_is_used_twice():
    twice = [{"$bytes": [0, 1000]}, {"$bytes": [0, 1000]}]
    refused(json.dumps(twice).encode(), bytes(1999))
    assert wire.decode(json.dumps(twice[:1]).encode(), bytes(1999)) == [bytes(1000)]


def test_a_length_is_checked_before_anything_is_read():
    for text, blob in ((2**63, 0), (0, 2**64 - 1), (1 << 20, 1)):
        with pytest.raises(wire.WireError, match="at most 1,048,576 are read"):
            wire.lengths(wire.HEADER.pack(text, blob), 1 << 20)


@pytest.mark.filterwarnings("ignore:invalid escape")
def test_five_thousand_mutated_and_random_messages_raise_one_error_only():
    chance = random.Random(0)
    value = {
        "t": torch.randn(4, 3),
        "a": np.arange(6).reshape(2, 3),
        "l": [1, 2.5, math.inf, None, ("x", b"y"), {"k": -1}],
        "o": object(),
    }
    message = wire.encode(value)
    text_size, _ = wire.lengths(message[: wire.HEADER.size], 1 << 30)
    text, blob = message[wire.HEADER.size :][:text_size], message[wire.HEADER.size + text_size :]
    pieces = [b'"$array"', b'"$tensor"', b'"$dict"', b"[0,100]", b"-1", b"1e999", b"NaN", b"{}", b"[]", b"null"]
    pieces.append(b'"\\ud800"')
    refusals = 0
    tracemalloc.start()
    for number in range(5_000):
        new_text, new_blob = bytearray(text), bytearray(blob)
        for _ in range(chance.randint(1, 6)):
            what = chance.randrange(6)
            target = chance.choice((new_text, new_blob))
            at = chance.randrange(len(target) or 1)
            if what == 0 and target:
                target[at % len(target)] = chance.randrange(256)
            elif what == 1:
                del target[at : at + chance.randint(1, 20)]
            elif what == 2:
                target[at:at] = chance.randbytes(chance.randint(1, 20))
            elif what == 3:
                new_text[at : at + chance.randint(0, 8)] = chance.choice(pieces)
            elif what == 4:
                digits = [i for i, byte in enumerate(new_text) if chr(byte).isdigit()]
                if digits:
                    new_text[chance.choice(digits)] = ord(chance.choice("0123456789-e."))
            elif number % 50 == 0:
                new_text = bytearray(chance.randbytes(chance.randint(0, 200)))
        try:
            wire.decode(bytes(new_text), bytes(new_blob))
        except wire.WireError as error:
            refusals += 1
            assert "\n" not in str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refusals > 2_000 and peak < 4 << 20
