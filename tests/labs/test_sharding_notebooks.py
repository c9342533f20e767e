"""What cells of labs 13 and 14 say of bad input, one line each, and their checkpoint on another mesh."""

import ast
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.fsdp
from notebook_cells import cells_of, run_cell
from torch import nn
from torch.nn import functional as F

from course_lib.data.characters import load_characters

SHARDING, PARALLEL = cells_of("13_sharding"), cells_of("14_model_parallel")


def raised(source, namespace, only=(), kind=ValueError):
    """The message of the error that a cell raises, or None."""
    try:
        run_cell(source, namespace, only)
    except kind as error:
        assert "\n" not in str(error)
        return str(error)
    return None


@pytest.mark.parametrize("source", [SHARDING["fsdp"], PARALLEL["study"]], ids=["13", "14"])
def test_a_pytorch_without_fully_shard(monkeypatch, source):
    assert raised(source, {"torch": torch}, (ast.Try,), ImportError) is None
    monkeypatch.delattr(torch.distributed.fsdp, "fully_shard")
    expected = (
        f"PyTorch {torch.__version__} has no fully_shard; the course needs 2.10 or newer: pip install --upgrade torch"
    )
    assert raised(source, {"torch": torch}, (ast.Try,), ImportError) == expected


def parameters(cells, **others):
    namespace = {}
    run_cell(cells["parameters"], namespace)
    return namespace | others


def refused(**others):
    namespace = parameters(PARALLEL, **others) | {"load_characters": load_characters}
    return raised(PARALLEL["setup"], namespace, (ast.Assign, ast.For))


def test_a_mesh_that_does_not_fit_the_model():
    assert refused() is None
    assert refused(num_gpus=4, data_ranks=2) is None
    assert refused(num_gpus=4, data_ranks=3) == "data_ranks = 3: choose a divisor of num_gpus = 4"
    smaller = "the model is smaller than the mesh; choose at least"
    assert refused(num_gpus=8) == f"heads = 4, layers = 4: {smaller} 8 heads and 2 layers"
    assert refused(layers=1) == f"heads = 4, layers = 1: {smaller} 2 heads and 2 layers"
    assert refused(heads=1) == f"heads = 1, layers = 4: {smaller} 2 heads and 2 layers"
    divides = "choose a number that 2 divides, and num_gpus / data_ranks"
    assert refused(num_gpus=3) == f"heads = 4: {divides} = 3"
    assert refused(num_gpus=3, data_ranks=3, heads=5, width=65) == f"heads = 5: {divides} = 1"
    assert refused(heads=6) == "width = 64: choose a multiple of heads = 6"
    assert refused(layers=3) == "layers = 3: choose an even number, for two stages"
    assert refused(study_batch=6) == "study_batch = 6: choose a multiple of 4"
    assert refused(train_samples=60) == "train_samples = 60: choose more characters than context = 64"


def test_fewer_images_than_ranks():
    def said(images, ranks):
        data = SimpleNamespace(train=range(images))
        namespace = parameters(SHARDING, num_gpus=ranks, train_samples=images) | {"load": lambda *_, **__: data}
        source = "\n".join(ast.unparse(node) for node in ast.parse(SHARDING["setup"]).body if "load(" in ast.unparse(node)
                           or isinstance(node, ast.If))  # fmt: skip
        return raised(source, namespace)

    assert said(13, 3) is None  # three images to validate on
    assert said(12, 3) == (
        "train_samples = 12: a sixth of the images, to validate on, is less than one for each of 3 ranks; choose 18 or more"
    )


def test_weights_that_two_blocks_share():
    namespace = {"nn": nn, "torch": torch, "F": F}
    run_cell(SHARDING["sharded-model"], namespace)
    blocks = [nn.Linear(3, 3), nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))]
    blocks[2][0].weight = blocks[0].weight
    with pytest.raises(ValueError) as error:
        namespace["ShardedModel"](blocks)
    assert str(error.value) == (
        "blocks 0 and 2 share 0.weight, a tied weight that each would shard for itself: make them one block"
    )


@pytest.fixture
def alone(monkeypatch):
    """Lab 14's cells on one rank; `ranks(n)` pretends to be rank 0 of n, whose parts alone are looked at."""
    small = dict(width=16, heads=4, layers=2, context=8)
    namespace = parameters(PARALLEL, **small) | {"data": load_characters(1000), "__name__": "cells"}
    run_cell(PARALLEL["setup"], namespace, (ast.Import, ast.ImportFrom))
    for name in ("model", "ex-conjugate", "ex-layers", "ex-blocks", "parallelize", "another-mesh"):
        run_cell(PARALLEL[name], namespace, (ast.ClassDef, ast.FunctionDef, ast.ImportFrom))

    def ranks(number):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: number)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 0)

    return namespace, ranks


def test_a_checkpoint_of_another_mesh(alone):
    cells, ranks = alone
    ranks(2)
    whole = cells["make_model"](1)
    with torch.no_grad():
        for p in whole.parameters():
            p.add_(1)
    half = cells["from_checkpoint"](whole.state_dict())
    rows = torch.cat([whole.blocks[0].attention.qkv.weight[start : start + 8] for start in (0, 16, 32)])
    assert torch.equal(half.blocks[0].attention.qkv.weight, rows)  # two of four heads, of the saved model
    with pytest.raises(ValueError) as error:
        cells["from_checkpoint"](half.state_dict())
    assert str(error.value) == (
        "blocks.0.attention.qkv.weight is (24, 16) in the checkpoint, (48, 16) in the whole model: a part of another mesh? "
        "Save what gathered() returns"
    )
    with pytest.raises(ValueError, match=r"^embedding.letters.weight is missing in the checkpoint, \("):
        cells["from_checkpoint"]({})
