"""A process that fetches a data set, and the functions of a test that starts, lets go and kills it.

``python fetch_process.py NAME MIRROR ROOT [--images N] [--slow S] [--die POINT]`` prints ``ready``, waits for a line,
then fetches the set; with ``--die`` it ends itself by SIGKILL at that point.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import PIL.Image  # noqa: F401  (so that its import is not in the time)
import toy_dataset

from data_prep import catalogue, staged, staging


def start(name, mirror, root, *options):
    """A process that is about to fetch; `go` lets it."""
    command = [sys.executable, __file__, name, mirror, root, *map(str, options)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, **pipes, text=True)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def outcome(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def same(folder, other):
    """Whether two staged sets are alike, but for the time of their staging."""
    ours, theirs = ({path.name: path.read_bytes() for path in place.iterdir()} for place in (folder, other))
    descriptions = [json.loads(files.pop("dataset.json")) | {"staged": ""} for files in (ours, theirs)]
    return ours == theirs and descriptions[0] == descriptions[1]


def kill_at_random_times(name, mirror, folder, kills, *options):
    """Kill a fetch at work `kills` times, uniformly over its length: no half set has its final name. Then one finishes."""
    undisturbed, root, clock = folder / "undisturbed", folder / "root", random.Random(0)
    process = start(name, mirror, undisturbed, *options)
    go(process)
    length = float(outcome(process).split("took ")[1])
    for _ in range(4 * kills):
        process = start(name, mirror, root, *options)
        go(process)
        time.sleep(clock.uniform(0, length))
        process.kill()
        process.communicate(timeout=600)
        kills -= root.exists() and bool(list(root.glob(".staging-*")))
        if (root / name).exists():  # it was done, or all but tidying up
            assert same(root / name, undisturbed / name)
            shutil.rmtree(root / name)
            length *= 0.9
        elif root.exists():
            assert not [path for path in root.iterdir() if not path.name.startswith(".")]
        if kills == 0:
            break
    assert kills == 0, f"{kills} kills too few hit a fetch at work"
    process = start(name, mirror, root, *options)
    go(process)
    assert f"{name}: staged in " in outcome(process)
    assert same(root / name, undisturbed / name)
    assert sorted(path.name for path in root.iterdir()) == [f".lock-{name}", name]


def _die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def _after(function):
    def run(*args, **kwargs):
        function(*args, **kwargs)
        _die()

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("mirror", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--die", choices=("collected", "half-written", "before-rename", "after-rename"))
    options = parser.parse_args()
    catalogue.CATALOGUE["toy"] = toy_dataset.entry(toy_dataset.contents(options.images))
    if options.slow:
        write = staged.write
        staged.write = lambda *args: (time.sleep(options.slow), write(*args))
    if options.die == "collected":
        staging._collect = _after(staging._collect)
    elif options.die == "half-written":
        staged.flush = _after(staged.flush)
    elif options.die == "before-rename":
        os.rename = _die
    elif options.die == "after-rename":
        os.rename = _after(os.rename)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    staging.fetch(options.name, options.root, mirror=options.mirror, report=lambda line: print(line, flush=True))
    print(f"took {time.monotonic() - began}")


if __name__ == "__main__":
    main()
