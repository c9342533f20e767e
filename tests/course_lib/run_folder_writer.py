"""Writes run folders for ever, for `test_run_folder` to kill: python run_folder_writer.py FOLDER."""

import itertools
import json
import sys

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


if __name__ == "__main__":
    for number in itertools.count(json.loads(sys.argv[2])):
        write_run(sys.argv[1], number)
