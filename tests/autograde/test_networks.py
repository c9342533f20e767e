"""The networks that weights are loaded into, against the same networks of torchvision and course_lib built here."""

import json
from datetime import UTC, datetime

import nbformat
import numpy as np
import pytest
import torch
from torch import nn

import autograde.grading.held_out
from autograde.grading.held_out import try_weights
from autograde.grading.networks import NETWORKS
from autograde.rubric.schema import ModelEvidence, find_rubric
from autograde.sandbox.limits import Limits
from autograde.submission.run_folder import EvidenceError
from course_lib.data.batches import Batches, Split, load
from course_lib.data.characters import load_characters
from course_lib.models import HomeworkResNet, ParallelSGDNet, SmallCNN, WideResNet, cifar_resnet
from course_lib.runs.parameters import read_rules
from course_lib.runs.records import RunFolder
from course_lib.runs.run_evidence.evidence import Evidence
from course_lib.runs.run_evidence.run_record import RunRecord

SEED = 1


@pytest.fixture
def tried(warm, monkeypatch):
    """Tries weights on images that are not changed, in an order that `chosen` foretells."""
    monkeypatch.setattr(autograde.grading.held_out, "augment", lambda images, random: np.array(images))

    def tried(network, dataset, weights, images, **parameters):
        record = RunRecord(
            "05_resnet_hw", parameters, 1, "cpu", dataset, "synthetic", "made up", datetime.now(UTC), None, False
        )
        missing = EvidenceError("none")
        rules = ModelEvidence(f"course_lib:{network}", (dataset,), images, 0.05)
        evidence = Evidence("05_resnet_hw", record, missing, missing)
        random = np.random.default_rng(SEED)
        return try_weights(rules, evidence, weights, warm, random, Limits(seconds=120), [], {})

    return tried


def chosen(data, images):
    order = torch.from_numpy(np.random.default_rng(SEED).permutation(len(data.test))[:images])
    return Split(data.test.images[order], data.test.labels[order])


def fit_head(model, images, labels):
    """Give a network of random weights a last layer by least squares that knows each of these images, and no other.

    So few images are fitted that all are right, and any other input to the network than this one shows.
    """
    head = next(module for module in reversed(list(model.modules())) if isinstance(module, nn.Linear))
    features = []
    hook = head.register_forward_hook(lambda module, inputs, output: features.append(inputs[0]))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        model.train()(images)
        model.eval()(images)
        hook.remove()
        x = torch.cat([features[1], torch.ones(len(images), 1)], 1).double()
        y = nn.functional.one_hot(labels, head.out_features).double()
        solution = torch.linalg.lstsq(x, y - 0.5).solution.float()
        head.weight.copy_(solution[:-1].T)
        head.bias.copy_(solution[-1])
        return int((model(images).argmax(1) == labels).sum())


def saved(model, folder):
    """The weights' file as a program leaves it."""
    run = RunFolder(str(folder), "05_resnet_hw", {}, {}).start(1, None, "cpu")
    run.save_model(model)
    run.finish(stopped_early=False)
    return (folder / "model.safetensors").read_bytes()


