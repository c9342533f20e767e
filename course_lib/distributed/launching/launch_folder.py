"""The folder of a launch: it brings a call to the ranks, and their reports back.

The launching process writes ``call.pickle`` (the worker and its arguments, by cloudpickle) and ``settings.json``. Rank R,
of the fork server or of mpirun, writes (`rank_process`):

- ``log-R``: its output;
- ``pid-R``: its process, once it has started;
- ``error-R.json``: its exception, and the time;
- ``done-R``: the result of its worker (cloudpickle);
- ``stack-R``: its stack, at the launching process's SIGUSR1;
- ``start-R.json``: the environment that mpirun gives to rank R of `mpi_launch`, for the fork server's process;
- ``no-mpi``: why a rank has no MPI, or another one than mpirun's;
- ``training.json``: rank 0's progress, for a notebook's page (`course_lib.live_view.progress_file`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import linecache
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from course_lib.distributed.launching import rank_process

__all__ = ["LaunchFolder", "pickled"]

STACK_GRACE = 1.0  # seconds for the ranks to write their stacks


class LaunchFolder:
    """The launching process's view of the folder.

    Parameters
    ----------
    world_size : int
    parent : str, optional
        Where to make it; by default the system's folder for temporary files.

    Attributes
    ----------
    path : Path
    logs : dict of int to Path
    scratch : list of Path
        The folders that `remove` removes.
    """

    def __init__(self, world_size: int, parent: str | None = None) -> None:
        self.world_size = world_size
        self.path = Path(tempfile.mkdtemp(prefix=f"launch-{os.getpid()}-", dir=parent))
        self.logs = {rank: self.path / f"log-{rank}" for rank in range(world_size)}
        self.scratch = [self.path]

    def remove(self) -> None:
        """Remove it, and the scratch folders."""
        for folder in self.scratch:
            shutil.rmtree(folder, ignore_errors=True)

    def write_call(self, worker: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write the ranks' call. Raises TypeError if it cannot be sent to another process."""
        try:
            packed = pickled((worker, tuple(args), dict(kwargs)))
        except Exception as error:
            name = getattr(worker, "__name__", repr(worker))
            raise TypeError(
                f"{name} or its arguments cannot be sent to another process ({error}); "
                "open files, locks, generators and running processes belong inside the worker"
            ) from error
        (self.path / "call.pickle").write_bytes(packed)

    def write_settings(self, **settings: Any) -> None:
        """Write the rest that ranks need; as JSON, which needs none of our modules."""
        settings |= {
            "world_size": self.world_size,
            "launcher": os.getpid(),
            "scratch": list(map(str, self.scratch)),
            "path": sys.path,
            # The lines of cells, which are not on disk, for the ranks' tracebacks.
            "sources": {name: entry[2] for name, entry in linecache.cache.items() if entry[1:2] == (None,)},
        }
        (self.path / "settings.json").write_text(json.dumps(settings))

    def results(self) -> list[Any]:
        """The ranks' results, in order of rank."""
        return [pickle.loads((self.path / f"done-{rank}").read_bytes()) for rank in range(self.world_size)]

    def done(self) -> list[int]:
        """The ranks whose worker has returned."""
        return [rank for rank in range(self.world_size) if (self.path / f"done-{rank}").exists()]

    def errors(self) -> dict[int, dict[str, Any]]:
        """The reports of ranks that raised: ``time``, ``reason``, ``traceback``."""
        return {
            int(path.stem.removeprefix("error-")): json.loads(path.read_text())
            for path in self.path.glob("error-*.json")
        }

    def pids(self) -> dict[int, int]:
        """The process of each rank that has started."""
        return {int(path.name[4:]): int(path.read_text()) for path in self.path.glob("pid-*[0-9]")}

    def positions(self) -> dict[int, str]:
        """Each rank's stack, innermost call first; asks the ranks for it."""
        positions = dict.fromkeys(range(self.world_size), "  not started yet")
        waiting = self.pids()
        for rank, pid in waiting.items():
            positions[rank] = "  it did not answer (stopped, or deep in the kernel)"
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        end = time.monotonic() + STACK_GRACE
        while waiting and time.monotonic() < end:
            time.sleep(0.05)
            for rank in list(waiting):
                text = (self.path / f"stack-{rank}").read_text()
                if rank in self.done():
                    positions[rank] = "  it has finished and waits for the others"
                elif text.endswith("\n"):
                    positions[rank] = _short_stack(text)
                else:
                    continue
                del waiting[rank]
        return positions


def pickled(value: Any) -> bytes:
    """A value for another process, a notebook's functions included."""
    packed = io.BytesIO()
    _Pickler(packed).dump(value)
    return packed.getvalue()


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that sends every imported module by name, also one whose type is a subclass of ModuleType.

    ``torch.classes`` is such a module. cloudpickle would send it with a worker that mentions ``torch`` and, for example,
    ``data.classes``, and fail.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _short_stack(dump: str) -> str:
    """Faulthandler's frames, innermost first, one short line each, without the frames of `rank_process`."""
    frames = []
    for path, line, function in re.findall(r'File "(.*)", line (\d+) in (.*)', dump):
        if path in (rank_process.__file__, "<frozen runpy>"):
            break
        place = path.rpartition("site-packages/")[2]
        place = f"{place}:{line}" if "/ipykernel_" not in place else f"line {line} of its cell"
        frames.append(f"  {function} ({place})")
    return "\n".join(frames) if frames else "  setting up"
