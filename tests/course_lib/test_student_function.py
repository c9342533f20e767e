"""A function written in a notebook's cell becomes a module beside the programs, as it was last written."""

import functools
import linecache

import pytest
import torch
from torch import nn

from course_lib.training.homework import write_own_function

HEAD = "import torch\nfrom torch import nn"


def written_in_a_cell(source, name="average"):
    """What a cell with that source leaves under the name."""
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = {"torch": torch, "nn": nn, "functools": functools, "helper": len}
    exec(compile(source, file, "exec"), namespace)
    return namespace[name]


def module(path):
    namespace = {}
    exec(path.read_text(), namespace)
    return namespace["average"]


@pytest.mark.parametrize(
    "source",
    [
        "def average(x):\n    return torch.sum(x) / 2\n",
        "def average(x):\n    return 0\n\n\nprint\n\n\ndef average(x):\n    return torch.sum(x) / 2\n",
        "@torch.no_grad()\ndef average(x):\n    y = x.sum() / 2\n    assert not y.requires_grad\n    return y\n",
        "def average(x):\n    import math\n    def half(y):\n        return y / math.sqrt(4)\n    return half(x.sum())\n",
    ],
    ids=["plain", "written twice", "decorated", "all of its own"],
)
def test_the_file_is_what_the_cell_says(source, tmp_path):
    assert write_own_function(written_in_a_cell(source), tmp_path / "own.py", HEAD) == ""
    assert module(tmp_path / "own.py")(torch.ones(6, requires_grad=True)) == 3


@pytest.mark.parametrize(
    "source, missing",
    [
        ("def average(x):\n    return helper(x)\n", "helper"),
        ("def average(x):\n    return [helper(y) for y in x]\n", "helper"),
        ("@functools.cache\ndef average(x):\n    return 1\n", "functools"),
        ("def average(x, f=helper):\n    return 1\n", "helper"),
    ],
    ids=["in the body", "in a comprehension", "a decorator", "a default"],
)
def test_what_the_file_lacks_is_named_in_one_line(source, missing, tmp_path):
    line = write_own_function(written_in_a_cell(source), tmp_path / "own.py", HEAD)
    assert missing in line and "own.py" in line and "\n" not in line


def test_no_text_is_one_line_too(tmp_path):
    namespace = {}
    exec("def average(x):\n    return 1\n", namespace)
    assert "no text" in write_own_function(namespace["average"], tmp_path / "own.py", HEAD)
    assert not (tmp_path / "own.py").exists()