CASES = {
    "homework-cifar100": ("homework_resnet", "cifar100-synthetic", 24, {}, lambda: HomeworkResNet(100)),
    "homework-tiny-imagenet": ("homework_resnet", "tiny-imagenet-synthetic", 8, {}, lambda: HomeworkResNet(200)),
    "parallel-sgd-cifar10": ("parallel_sgd_net", "cifar10-synthetic", 60, {}, lambda: ParallelSGDNet(10, 3)),
    "resnet14-cifar10": ("small_cnn_or_resnet", "cifar10-synthetic", 60, {"depth": 14}, lambda: cifar_resnet(14)),
    "small-cnn-cifar10": ("small_cnn_or_resnet", "cifar10-synthetic", 60, {"depth": 0}, lambda: SmallCNN(in_channels=3, image_size=32)),
    "wide-cifar10": ("wide_resnet_standardised", "cifar10-synthetic", 60, {"width": 1},
                     lambda: WideResNet((16, 32, 64), 3, 10)),
    "wide-2-cifar10": ("wide_resnet", "cifar10-synthetic", 60, {"width": 2}, lambda: WideResNet((32, 64, 128), 3, 10)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_weights_predict_in_the_sandbox_what_they_predict_here(case, tried, tmp_path):
    network, dataset, count, parameters, build = CASES[case]
    torch.manual_seed(0)
    data = load(dataset)
    mean, std = (data.mean, data.std) if network != "wide_resnet" else ((0.0,) * 3, (1.0,) * 3)
    ((images, labels),) = Batches(chosen(data, count), count, mean=mean, std=std)
    model = build()
    assert fit_head(model, images, labels) == count
    found = tried(network, dataset, saved(model, tmp_path / "run"), count, **parameters)
    assert (found.correct, found.images, found.provenance) == (count, count, "synthetic")


def test_every_network_has_a_case():
    assert {network for network, *_ in CASES.values()} | {"character_transformer"} == set(NETWORKS)


def test_weights_of_lab_14_predict_the_characters_that_the_notebook_s_own_network_predicts(tried, tmp_path, repository):
    notebook = nbformat.read(repository / "labs" / "14_model_parallel" / "14_model_parallel.ipynb", as_version=4)
    (cell,) = (cell for cell in notebook.cells if cell.id == "model")
    names = {"torch": torch, "nn": nn, "F": nn.functional}
    exec(cell.source.partition("def make_model")[0], names)
    torch.manual_seed(0)
    text, sizes = load_characters(), {"width": 32, "heads": 4, "layers": 2, "context": 16}
    model = names["Transformer"](len(text.alphabet), *sizes.values())
    adam = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(60):
        pieces = text.train[torch.arange(64)[:, None] * 100 + step + torch.arange(17)]
        loss = nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    starts = np.random.default_rng(SEED).integers(len(text.held_out) - 16, size=(125, 1))
    pieces = text.held_out[torch.from_numpy(starts) + torch.arange(17)]
    expected = int((model(pieces[:, :-1]).argmax(-1) == pieces[:, 1:]).sum())
    assert expected > 0.2 * 2000  # it has learned something; always a space is 17 %
    weights = saved(model, tmp_path / "run")
    found = tried("character_transformer", "austen-persuasion", weights, 2000, **sizes)
    assert (found.correct, found.images, found.unit, found.provenance) == (expected, 2000, "characters", "copy")
    assert tried("character_transformer", "austen-persuasion", weights, 2000, **sizes | {"heads": 8}).correct != expected
    with pytest.raises(EvidenceError, match="does not fit the lab's network of width 32 and heads 4 and layers 3"):
        tried("character_transformer", "austen-persuasion", weights, 2000, **sizes | {"layers": 3})
    assert find_rubric("14").runs[0].model.network == "course_lib:character_transformer"
    rules = read_rules(next(cell.source for cell in notebook.cells if cell.id == "parameters"))
    for name, (_, least, most) in NETWORKS["character_transformer"].numbers.items():
        assert rules[name].text == f"[{least}, {most}]"  # whatever a student may choose


@pytest.mark.parametrize("depth", [111, -1, 8.0, "8", True, None, 10**9])
def test_a_depth_that_is_none_is_a_reason(tried, depth):
    with pytest.raises(EvidenceError, match=r"parameters\.depth is .*, a whole number from 0 to 110 was expected"):
        tried("small_cnn_or_resnet", "cifar100-synthetic", b"", 10, depth=depth)


@pytest.mark.parametrize(
    ("network", "dataset", "told"),
    [
        (
            "homework_resnet",
            "tiny-imagenet-synthetic",
            "does not fit the lab's network: .*size mismatch for classifier",
        ),
        ("small_cnn_or_resnet", "cifar100-synthetic", "does not fit the lab's network of depth 0: .*Missing key"),
    ],
)
def test_weights_of_another_network_are_a_reason(tried, tmp_path, network, dataset, told):
    weights = saved(HomeworkResNet(100), tmp_path / "run")
    with pytest.raises(EvidenceError, match=told):
        tried(network, dataset, weights, 10)


def test_parameters_that_a_network_does_not_have_are_not_looked_at(tried, tmp_path):
    weights = saved(HomeworkResNet(100), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["parameters"] == {}
    assert tried("homework_resnet", "cifar100-synthetic", weights, 10, width="?", image_size=-1).images == 10
