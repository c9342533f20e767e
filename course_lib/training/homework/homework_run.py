"""What a homework program needs beside its training: options, data, ranks, checkpoints and the run folder."""

from __future__ import annotations

import io
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.distributed import rank_device
from course_lib.runs.records import EpochRecord, RunFolder, raise_if_diverged
from course_lib.system.atomic import write_atomically
from course_lib.system.hardware import machine_line
from course_lib.training.checkpoint import Checkpoint
from course_lib.training.homework.homework_data import HomeworkData, split_for_homework
from course_lib.training.homework.options import check_options, program_options
from course_lib.training.homework.program_ranks import (
    KNOWN_ERRORS,
    ProgramError,
    exit_in_one_line,
    joined_ranks,
    on_ranks,
)
from course_lib.training.homework.resuming import already_finished, open_run

__all__ = ["HomeworkRun"]

FIGURE = "learning_curve.png"


class HomeworkRun:
    """One training of a homework program. The program's ``train(run)`` does the training itself.

    A whole program::

        from course_lib.training.homework import HomeworkRun

        def train(run):
            model = build_network(len(run.data.classes)).to(run.device)
            optimizer = torch.optim.SGD(model.parameters(), lr=run.options.base_lr)
            run.restore(model, optimizer, None)
            for epoch in run.epochs():
                …  # the epoch, and the evaluation on run.data.validation
                run.end_epoch(model, optimizer, None, train_loss=…, train_accuracy=…,
                              validation_loss=…, validation_accuracy=…)
            run.finish(model)

        if __name__ == "__main__":
            HomeworkRun.main("resnet_cifar100", train, __doc__, dataset="cifar100", epochs=30, batch_size=128, base_lr=0.1)

    The program runs by ``python``, ``torchrun`` and the job scripts. After a ``kill -9`` the same command continues after
    the last epoch that ended. A finished run is left alone; ``--restart`` trains again.

    Attributes
    ----------
    options : namespace
        The options' values: ``run.options.epochs``, ``run.options.base_lr``, …; all that `main` was given, and ``seed``.
    data : HomeworkData
        ``train``, ``validation``, ``test`` (each a `course_lib.data.Split`), ``classes``, ``mean``, ``std``.
    rank, world_size : int
        This rank and the number of ranks. With several, the process group is up.
    device : torch.device
        This rank's device.
    done : int
        Epochs that have ended, with those of an interrupted process.
    output_dir : pathlib.Path
        The run folder.
    root : str or None
        ``--root``, for a program that reads other staged files.

    Notes
    -----
    None of the methods communicates. So a rank that trains nothing, as a server's worker, need not call them. Where
    several ranks train, every rank calls each of them. Rank 0 writes; the values that it gives are those of the curve,
    so sum losses and counts over the ranks before.
    """

    def __init__(
        self,
        name: str,
        folder: RunFolder,
        checkpoint: Checkpoint,
        data: HomeworkData,
        options: SimpleNamespace,
        rank: int,
        world_size: int,
        root: str | None = None,
    ) -> None:
        self.name, self.data, self.options, self.root = name, data, options, root
        self.rank, self.world_size, self.device = rank, world_size, rank_device()
        self.output_dir = Path(folder.path)
        self.finished = False
        self._folder, self._checkpoint = folder, checkpoint
        self._records: list[EpochRecord] = []
        self._epoch_times: list[float] = []
        self._restored, self._lr = False, None
        self._since = time.perf_counter()

    # --- the beginning

    @classmethod
    def main(
        cls,
        name: str,
        train: Callable[[HomeworkRun], None],
        description: str | None = None,
        *,
        lab: str = "05_resnet_hw",
        more: Mapping[str, Any] | None = None,
        meanings: Mapping[str, str] | None = None,
        **defaults: Any,
    ) -> None:
        """Read the command line, join the ranks, call ``train(run)`` on each; an error that has a remedy is one line.

        Parameters
        ----------
        name : str
            The program's. The run folder is ``runs/NAME`` without ``--output-dir``.
        train : callable
            ``train(run)``; it ends with ``run.finish(model)``.
        description : str
            For ``--help``.
        lab : str
            The lab that the program belongs to, for ``run.json``.
        more : mapping
            Further entries of ``run.json``.
        meanings : mapping
            What an option means where this program's differs (as of `program_options`).
        **defaults
            Options and their defaults, out of those of `course_lib.training.homework.options`. ``dataset``, ``epochs``,
            ``batch_size`` are needed. With ``ranks=N`` plain ``python`` starts N ranks on this machine; ``--ranks``
            changes their number.
        """
        parser = program_options(name, description or name, meanings=meanings, **defaults)
        options = parser.parse_args()
        values = check_options(parser, options)
        with exit_in_one_line(name):
            given = (cls, name, train, options, values, lab, dict(more or {}))
            if "ranks" in defaults:
                on_ranks(options.ranks, _train_on_rank, *given, known=KNOWN_ERRORS)
            else:
                _train_on_rank(*given)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None) -> int:
        """Load the state of an interrupted run, if there is one.

        Call it once, before `epochs`, with the model on its device. A model in DistributedDataParallel may be given.

        Returns
        -------
        int
            Epochs that are done already; 0 for a new run.

        Raises
        ------
        CheckpointError
            The state is that of another model, optimiser or schedule.
        """
        if self.rank == 0:
            print(f"network: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
        self._records, self._epoch_times = self._checkpoint.restore(_bare(model), optimizer, scheduler)
        if self.rank == 0 and self._records:
            self._folder.restore(self._records, self._epoch_times)
            print(f"continuing after epoch {self.done} from {self._checkpoint.path}", flush=True)
        self._restored, self._lr = True, _rate(optimizer)
        self._since = time.perf_counter()
        return self.done

    # --- the epochs

    @property
    def done(self) -> int:
        return len(self._records)

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, from 0: all of them, or those after an interruption.

        Each epoch begins by seeding torch's generator from seed, epoch and rank, so that dropout after an interruption
        draws what it would have drawn without.

        Raises
        ------
        ProgramError
            `restore` was not called, or an epoch was left without `end_epoch`.
        """
        if not self._restored:
            raise ProgramError("call run.restore(model, optimizer, scheduler) before run.epochs()")
        for epoch in range(self.done, self.options.epochs):
            self._checkpoint.seed_epoch(epoch + 1)
            self._since = time.perf_counter()
            yield epoch
            if self.done != epoch + 1:
                raise ProgramError(f"epoch {epoch + 1} was left without one call of run.end_epoch(…)")

    def end_epoch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        *,
        train_loss: float,
        train_accuracy: float,
        validation_loss: float,
        validation_accuracy: float,
        seconds: float | None = None,
        images: int | None = None,
    ) -> None:
        """Write the epoch into curve and transcript, then the checkpoint; each file whole or not at all.

        Parameters
        ----------
        train_loss, validation_loss : float
            Mean over images and ranks.
        train_accuracy, validation_accuracy : float
            In 0…1, over all ranks.
        seconds : float
            Of training, without the evaluation; by default, all since the epoch began.
        images : int
            That all ranks together trained on; by default, all training images.

        Raises
        ------
        TrainingDivergedError
            A loss is not finite.
        ValueError
            An accuracy is not in 0…1.
        """
        for what, accuracy in (("train_accuracy", train_accuracy), ("validation_accuracy", validation_accuracy)):
            if not 0 <= float(accuracy) <= 1:
                raise ValueError(f"{what} = {float(accuracy):g}: a share of images is needed, in 0…1")
        took = float(seconds) if seconds is not None else time.perf_counter() - self._since
        took = max(took, 1e-6)
        trained = len(self.data.train) if images is None else images
        record = EpochRecord(
            epoch=self.done + 1,
            time=(self._records[-1].time if self._records else 0.0) + took,
            images_per_sec=trained / took,
            train_loss=float(train_loss),
            train_accuracy=float(train_accuracy),
            val_loss=float(validation_loss),
            val_accuracy=float(validation_accuracy),
            lr=_rate(optimizer) if self._lr is None else self._lr,
        )
        self._records.append(record)
        self._epoch_times.append(took)
        self._lr = _rate(optimizer)  # of the next epoch's first step
        if self.rank == 0:
            self._folder.append(record, took)
            self._checkpoint.save(_bare(model), optimizer, scheduler, self._records, self._epoch_times)
        raise_if_diverged(record)
        self._since = time.perf_counter()

    # --- the end

    def finish(self, model: nn.Module, test_accuracy: float | None = None) -> None:
        """Publish the run: the weights as safetensors, the curve, its figure, the transcript, ``run.json``.

        Parameters
        ----------
        test_accuracy : float
            Measured once, after the last epoch; it is printed.

        Raises
        ------
        ProgramError
            Not all epochs have ended.
        """
        if self.done != self.options.epochs:
            raise ProgramError(f"run.finish after {self.done} of {self.options.epochs} epochs: train them all first")
        self.finished = True
        if self.rank != 0:
            return
        self._folder.save_model(_bare(model))
        self._folder.finish(stopped_early=False)
        self._checkpoint.remove()
        self._draw()
        last = self._records[-1]
        tested = "" if test_accuracy is None else f", test accuracy {float(test_accuracy):.2%}"
        print(
            f"done: validation accuracy {last.val_accuracy:.2%}{tested} after {last.epoch} epochs; {self.output_dir}",
            flush=True,
        )

    def _draw(self) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: a job has no display
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        epochs = [record.epoch for record in self._records]
        axes.plot(epochs, [record.train_accuracy for record in self._records], label="training", marker=".")
        axes.plot(epochs, [record.val_accuracy for record in self._records], label="validation", marker=".")
        axes.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1), title=f"{self.name}: {self.data.name}")
        axes.legend()
        picture = io.BytesIO()
        FigureCanvasAgg(figure).print_png(picture)
        write_atomically(self.output_dir / FIGURE, picture.getvalue())


def _train_on_rank(
    cls: type[HomeworkRun],
    name: str,
    train: Callable[[HomeworkRun], None],
    options: Namespace,
    values: dict[str, Any],
    lab: str,
    more: dict[str, Any],
) -> None:
    with joined_ranks() as (rank, ranks):
        folder, checkpoint, data = open_run(name, options, values, lab, more)
        if already_finished(folder, checkpoint, ranks, options.restart, rank):
            return
        splits = split_for_homework(data)
        torch.manual_seed(values["seed"])  # the same first weights on every rank
        run = cls(name, folder, checkpoint, splits, SimpleNamespace(**values), rank, ranks, options.root)
        resumes = _all_see(checkpoint, run.device)  # rank 0 writes nothing before all have looked for the checkpoint
        if rank == 0:
            folder.start(ranks, dist.get_backend() if ranks > 1 else None, run.device.type, resume=resumes)
            print(f"{name}: {data}\n{ranks} rank(s) on {machine_line()}", flush=True)
        train(run)
        if not run.finished and rank == 0:
            raise ProgramError("train(run) returned without run.finish(model): the run folder is not complete")


def _all_see(checkpoint: Checkpoint, device: torch.device) -> bool:
    """Whether there is a checkpoint; `ProgramError` on every rank if only some ranks see it."""
    exists = checkpoint.exists()
    if dist.is_initialized():
        counts = torch.tensor([int(exists), int(not exists)], device=device)
        dist.all_reduce(counts)
        if counts.min() > 0:
            raise ProgramError(f"only some ranks see {checkpoint.path}: it must be in a folder that all nodes see")
    return exists


def _bare(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])
