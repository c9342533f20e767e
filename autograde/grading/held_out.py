"""Testing submitted weights on held-out images.

The images are a newly drawn sample of the test split, lightly augmented. Only the images go into the sandbox, never a
label. The class numbers that come out are scored here. Weights are read inside the sandbox, within its limits, as
safetensors, which hold only tensors. With the course's own network, no student code is in the process. If a rubric takes
the network from the notebook (``network = "notebook:make_model"``) or from the program that trained it
(``network = "program:build_network"``), student code computes the answer, from the pixels.

Lab 14's network reads a text. It is tested on pieces of the held-out text, from new places. It is the course's own and
causal, so it may have the characters that it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from autograde.grading.evidence import PROGRAM, WEIGHTS
from autograde.grading.networks import DRIVER, NETWORKS, Network
from autograde.grading.run_judging import other_program
from autograde.rubric.form import ModelEvidence, RunEvidence
from autograde.sandbox.limits import Exceeded, Limits
from autograde.sandbox.turns import in_turn
from autograde.submission.run_folder import EvidenceError
from course_lib.data.characters import load_characters
from course_lib.runs.run_evidence.evidence import Evidence, HeldOut, RunFiles
from course_lib.runs.run_evidence.quoting import quote
from course_lib.runs.run_evidence.run_record import RunRecord
from data_prep import novel
from data_prep.errors import DataError
from data_prep.staged import StagedDataset, read

if TYPE_CHECKING:
    from autograde.grading.grading_context import GradingContext
    from autograde.sandbox.warm import WarmInterpreter

__all__ = ["augment", "check_data", "try_weights", "with_weights"]


def check_data(rules: ModelEvidence) -> None:
    """Check that at least one of the rubric's data sets is staged here.

    Raises `ValueError`: none is staged. The message is one line with the remedy.
    """
    problems = []
    for name in [rules.held_out] if rules.held_out else rules.datasets:
        if name == novel.NAME:  # ships with the course
            return
        try:
            read(name)
            return
        except DataError as error:
            problems.append(str(error))
    raise ValueError(f"submitted weights cannot be tested: {problems[0]}")


def with_weights(
    context: GradingContext,
    rules: RunEvidence,
    evidence: Evidence,
    files: RunFiles,
    cells: list[dict],
    seed: Sequence[int],
) -> Evidence:
    """The evidence with its weights' score; unchanged if the rubric does not test them.

    Parameters
    ----------
    cells : list of dict
        The notebook's answers, for a network from the notebook.
    """
    if rules.model is None:
        return evidence
    tried: HeldOut | EvidenceError
    try:
        if (other := other_program(rules, evidence)) is not None:
            raise EvidenceError(other)
        if isinstance(weights := files[WEIGHTS], EvidenceError):
            raise weights
        if context.warm is None:
            raise EvidenceError("the weights were not tested: there is no sandbox on the grader's machine")
        random = np.random.default_rng([*seed, *b"held-out", *rules.id.encode()])
        own, execution = rules.model, context.rubric.execution
        limits = Limits.of(own.seconds or execution.seconds, own.memory_gib or execution.memory_gib)
        if own.network.startswith("program:"):
            cells = [program_cell(rules, files[PROGRAM])]
        data = context.data(execution.data)
        tried = try_weights(own, evidence, weights, context.warm, random, limits, cells, data)
    except EvidenceError as error:
        tried = error
    return replace(evidence, held_out_or_error=tried)


def program_cell(rules: RunEvidence, text: bytes | EvidenceError) -> dict[str, Any]:
    """The definitions of a submitted program, as a cell of the sandbox.

    Raises `EvidenceError`: the file cannot be read, or is not UTF-8.
    """
    if isinstance(text, EvidenceError):
        raise text
    try:
        return {"id": rules.program, "source": text.decode("utf-8"), "definitions": True}
    except UnicodeDecodeError:
        raise EvidenceError(f"{rules.program}.py is not UTF-8 text: hand in the program that you ran") from None


def try_weights(
    rules: ModelEvidence,
    evidence: Evidence,
    weights: bytes,
    warm: WarmInterpreter,
    random: np.random.Generator,
    limits: Limits,
    cells: list[dict[str, Any]],
    data: Mapping[str, Path],
) -> HeldOut:
    """Predict the classes of held-out images by the submitted weights, and score the predictions.

    Parameters
    ----------
    evidence : Evidence
        Its run record names the data set and the network's settings.
    warm, limits, data
        For the sandbox.
    random : Generator
        Chooses, orders and augments the images.
    cells : list of dict
        The notebook's answers, for a network from the notebook.

    Raises `EvidenceError`: the weights do not fit the network, or the execution ended early. The message is one line
    for the student.
    """
    record = evidence.record
    if record.data_name not in rules.datasets:
        raise EvidenceError(f"the run's data set {quote(record.data_name)} is not one of {', '.join(rules.datasets)}")
    from_student = rules.network.startswith(("notebook:", "program:"))
    name = rules.network if from_student else rules.network.partition(":")[2]
    network = NETWORKS.get(name, Network(normalised=False))
    numbers = _numbers(network, record)
    if network.text:
        sample = _pieces_of_text(rules.images, numbers["context"], random)
    else:
        sample = _images(rules, record.data_name, network, random)
    labels = sample.labels
    given = {"weights": weights, "network": name, "numbers": numbers, "batch": network.batch, **sample.given}

    def predict() -> dict[str, Any]:
        with warm.execute(limits, data=data if from_student else {}) as execution:
            execution.cells(cells if from_student else [])
            return execution.call(DRIVER, "predict_characters" if network.text else "predict", given)[0]

    try:
        reply = in_turn(predict)
    except Exceeded as error:
        raise EvidenceError(f"the weights could not be tested: {error}") from None
    predicted, borrowed = reply.get("value"), ""
    if name.startswith("program:") and isinstance(predicted, dict):
        predicted, borrowed = predicted.get("predicted"), str(predicted.get("borrowed", ""))[:100]
    if not isinstance(predicted, torch.Tensor) or predicted.shape != labels.shape or predicted.is_floating_point():
        error = reply.get("error") if isinstance(reply.get("error"), dict) else {}
        # PyTorch's first line only says that something is wrong; the next ones say what.
        why = quote(" ".join(str(error.get("message", "no classes came back")).split()), 160)
        built = " and ".join(f"{key} {value}" for key, value in numbers.items())
        what = f"the lab's network of {built}" if built else "the lab's network"
        if name.startswith("program:"):
            what = f"the network that {name.partition(':')[2]} of the submitted program makes"
        raise EvidenceError(f"model.safetensors does not fit {what}: {why}")
    correct, unit = int((predicted.numpy() == labels).sum()), "characters" if network.text else "images"
    return HeldOut(correct, labels.size, sample.data, sample.provenance, borrowed, unit)


class _Sample(NamedTuple):
    given: dict[str, Any]  # what the driver has
    labels: np.ndarray
    data: str
    provenance: str


def _images(rules: ModelEvidence, data: str, network: Network, random: np.random.Generator) -> _Sample:
    try:
        staged = read(rules.held_out or data)
    except DataError as error:
        raise EvidenceError(
            f"the grader has no such data to test the weights on ({error}); ask your instructor"
        ) from None
    chosen = random.permutation(len(staged.arrays["test_labels"]))[: rules.images]
    images = augment(staged.arrays["test_images"][chosen], random)
    scale, shift = _normalisation(staged) if network.normalised else ([1 / 255], [0.0])
    given = {
        "channels": int(images.shape[-1]),
        "classes": len(staged.classes),
        "images": torch.from_numpy(images),
        "scale": scale,
        "shift": shift,
    }
    return _Sample(given, np.asarray(staged.arrays["test_labels"][chosen]), staged.name, staged.provenance)


def _pieces_of_text(characters: int, context: int, random: np.random.Generator) -> _Sample:
    """Pieces of the held-out text from places drawn anew, about so many characters in all."""
    text = load_characters()
    starts = random.integers(len(text.held_out) - context, size=(max(1, characters // context), 1))
    pieces = text.held_out[torch.from_numpy(starts) + torch.arange(context + 1)]
    given = {"channels": 0, "classes": len(text.alphabet), "codes": pieces[:, :-1].contiguous()}
    about = text.describe()
    return _Sample(given, pieces[:, 1:].numpy(), about["name"], about["provenance"])


def _numbers(network: Network, record: RunRecord) -> dict[str, int]:
    found = {}
    for name, (default, least, most) in network.numbers.items():
        value = record.parameters.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise EvidenceError(
                f"run.json: parameters.{name} is {quote(value)}, a whole number from {least} to {most} was expected"
            )
        found[name] = value
    return found


def _normalisation(staged: StagedDataset) -> tuple[list[float], list[float]]:
    """Factor and offset per channel for pixels of 0…255, as in `course_lib.data.batches.Batches`."""
    scale = [1 / (255 * float(std)) for std in staged.std]
    return scale, [-float(mean) / float(std) for mean, std in zip(staged.mean, staged.std, strict=True)]


def augment(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Lightly changed copies: each image a little brighter or darker, with a little noise.

    The change moves a trained network's accuracy by less than one percentage point. But no image equals one of the
    public test set byte for byte. Images are uint8 (N, H, W, C).
    """
    gain = random.uniform(0.94, 1.06, (len(images), 1, 1, 1)).astype(np.float32)
    noise = random.normal(0, 2.0, images.shape).astype(np.float32)
    return np.clip(images * gain + noise, 0, 255).round().astype(np.uint8)
