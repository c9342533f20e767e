"""What the exercises on whole programs share: notes of what a program did, its seeds, and its two starts.

The functions that a program calls have stand-ins, which tell the grader what they were given (`ask_grader`).
"""

import contextlib
import os
import pathlib
import tempfile
import threading

import torch
import torch.distributed as dist

from course_lib.exercises.ranks.broker_process_group import joined, left
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import CollectiveProcessGroup, collective_group

__all__ = ["Noted", "Restarted", "named", "near"]

MOST_CALLS = 600


class Noted:
    """For a broker: `calls` has what each rank's program did, as ``[name, facts]`` in order."""

    def __init__(self, size):
        super().__init__(size)
        self.calls = [[] for _ in range(size)]

    @property
    def answers(self):
        return {**super().answers, "called": self.called}

    def called(self, rank, name, facts):
        """A stand-in of that name was called; what it returns."""
        if len(self.calls[rank]) > MOST_CALLS or not isinstance(facts, dict):
            raise ValueError
        self.calls[rank].append([name, facts])


class Restarted(Noted, CollectiveBroker):
    """A program that is started twice, with other weights in the checkpoint than were saved: only a restored file has them.

    `saved` says whether the checkpoint has rank 0's last layer; `changed` is that layer as it is for the second start.
    """

    def __init__(self, size):
        super().__init__(size)
        self.saved, self.changed = False, None

    @property
    def answers(self):
        return {**super().answers, "checkpoint": self.checkpoint}

    def last_layer(self):
        """The weights of the last layer as rank 0 has trained it so far; None if it has not."""
        raise NotImplementedError

    def checkpoint(self, rank, file):
        """What is in the file of the second start; it is changed where the format is safetensors."""
        if rank != 0 or not isinstance(file, torch.Tensor) or file.dtype is not torch.uint8:
            raise ValueError
        if (layer := self.last_layer()) is None:
            return file
        content = file.numpy().tobytes()
        self.saved, self.changed = layer.numpy().tobytes() in content, layer
        if self.saved and content[8:9] == b"{":
            self.changed = 0.75 * layer
            content = content.replace(layer.numpy().tobytes(), self.changed.numpy().tobytes(), 1)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def evidence(self):
        return {"calls": self.calls, "saved": self.saved, "changed": self.changed}


# --- what is sent beside the student's code

HERE = threading.local()  # the ranks of a test are threads
SEED, ENTERING = torch.manual_seed, threading.Lock()
ORIGINALS = []  # of what has stand-ins, while a rank is inside
inside = 0  # ranks


class Killed(Exception):
    """The job ends in the middle of an epoch."""


def ask_grader(name, **facts):
    """State that a stand-in was called, with what; the answer is what it returns."""
    return HERE.outside("called", name, facts)


def noted_seed(seed):
    HERE.seed = int(seed)
    return SEED(seed)


@contextlib.contextmanager
def pretended(*places):
    """Names of modules have stand-ins; `HERE.seed` is each rank's last torch.manual_seed.

    Ranks that are threads share the stand-ins, and the generator, but not `HERE`.
    """
    global inside
    places = [(torch, "manual_seed", noted_seed), (torch.random, "manual_seed", noted_seed), *places]
    with ENTERING:
        inside += 1
        if inside == 1:
            ORIGINALS[:] = [(module, name, getattr(module, name)) for module, name, _ in places]
        for module, name, stand_in in places:
            setattr(module, name, stand_in)
    try:
        yield
    finally:
        with ENTERING:
            inside -= 1
            for module, name, original in ORIGINALS if inside == 0 else ():
                setattr(module, name, original)


def give_stand_ins(main, stand_ins, imported=()):
    """`main`'s globals, with functions in the place of those that it calls; `imported`: pairs of a module's own and a stand-in."""
    names = getattr(main, "__globals__", {})
    for original, stand_in in [(SEED, noted_seed), *imported]:
        names.update({name: stand_in for name, value in names.items() if value is original})
    names.update({function.__name__.removeprefix("stand_in_"): function for function in stand_ins})
    return names


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def started(main, args, run, rank, size, outside):
    """What `main` returns in a process group, and whether that is up afterwards."""
    with collective_group(rank, size, outside):
        returned = main(args, run)
        return returned, {"up": dist.is_initialized(), "files": []}


def started_twice(main, args, run, rank, size, outside, before_the_second):
    """As `started`, without a group, and by a second start; and whether this rank has written the checkpoint.

    Every rank has a file of its own in the place of the shared one, to see who writes.
    """
    raised = True
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        args.checkpoint = os.path.join(folder, "state.safetensors")
        try:
            with contextlib.suppress(Killed):
                main(args, run)
            left()
            written = os.path.exists(args.checkpoint)
            joined({"rank": rank, "size": size}, outside, CollectiveProcessGroup)
            file = [None]
            if rank == 0 and written:
                content = bytearray(pathlib.Path(args.checkpoint).read_bytes())
                file = [outside("checkpoint", torch.frombuffer(content, dtype=torch.uint8)).numpy().tobytes()]
            dist.broadcast_object_list(file, src=0)
            left()
            if file[0] is not None:
                pathlib.Path(args.checkpoint).write_bytes(file[0])
            before_the_second()
            ask_grader("again")
            returned = main(args, run)
            up = dist.is_initialized()
            raised = False
            return returned, {"up": up, "files": [written]}
        finally:
            left()
            outside("left", raised)


# --- judging


def named(calls, name):
    """The facts of all calls of that name."""
    return [facts for called, facts in calls if called == name]


def near(found, right, scale):
    """Whether a tensor is within `scale` of another, by the norm."""
    return isinstance(found, torch.Tensor) and found.shape == right.shape and bool((found - right).norm() <= scale)
