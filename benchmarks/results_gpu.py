"""Run benchmarks/gpu.py, every lab's gpu profile and the homework's programs on this node's GPUs; write docs/results/gpu/.

make results-gpu, or python benchmarks/results_gpu.py --minutes 25: what fits into 25 minutes, the most telling first. The
same command continues after an interruption, also after kill -9: what has passed is not run again, and a program
continues from its checkpoint. Each job has a time limit. The limits are guesses: no GPU has run these jobs.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gpu
import torch
from harness import parse_options

from course_lib.runs.records import read_learning_curve, versions
from course_lib.system import hardware
from course_lib.system.atomic import write_atomically

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "course_lib" / "exercises" / "answers" / "programs"
ON_CORES = ("08", "09")  # labs that compute on the node's cores by design
SIGNS = {True: "holds", False: "does not hold", None: "not tried"}


@dataclass(frozen=True)
class Job:
    """A lab, a program or a benchmark: `command` without its run folder, which is appended; at most so many minutes."""

    name: str
    command: tuple[str, ...]
    minutes: float
    threshold: float | None = None  # of the sources, for the accuracy
    cwd: Path = ROOT


def lab(number: str, minutes: float, gpus: int, threshold: float | None = None, profile: str = "gpu") -> Job:
    ranks = ("-p", "num_gpus", str(gpus)) if number != "01" and number not in ON_CORES and gpus else ()
    words = ("-m", "course_lib.runs.cli", "run", number, "--profile", profile, *ranks, "-o")
    return Job(f"lab {number}", (sys.executable, *words), minutes, threshold)


def program(name: str, minutes: float, gpus: int, threshold: float) -> Job:
    start = (sys.executable,)
    if name.startswith(("sync", "async")):
        options = ("--ranks", str(max(gpus, 2) if name.startswith("sync") else max(gpus, 2) + 1))
    else:
        options = ()
        if gpus > 1:
            start += ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
    return Job(name, (*start, f"{name}.py", *options, "--output-dir"), minutes, threshold, PROGRAMS)


def all_jobs(gpus: int) -> list[Job]:
    """The most telling first: those with a threshold of a source, the quick ones before the long ones."""
    return [
        Job("speed", (sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "-o"), 10),
        lab("12", 20, gpus, 0.85),
        program("resnet_cifar100", 15, gpus, 0.60),
        lab("02", 15, gpus), lab("06", 15, gpus), lab("01", 20, gpus),
        lab("10", 60, gpus, 0.92),
        program("sync_sgd_cifar100", 25, gpus, 0.60), program("async_sgd_cifar100", 40, gpus, 0.60),
        lab("13", 15, gpus), lab("11", 20, gpus), lab("14", 20, gpus), lab("04", 40, gpus), lab("07", 40, gpus),
        program("pretrained_cifar100", 40, gpus, 0.70), program("resnet_tinyimagenet", 60, gpus, 0.50),
        lab("05", 90, gpus), lab("03", 120, gpus), lab("09", 60, gpus), lab("08", 360, gpus),
    ]  # fmt: skip


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: kill -9 of the evening leaves no job behind


def run_job(job: Job, folder: Path, minutes: float) -> dict[str, Any]:
    """Run the job into ``folder/run``; its outcome. The log is ``folder/log.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    began, peak, ended = time.monotonic(), 0, "ended"
    with open(folder / "log.txt", "w") as log, hardware.Utilisation(1.0) as busy:
        process = subprocess.Popen(
            [*job.command, str(folder / "run")], cwd=job.cwd, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=_die_with_parent,
        )  # fmt: skip
        try:
            while process.poll() is None:
                peak = max([peak, *(gpu.memory_used for gpu in hardware.gpus())])
                if time.monotonic() - began > 60 * minutes:
                    ended = f"ended after its {minutes:.0f} minutes"
                    break
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - began
    passed = process.returncode == 0
    said = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
    outcome = {
        "job": job.name, "passed": passed, "reason": "" if passed else ended if ended != "ended" else (said or ["no output"])[-1],
        "seconds": round(seconds, 1), "gpu_utilisation": busy.mean_gpu if busy.gpu else None,
        "peak_memory": peak or None, "threshold": job.threshold, "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **curve_of(folder / "run"),
    }  # fmt: skip
    write_atomically(folder / "outcome.json", json.dumps(outcome, indent=1))
    return outcome


def curve_of(run: Path) -> dict[str, Any]:
    """The finished run's accuracy, throughput (the median of its epochs), and curve; the parameters and the data.

    Of gpu.py what it has measured, also if it was stopped.
    """
    if not (run / "run.json").is_file():
        speed = {"speed": json.loads((run / "gpu.json").read_text())} if (run / "gpu.json").is_file() else {}
        return {"accuracy": None, "images_per_second": None, **speed}
    curve, record = read_learning_curve(run / "learning_curve.csv"), json.loads((run / "run.json").read_text())
    return {
        "accuracy": float(curve.val_accuracy.max()), "images_per_second": float(curve.images_per_sec.median()),
        "curve": {"seconds": curve.time.tolist(), "accuracy": curve.val_accuracy.tolist()},
        **{name: record.get(name) for name in ("parameters", "data", "world_size", "backend", "device")},
    }  # fmt: skip


