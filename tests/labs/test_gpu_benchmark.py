"""benchmarks/gpu.py on the CPU: that it ends, what it writes, what it says of a run that misses its accuracy."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # restored afterwards
    import gpu

    return gpu


def run(gpu, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    return gpu.main()


def test_all_measurements_end_and_the_page_has_their_conditions(gpu, monkeypatch, tmp_path, capsys):
    assert run(gpu, monkeypatch, "--device", "cpu", "--tiny", "--runs", "2", "-o", str(tmp_path)) == 0
    facts, page = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert facts["torch"] == torch.__version__ and facts["runs"] == 2 and facts["tiny"] and facts["driver"]
    results = {each["name"]: each for each in facts["results"]}
    assert list(results) == ["cifar10", "fashion", "throughput"]
    for each in results.values():
        assert len(each["figures"]) == len(each["ratios"]) == 2 and min(each["figures"]) > 0
        assert each["holds"] is None  # neither a CPU nor this size says anything of a GPU
        assert f"| {each['name']} |" in page and each["data"] in page
    for name, least in (("cifar10", "94%"), ("fashion", "85%")):
        assert f"{least} in" in results[name]["verdict"] and "2 of 2 runs miss the accuracy" in results[name]["verdict"]
        assert max(results[name]["accuracies"]) < 0.85
    assert facts["conditions"] in page and "synthetic" in results["cifar10"]["data"]
    assert "no GPU" in capsys.readouterr().out
    import results_gpu

    outcome = {"job": "speed", "passed": True, "threshold": None, **results_gpu.curve_of(tmp_path)}
    text = results_gpu.page({"device": "GPU", "machine": "", "versions": {}, "results": [outcome]}, "gpu.png")
    assert facts["conditions"] in text and results["fashion"]["verdict"] in text


@pytest.mark.parametrize(
    ("seconds", "accuracies", "holds", "said"),
    [
        ([9.0, 9.5, 11.0], [0.941, 0.94, 0.95], True, "holds"),
        ([9.0, 10.5, 11.0], [0.941, 0.94, 0.95], False, "too slow"),
        ([1.0, 1.0, 1.0], [0.941, 0.939, 0.95], False, "1 of 3 runs miss the accuracy, the least is 93.90%"),
    ],
)
def test_a_fast_run_that_misses_the_accuracy_does_not_hold(gpu, seconds, accuracies, holds, said):
    assert gpu.judged(seconds, accuracies, gpu.RECIPES["cifar10"], counts=True)[0] is holds
    verdict = gpu.judged(seconds, accuracies, gpu.RECIPES["cifar10"], counts=True)[1]
    assert verdict.startswith("94% in 10 s: ") and said in verdict
    assert gpu.judged(seconds, accuracies, gpu.RECIPES["cifar10"], counts=False)[0] is None


def test_every_run_starts_from_new_weights(gpu):
    """Runs of one seed end with the same weights: nothing of an earlier run is left in the network, compiled once."""
    recipe = replace(gpu.RECIPES["fashion"], dataset="fashion-mnist-small", **gpu.TINY)
    data = gpu.load(recipe.dataset, train_samples=128, test_samples=100)
    model, ended = gpu.compiled(gpu.accelerate_model(gpu.WideResNet(recipe.widths), "cpu")), []
    for seed in (0, 1, 0):
        gpu.train(recipe, data, model, torch.device("cpu"), seed)
        ended.append(torch.cat([tensor.flatten().double() for tensor in model.state_dict().values()]))
    assert torch.equal(ended[0], ended[2]) and not torch.equal(ended[0], ended[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(gpu, monkeypatch, capsys):
    assert run(gpu, monkeypatch) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.count("\n") == 1 and "needs a CUDA GPU" in seen.err


def test_data_that_are_not_staged_are_one_line(gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LAB_DATA", str(tmp_path))
    assert run(gpu, monkeypatch, "--device", "cpu", "--only", "cifar10") == 1
    assert capsys.readouterr().err.count("\n") == 1
