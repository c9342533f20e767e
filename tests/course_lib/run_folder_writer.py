"""Writes run folders for ever, for `test_run_folder` to kill."""

import itertools

import torch

from course_lib.runs.records import EpochRecord, RunFolder


class Weights:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"w": torch.full((50_000,), float(self.value))}


def write_run(folder, number, epochs=3):
    """One whole run whose every file says `number`."""
    run = RunFolder(folder, "01_single_gpu", {"seed": number}, {"name": "none"}).start(1, None, "cpu")
    for epoch in range(1, epochs + 1):
        run.append(EpochRecord(epoch, epoch * 1.0, float(number), 1.0, 0.5, 1.0, 0.5, 0.1), 1.0)
    run.save_model(Weights(number))
    return run.finish(False)


def write_for_ever(folder, first, begun):
    """Run after run, until this process is killed; says through `begun` that it begins."""
    begun.send(True)
    for number in itertools.count(first):
        write_run(folder, number)