def evening(jobs: Sequence[Job], work: Path, results: Path, device: str, minutes: float | None = None) -> list[dict[str, Any]]:
    """Run the jobs that have not passed yet and fit into what is left of the time; publish after each."""
    began = time.monotonic()
    for job in jobs:
        left = float("inf") if minutes is None else minutes - (time.monotonic() - began) / 60
        folder = work / re.sub(r"\W+", "-", job.name)
        if (outcome := _read(folder)) and outcome["passed"]:
            print(f"{job.name}: has passed", flush=True)
        elif job.minutes > left:
            print(f"{job.name}: may take {job.minutes:.0f} minutes, {left:.1f} are left", flush=True)
        else:
            outcome = run_job(job, folder, job.minutes)
            print(f"{job.name}: {'passed' if outcome['passed'] else outcome['reason']}, {outcome['seconds']:.0f} s", flush=True)
            publish(jobs, work, results, device)
    publish(jobs, work, results, device)
    return _outcomes(jobs, work)


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / "outcome.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _outcomes(jobs: Sequence[Job], work: Path) -> list[dict[str, Any]]:
    outcomes = []
    for job in jobs:
        missing = {"job": job.name, "passed": None, "reason": "not run", "threshold": job.threshold}
        outcomes.append(_read(work / re.sub(r"\W+", "-", job.name)) or missing)
    return outcomes


def holds(outcome: dict[str, Any]) -> bool | None:
    """Whether the source's threshold was reached, lab 12's in two epochs in a row; None where no finished run says so."""
    if outcome["threshold"] is None or outcome.get("accuracy") is None:
        return None
    accuracies = outcome["curve"]["accuracy"]
    if outcome["job"] == "lab 12":
        accuracies = [min(pair) for pair in itertools.pairwise(accuracies)]
    return max(accuracies, default=0) >= outcome["threshold"]


def publish(jobs: Sequence[Job], work: Path, results: Path, device: str) -> None:
    """Write ``<device>.png``, ``.md`` and ``.json``, each whole; the JSON file last."""
    results.mkdir(parents=True, exist_ok=True)
    outcomes, name = _outcomes(jobs, work), re.sub(r"\W+", "-", device).strip("-").lower()
    facts = {"device": device, "machine": hardware.machine_line(), "versions": versions(), "results": outcomes}
    draw([outcome for outcome in outcomes if outcome.get("curve")], results / f"{name}.png", device)
    write_atomically(results / f"{name}.md", page(facts, f"{name}.png"))
    write_atomically(results / f"{name}.json", json.dumps(facts, indent=1))


def page(facts: dict[str, Any], picture: str) -> str:
    def shown(value: Any, form: str) -> str:
        return "" if value is None else format(value, form)

    used = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    lines = [
        f"# Results on {facts['device']}", "", f"{facts['machine']}; {used}. One run each; `make results-gpu` made this page.",
        "", "| job | passed | seconds | best accuracy | images/s | GPU busy | peak memory | threshold |", "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for outcome in facts["results"]:
        passed = "yes" if outcome["passed"] else outcome["reason"].replace("|", "/")[:160]
        memory, busy = outcome.get("peak_memory"), outcome.get("gpu_utilisation")
        asked = outcome["threshold"]
        cells = [
            outcome["job"], passed, shown(outcome.get("seconds"), ".0f"), shown(outcome.get("accuracy"), ".1%"),
            shown(outcome.get("images_per_second"), ",.0f"), "" if busy is None else f"{busy:.0f} %",
            "" if memory is None else f"{memory / 2**30:.1f} GiB", "" if asked is None else f"{asked:.0%} {SIGNS[holds(outcome)]}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"![best accuracy so far against training time, one curve per job]({picture})", ""]
    lines.append("GPU busy is NVML's share for the first GPU. Peak memory is the fullest GPU's, with all its processes.")
    for speed in (outcome["speed"] for outcome in facts["results"] if "speed" in outcome):
        lines += ["", "## Speed", "", speed["conditions"], "", *gpu.table(speed["results"])]
    return "\n".join(lines) + "\n"


def draw(outcomes: Sequence[dict[str, Any]], path: Path, device: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for outcome in outcomes:
        ax.plot(outcome["curve"]["seconds"], outcome["curve"]["accuracy"], label=outcome["job"])
    ax.set(xlabel="seconds of training", ylabel="validation or test accuracy", ylim=(0, 1), title=device)
    if outcomes:
        ax.legend(fontsize=8, ncols=2)
    unfinished = path.with_name(f".{path.stem}.unfinished.png")
    figure.savefig(unfinished, dpi=110)
    os.replace(unfinished, path)
    plt.close(figure)


def main() -> None:
    options = parse_options(
        __doc__,
        minutes=float,
        work=(str(ROOT / "runs" / "gpu"), "the run folders; what has passed there is not run again"),
        results=(str(ROOT / "docs" / "results" / "gpu"), "where the page is written"),
    )
    if not torch.cuda.is_available():
        sys.exit("results_gpu.py needs a CUDA GPU, and PyTorch sees none here; `lab doctor` says why")
    gpus, name = torch.cuda.device_count(), torch.cuda.get_device_name()
    device = name if gpus == 1 else f"{gpus} x {name}"
    place = Path(options.work) / re.sub(r"\W+", "-", device)
    outcomes = evening(all_jobs(gpus), place, Path(options.results), device, options.minutes)
    sys.exit(any(outcome["passed"] is False for outcome in outcomes))


if __name__ == "__main__":
    main()
