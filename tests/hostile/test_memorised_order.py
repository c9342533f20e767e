"""A network that is the notebook's own code, and answers with the public test labels in the order of their file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exhibits import HONEST_RUN, LAB
from safetensors.torch import save

from autograde.grading.evidence import LIMITS
from autograde.grading.held_out import try_weights
from autograde.rubric.schema import ModelEvidence
from autograde.sandbox.bubblewrap import missing_sandbox
from autograde.sandbox.limits import Limits
from course_lib.runs.run_evidence.evidence import parse_evidence
from data_prep.staged import read

MISSING = missing_sandbox()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

ORACLE = """
import torch

class Oracle(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("labels", torch.zeros(SIZE, dtype=torch.int64))
        self.seen = 0

    def forward(self, images):
        labels = self.labels[self.seen : self.seen + len(images)]
        self.seen += len(images)
        return torch.nn.functional.one_hot(labels, 10).float()

make_model = Oracle
"""


def test_a_memorised_order_scores_chance(warm):
    staged = read("fashion-mnist-small")
    labels = torch.from_numpy(np.asarray(staged.arrays["test_labels"]).astype("int64"))
    evidence = parse_evidence(LAB, {name: (HONEST_RUN / name).read_bytes() for name in LIMITS})
    rules = ModelEvidence("notebook:make_model", ("fashion-mnist-small",), len(labels), 0.04)
    cells = [{"id": "model", "source": ORACLE.replace("SIZE", str(len(labels))), "definitions": False}]
    random = np.random.default_rng(1)
    found = try_weights(rules, evidence, save({"labels": labels}), warm, random, Limits(), cells, {})
    assert found.images == len(labels)
    assert abs(found.accuracy - 0.1) < 5 * (0.1 * 0.9 / found.images) ** 0.5  # five standard errors of chance
