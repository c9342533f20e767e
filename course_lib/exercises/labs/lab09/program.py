"""Lab 09: the program that starts the processes. They are real: forks that wait for each other and share memory.

The worker that `train` starts is ours. Each process writes a line into a pipe: who it is, and what it finds. A process that
nobody joins at the barrier gives up after some seconds, so a wrong program ends, too.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.context
import os
import select
import signal
import threading
import time
from multiprocessing import connection

import torch
import torch.multiprocessing as mp
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab09.own_process import in_a_process

__all__ = ["PROGRAM"]

PATIENCE = 5.0  # seconds that a process waits for the others
LIMIT = 12  # seconds after which a process, or a `train` that hangs, is ended


def _draw_programs(random):
    def case(size, about, locked=False, network=False, dies="", when=""):
        begins = random.uniform(1e3, 1e5) + random.uniform(0, 1, size)
        return {
            "size": size, "locked": locked, "network": network, "when": when, "dies": dies,
            "who": int(random.integers(0, size)), "samples": [int(n) for n in random.integers(50, 500, size)],
            "clock": [[float(start), float(start + each)] for start, each in zip(begins, sorted(random.uniform(3, 9, size)), strict=True)],
            "token": int(random.integers(0, 10**9)), "about": about,
        }  # fmt: skip

    return {
        "free": [case(3, "3 processes without a lock")],
        "locked": [case(2, "2 processes with a lock, a network", locked=True, network=True)],
        "dead": [
            case(3, "3 processes, one ends with exit code 3 before the barrier", dies="exits", when="before"),
            case(2, "2 processes, one is killed while it holds the lock", locked=True, dies="killed", when="inside"),
        ],
    }


# --- what is sent beside the student's code


def played_worker(rank, size, model, data, job, lock, barrier, done, clock):
    """What each process does. It raises nothing: what is wrong is in its line."""
    case, pipe = job["case"], job["pipe"]
    said = {"rank": rank, "size": size, "pid": os.getpid(), "parent": os.getppid(), "thread": threading.get_native_id()}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT + 5)  # nothing of this case stays
    except ValueError:
        said["main"] = False  # a thread
    try:
        said["token"] = job["token"]
        if rank == case["who"] and case["when"] == "before":
            os.write(pipe, (json.dumps(said) + "\n").encode())
            end_badly(case["dies"], job["me"])
        weights = model if isinstance(model, torch.Tensor) else next(model.parameters()).data.view(-1)
        time.sleep(0.03 * rank)
        job["present"][rank] = 1
        barrier.wait(PATIENCE)
        said["present"] = int(job["present"].sum())
        weights.data[rank] += rank + 1.0
        done[rank] += case["samples"][rank]
        clock[rank, 0], clock[rank, 1] = case["clock"][rank]
        barrier.wait(PATIENCE)
        said["weights"], said["model"] = weights[:size].tolist(), weights.is_shared()
        said["data"] = all(tensor.is_shared() for tensor in data)
        if case["when"] == "inside":
            with lock:
                if rank == case["who"]:
                    os.write(pipe, (json.dumps(said) + "\n").encode())
                    end_badly(case["dies"], job["me"])
        elif case["locked"]:
            said["crowd"] = crowd_inside(lock, job["inside"])
            barrier.wait(PATIENCE)
        else:
            said["let"] = False
            with lock:
                barrier.wait(PATIENCE)
            said["let"] = True
    except threading.BrokenBarrierError:
        said["alone"] = True
    except Exception as error:
        said["error"] = f"{type(error).__name__}: {error}"[:200]
    os.write(pipe, (json.dumps(said) + "\n").encode())


def end_badly(how, me):
    if os.getpid() == me:
        raise RuntimeError("this process should be one of its own")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def crowd_inside(lock, inside):
    """The most processes that were inside at the same time."""
    most = 0
    for _ in range(4):
        with lock:
            inside += 1
            time.sleep(0.004)
            most = max(most, int(inside))
            inside -= 1
        time.sleep(0.001)
    return most


class Forked(multiprocessing.context.ForkProcess):
    """A process whose exit code is known as soon as its sentinel is ready, as with forkserver and spawn.

    A fork's sentinel is ready when the kernel closes its files, some microseconds before its exit code can be read. A `train`
    that reads the code in between finds None, takes the dead process for a living one, and waits for ever.
    """

    @property
    def exitcode(self):
        if super().exitcode is None and self.pid is not None and connection.wait([self.sentinel], 0):
            self.join(1.0)
        return super().exitcode


class Forking(multiprocessing.context.ForkContext):
    Process = Forked


class TooLong(Exception):
    pass


@contextlib.contextmanager
def alarm(seconds):
    """Raise `TooLong` in this thread after so many seconds."""

    def ring(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def lines_of(pipe):
    text = b""
    while select.select([pipe], [], [], 0)[0]:
        some = os.read(pipe, 65536)
        if not some:
            break
        text += some
    return [json.loads(line) for line in text.decode().splitlines()]


def observe_program(case, train):
    size = case["size"]
    context = Forking()
    torch.manual_seed(1)
    model = nn.Linear(size, 2) if case["network"] else torch.zeros(size + 3, dtype=torch.float64)
    weights = model.weight.data.view(-1) if case["network"] else model
    weights.zero_()
    data = torch.rand(8, 3), torch.zeros(8)
    reading, writing = os.pipe()
    job = {
        "case": case,
        "pipe": writing,
        "me": os.getpid(),
        "token": case["token"],
        "inside": torch.zeros(()),
        "present": torch.zeros(size),
    }
    for name in ("inside", "present"):
        job[name].share_memory_()
    seen = {"raised": "", "late": False, "found": None, "left": 0}
    try:
        with alarm(LIMIT):
            found = train(context, played_worker, size, model, data, job, case["locked"])
        seen["found"] = [found[0], list(found[1])] if isinstance(found, tuple | list) and len(found) == 2 else None
    except TooLong:
        seen["late"] = True
    except NotImplementedError:
        raise
    except Exception as error:
        seen["raised"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        left = mp.active_children()
        seen["left"] = len(left)
        for process in left:
            process.kill()
            process.join()
        seen["said"] = lines_of(reading)
        os.close(reading)
        os.close(writing)
    weights = next(model.parameters()).data.view(-1) if case["network"] else model
    return seen | {"me": os.getpid(), "weights": weights[:size].tolist()}


# --- judging


def _failed(seen):
    """Why there is nothing to judge; the empty string if `train` returned."""
    for one in seen["said"]:
        if "error" in one:
            return f"the worker that it started raised {one['error']}: give the arguments in the order of worker's docstring"
    if any("alone" in one for one in seen["said"]):
        if any(one.get("let") is False for one in seen["said"]):
            return ""  # without a lock they should all be inside
        return (
            "a process waited at the barrier in vain: start all processes before you join one, and give all of them one barrier "
            "for `size` processes"
        )
    if seen["late"]:
        return "it does not return, though every worker has ended"
    return f"it raised, though every worker ended well: {seen['raised']}" if seen["raised"] else ""


def _real(case, seen, right):
    said = seen["said"]
    if seen["left"] and len(said) < case["size"]:
        return _LEFT
    if not said:
        return f"no worker was started: {seen['raised']}" if seen["raised"] else "no worker was started"
    if any(one["pid"] == seen["me"] for one in said):
        if len({one["thread"] for one in said}) > 1:
            return "the workers are threads of one process, which take turns at Python's lock: context.Process"
        return "the worker runs in the process that called train: context.Process"
    if fault := _failed(seen):
        return fault
    if sorted(one["rank"] for one in said) != list(range(case["size"])):
        return "not every rank from 0 to size − 1 has one process"
    if len({one["pid"] for one in said}) != case["size"] or any(one["size"] != case["size"] for one in said):
        return "there are not `size` processes, or they are given another size"
    if any(one["token"] != case["token"] for one in said):
        return "the workers are not given the job"
    if any(one["present"] < case["size"] for one in said):
        return "barrier.wait() returned before all processes had called it: one context.Barrier(size) for all of them"
    return _LEFT if seen["left"] else ""


_LEFT = "processes are still running when it returns: join them"


def _shared(case, seen, right):
    wanted = [rank + 1.0 for rank in range(case["size"])]
    if any(one["model"] is not True for one in seen["said"]):
        return "the model is not in shared memory, so each process has a copy: model.share_memory(), for a tensor share_memory_()"
    if any(not equal(one["weights"], wanted) for one in seen["said"]):
        return "the processes do not see each other's changes: give all of them one model"
    if not equal(seen["weights"], wanted):
        return "the workers trained another model than the one that was given to train"
    return (
        ""
        if all(one["data"] is True for one in seen["said"])
        else "the data is not in shared memory, so it is copied to each process"
    )


def _results(case, seen, right):
    if seen["found"] is None:
        return _NO_PAIR
    seconds, samples = seen["found"]
    if [type(n) for n in samples] != [int] * case["size"]:
        return "the samples should be a list of int, one for each process"
    if samples != case["samples"]:
        return (
            "the samples are not those in `done`: it must be in shared memory, and read after the processes have ended"
        )
    starts, ends = zip(*case["clock"], strict=True)
    if equal(seconds, max(ends) - min(starts), 1e-9):
        return ""
    if equal(seconds, max(end - start for start, end in case["clock"]), 1e-9):
        return "the seconds are the longest process's own: the training lasts from the first start to the last end"
    if equal(seconds, case["clock"][0][1] - case["clock"][0][0], 1e-9):
        return "the seconds are process 0's: the training lasts from the first start to the last end"
    if isinstance(seconds, float) and seconds < LIMIT and seconds < min(end - start for start, end in case["clock"]):
        return (
            "the seconds are not read from `clock`: a clock in train also counts how long the processes take to start"
        )
    return "the seconds are not those from the first start in `clock` to the last end"


def _lock(case, seen, right):
    said = seen["said"]
    if case["locked"]:
        if any(one.get("crowd") != 1 for one in said):
            return "with locked=True two processes were in `with lock:` at the same time: one context.Lock() for all of them"
        return ""
    if any(one.get("let") is not True for one in said):
        return "without locked=True a process had to wait in `with lock:`: the lock is then one that does nothing, contextlib.nullcontext()"
    return ""


def _dead(case, seen, right):
    said = seen["said"]
    if not said or any(one["pid"] == seen["me"] for one in said):
        return "the workers are no processes of their own"
    how = "ends with an error before the barrier" if case["when"] == "before" else "is killed while it holds the lock"
    if seen["late"] or any("alone" in one for one in said):
        return (
            f"when a process {how}, train waits for the others, and they wait for the dead one: wait for the first process that "
            "ends (multiprocessing.connection.wait), and terminate the others"
        )
    if not seen["raised"].startswith("RuntimeError"):
        return f"when a process {how}, train does not raise RuntimeError"
    return f"when a process {how}, train leaves others running: terminate and join them" if seen["left"] else ""


_NO_PAIR = "should return a pair: seconds, and a list of each process's samples"


def _shown(case, seen):
    if not isinstance(seen, dict):
        return case["about"]
    found = (
        f"returned {seen['found']}"
        if seen["found"]
        else f"raised {seen['raised']}"
        if seen["raised"]
        else "returned no pair"
    )
    found = f"did not return within {LIMIT} s" if seen["late"] else found
    return f"{case['about']}: {len(seen['said'])} worker(s) ran, train {found}"


PROGRAM = Exercise(("train",), _draw_programs, observe_program, {
    "processes": Part("Starts all processes, and joins them", "no worker was started", cases="free locked", judge=_real),
    "shared": Part("One model and one data set, in shared memory", _NO_PAIR, cases="free locked", needs="processes", judge=_shared),
    "lock": Part("One lock for all, or none", _NO_PAIR, cases="free locked", needs="processes", judge=_lock),
    "results": Part("Seconds from the first start to the last end, and the samples of each", _NO_PAIR, cases="free locked",
                    needs="processes", judge=_results),
    "dead": Part("A process that dies is an error, and ends the others", "a process that dies is no error", cases="dead", judge=_dead),
}, "write a worker that prints its rank and os.getpid(), and start two", _shown, guarded="dead", transport=in_a_process,
    seconds=60.0)  # fmt: skip
