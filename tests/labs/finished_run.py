"""What a lab's run folder holds once the run has ended well, and how good the network in it is."""

import csv
import json

from safetensors.torch import load_file

# Labs whose curve has the accuracy on the test images, on which the weights are tried, too; the others hold images out.
ON_TEST_IMAGES = ("08_parallel_sgd_mpi", "09_hogwild", "11_scaling_study", "12_assessment", "14_model_parallel")
SMOKE = {
    "12_assessment": "cifar10-synthetic",
    "14_model_parallel": "austen-persuasion",
}  # data sets of the smoke profile, where it is another
FILES = {"learning_curve.csv", "run.json", "model.safetensors", "assessment.out"}


def complete(folder, lab, ranks):
    """The run folder's files agree with each other; its record and the rows of its epochs."""
    assert {path.name for path in folder.iterdir() if path.is_file()} >= FILES
    assert not (folder / "unfinished").exists()
    record = json.loads((folder / "run.json").read_text())
    rows = list(csv.DictReader((folder / "learning_curve.csv").read_text().splitlines()))
    lines = (folder / "assessment.out").read_text().splitlines()
    expected = (lab, ranks, SMOKE.get(lab, "fashion-mnist-small"))
    assert (record["lab"], record["world_size"], record["data"]["name"]) == expected
    assert record["ended"] and record["data"]["provenance"]
    assert (rows[0]["epoch"], rows[0]["time"], rows[0]["val_accuracy"]) == ("0", "0.0", "0.0")
    epochs = rows[1:]
    assert 1 <= len(epochs) <= record["parameters"]["epochs"]
    assert [int(row["epoch"]) for row in epochs] == list(range(1, len(epochs) + 1))
    times = [float(row["time"]) for row in epochs]
    assert times == sorted(times) and times[0] > 0
    for row, line in zip(epochs, lines, strict=False):
        assert line.startswith(f"Epoch = {int(row['epoch']):2d}: Cumulative Time = ")
        assert line.endswith(f"Validation Accuracy = {float(row['val_accuracy']):5.3f}")
    accuracies = [float(row["val_accuracy"]) for row in epochs]
    reached = False
    if "target_accuracy" in record["parameters"]:  # else the lab has no early stop
        target, patience = record["parameters"]["target_accuracy"], record["parameters"]["patience"]
        reached = len(accuracies) >= patience and min(accuracies[-patience:]) >= target
    assert record["stopped_early"] == reached
    assert lines[len(epochs) :] == ([f"Early stopping after epoch {len(epochs)}"] if record["stopped_early"] else [])
    assert load_file(folder / "model.safetensors")
    return record, epochs


def accuracy_of(weights, record):
    """The share of images that the folder's network gets right, built here from the course's own parts.

    They are the test images; of lab 07 the validation images, the last sixth of its training images.
    """
    import torch

    if record["lab"] == "14_model_parallel":
        return _share_of_characters(load_file(weights), record["parameters"])

    from course_lib.data.batches import load
    from course_lib.models import HomeworkResNet, ParallelSGDNet, SmallCNN, WideResNet
    from data_prep.staged import read

    staged, tensors = read(record["data"]["name"]), load_file(weights)
    if record["lab"] == "05_resnet_hw":  # behind the notebook's Standardise; one part is named differently
        model = HomeworkResNet(len(staged.classes), len(staged.mean)).eval()
        tensors = {name[2:].replace(".shortcut.", ".downsample."): tensor for name, tensor in tensors.items()}
    elif record["lab"] in ("08_parallel_sgd_mpi", "09_hogwild", "13_sharding"):
        model = ParallelSGDNet(len(staged.classes), len(staged.mean)).eval()
    elif record["lab"] == "10_kfac":
        model = SmallCNN(in_channels=len(staged.mean), num_classes=len(staged.classes)).eval()
    else:
        width = record["parameters"]["width"]
        model = WideResNet((16 * width, 32 * width, 64 * width), len(staged.mean)).eval()
    model.load_state_dict(tensors)
    images, labels = (torch.from_numpy(staged.arrays[f"test_{part}"].copy()) for part in ("images", "labels"))
    images = images.permute(0, 3, 1, 2)
    if record["lab"] == "07_sync_async_sgd":
        training = load(staged.name, train_samples=record["parameters"]["train_samples"]).train
        validation = training.part(slice(len(training) * 5 // 6, None))
        images, labels = validation.images, validation.labels
    images = images.float() / 255
    if record["lab"] == "05_resnet_hw":
        images = torch.nn.functional.avg_pool2d(images, 2)
    images = (images - torch.tensor(staged.mean).view(1, -1, 1, 1)) / torch.tensor(staged.std).view(1, -1, 1, 1)
    with torch.no_grad():
        predicted = torch.cat([model(part).argmax(1) for part in images.split(250)])
    return (predicted == labels).double().mean().item()


def _share_of_characters(tensors, parameters):
    """The share of held-out characters that lab 14's network predicts right."""
    import torch

    from course_lib.data.characters import load_characters
    from course_lib.models import CharacterTransformer

    data, context = load_characters(), parameters["context"]
    sizes = {name: parameters[name] for name in ("width", "heads", "layers", "context")}
    model = CharacterTransformer(len(data.alphabet), **sizes).eval()
    model.load_state_dict(tensors)
    whole = len(data.held_out) // (context + 1) * (context + 1)
    windows = data.held_out[:whole].view(-1, context + 1)
    with torch.no_grad():
        found = torch.cat([model(part[:, :-1]).argmax(-1) for part in windows.split(100)])
    return (found == windows[:, 1:]).double().mean().item()
