"""Lab 09's recorded training: a divergence is on record as in every other lab, so that sweeps and `lab run` name it."""

import ast
import types

import pytest
import torch
from notebook_cells import cells_of, run_cell

from course_lib.runs.records import TrainingDivergedError, divergence


def test_a_training_that_diverges_is_named_in_the_run_folder(tmp_path):
    cells = cells_of("09_hogwild")

    def train_network(processes, model, tensors, epochs):
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
        return 1.0, 8

    batches = [(torch.randn(8, 3), torch.randint(2, (8,)))]
    namespace = {
        "data": types.SimpleNamespace(train=None, describe=dict), "given": {}, "output_dir": str(tmp_path), "seed": 0,
        "epochs": 2, "num_gpus": 1, "base_lr": 9.0, "target_accuracy": 0.9, "patience": 2, "test_batches": batches,
        "new_network": lambda seed: torch.nn.Linear(3, 2), "normalised": lambda split: batches[0],
        "train_network": train_network,
    }  # fmt: skip
    run_cell(cells["setup"], namespace, (ast.Import, ast.ImportFrom))
    with pytest.raises(TrainingDivergedError, match="loss is nan in epoch 1"):
        exec(cells["experiment"], namespace | {"train_network": train_network})
    assert "loss is nan in epoch 1" in divergence(tmp_path, since="")
