"""Running a submission's notebook again in the sandbox, with the rubric's budget.

All of the lab's code cells run in order, in the lab's version, with the student's answers and the rubric's parameters.
Of cells that the student added or changed, only the definitions run. Then the run's files are read as bytes. The clock
is the grader's.

A rubric may ask for a GPU. The run then has one that no other submission has meanwhile. Before it, CUDA is started in a
sandbox without a submission: what fails there is not this student's doing.

A student's code writes the files of the run, its number of images included. It cannot change what the kernel counts.
So the processor time of all processes of the run is the measure of work, in steps of a reference training, whose
processor time the grader measures just before in a sandbox without a submission. Unlike a clock, processor time does not
count the waiting for a processor that others use. A GPU's work is no processor's: with one, which no other submission
has meanwhile, both are measured by the clock.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autograde.grading.evidence import LIMITS
from autograde.grading.executed_cells import cells_to_run
from autograde.grading.networks import DRIVER, NETWORKS
from autograde.rubric.form import Execution as ExecutionRules
from autograde.rubric.verdict import Flag
from autograde.sandbox.bubblewrap import SandboxError
from autograde.sandbox.gpus import Gpu, one_gpu
from autograde.sandbox.limits import Exceeded, Limits
from autograde.sandbox.turns import in_turn
from autograde.submission.run_folder import EvidenceError
from course_lib.runs.run_evidence.evidence import RunFiles
from course_lib.runs.run_evidence.quoting import printable, quote
from course_lib.system.hardware import available_cores

if TYPE_CHECKING:
    from autograde.grading.grading_context import GradingContext
    from autograde.submission.notebook_repair import RepairedNotebook

__all__ = ["Ran", "rerun"]

FOLDER = "run"
START_CUDA = """
def start(student, given, outside):
    import torch

    torch.ones(1, device="cuda").sum().item()
    return torch.cuda.device_count()
"""


# Median of a training step of the lab's network on 128 images: processor seconds of all threads; with a GPU, seconds
REFERENCE_STEP = (
    DRIVER
    + """

def step(student, given, outside):
    import statistics
    import time
    from course_lib.training.precision import accelerate_model
    device = given["device"]
    now = time.process_time if device == "cpu" else time.perf_counter
    model = accelerate_model(build(student, given["network"], given), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.rand(128, given["channels"], 32, 32, device=device), torch.arange(128, device=device) % 10
    times = []
    for _ in range(15):
        begun = now()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(now() - begun)
    return statistics.median(times[5:])
"""
)


@dataclass(frozen=True)
class Ran:
    """The result of a grading run: its files, its seconds, flags, its work, and that of a reference step.

    `seconds` are by the grader's clock. `work_seconds` and `step_seconds` are processor time; with a GPU, by the clock.
    """

    files: RunFiles
    seconds: float
    flags: list[Flag]
    work_seconds: float | None = None
    step_seconds: float | None = None


def rerun(context: GradingContext, repaired: RepairedNotebook) -> Ran:
    """Run a repaired notebook from start to end; never raises for a student's code.

    Raises `SandboxError`: the rubric asks for a GPU, and there is none or CUDA does not start on it.
    """
    rules = context.rubric.rerun
    everything = tuple(
        cell.id
        for cell in repaired.notebook.cells
        if cell.cell_type == "code" and not cell.metadata.get("nbgrader", {}).get("grade")  # a sandbox has no checks
    )
    parameters: dict[str, Any] = {**rules.parameters, "output_dir": FOLDER}
    cells = cells_to_run(repaired, ExecutionRules(run=everything, parameters=parameters))
    limits = Limits(
        seconds=rules.seconds,
        processors=available_cores(),
        memory_bytes=int(rules.memory_gib * (1 << 30)),
        disk_bytes=2 << 30,
        tasks=512,
        output_bytes=16 << 20,
        answer_bytes=2 * max(LIMITS.values()),
    )
    with contextlib.ExitStack() as held:
        gpu = held.enter_context(one_gpu()) if rules.gpu else None
        if gpu is not None:
            _check(gpu, context)
        step_seconds = _reference_step(context, gpu) if context.rubric.leaderboard else None
        started = time.monotonic()

        def once() -> tuple[list[dict[str, Any]], float, float, dict[str, bytes | None]]:
            begun = time.monotonic()
            with context.warm.execute(
                limits, data=context.data(rules.data), threads=context.threads, fork_server=True, gpu=gpu
            ) as execution:
                outcomes = execution.cells(cells)[0]
                took = time.monotonic() - begun
                work = took if gpu else execution.processor_seconds
                files = execution.read([f"{FOLDER}/{name}" for name in LIMITS], max(LIMITS.values()))
                return outcomes, took, work, files

        try:
            outcomes, seconds, work, contents = in_turn(once)
        except Exceeded as error:
            reason = EvidenceError(f"the grader's own run of the notebook {error}")
            return Ran(dict.fromkeys(LIMITS, reason), time.monotonic() - started, [Flag("limit", str(reason))])
    failed = [outcome for outcome in outcomes if outcome["error"] is not None]
    flags = []
    if failed:
        error = failed[0]["error"] if isinstance(failed[0]["error"], dict) else {}
        kind, message = str(error.get("type", "an error")), str(error.get("message", ""))
        flags.append(Flag("crash", f"cell {quote(failed[0]['id'])} raised {quote(kind)[1:-1]}: {quote(message, 160)}"))
    files: RunFiles = {}
    for name, limit in LIMITS.items():
        content = contents[f"{FOLDER}/{name}"]
        if content is None or len(content) > limit:
            why = f": {flags[0].detail}" if flags else ""
            files[name] = EvidenceError(f"the grader's own run of the notebook left no {name}{why}")
        else:
            files[name] = content
    return Ran(files, seconds, flags, work, step_seconds)


def _reference_step(context: GradingContext, gpu: Gpu | None) -> float | None:
    """`REFERENCE_STEP`'s seconds; None where they cannot be measured."""
    kind, _, name = context.rubric.runs[0].model.network.partition(":")
    if kind != "course_lib" or NETWORKS[name].text:
        return None
    numbers = {number: default for number, (default, _, _) in NETWORKS[name].numbers.items()}
    given = {"network": name, "numbers": numbers, "classes": 10, "channels": 3, "device": "cuda" if gpu else "cpu"}
    cores = available_cores()
    limits = Limits(seconds=300.0, processors=cores, memory_bytes=int(context.rubric.rerun.memory_gib * (1 << 30)))

    def measure() -> dict[str, Any]:
        with context.warm.execute(limits, threads=cores, gpu=gpu) as execution:
            return execution.call(REFERENCE_STEP, "step", given)[0]

    try:
        seconds = in_turn(measure).get("value")
    except Exceeded:
        return None
    return seconds if isinstance(seconds, float) and seconds > 0 else None


def _check(gpu: Gpu, context: GradingContext) -> None:
    """Start CUDA on a GPU. A run that finds none, or one that an earlier run broke, would train on the processor."""
    limits = Limits(
        seconds=300.0, processors=available_cores(), memory_bytes=int(context.rubric.rerun.memory_gib * (1 << 30))
    )
    try:
        with context.warm.execute(limits, gpu=gpu) as execution:
            (answer,) = execution.call(START_CUDA, "start", None)
    except Exceeded as error:
        answer = {"error": {"message": str(error)}}
    if answer.get("value") != 1:
        error = answer.get("error", {"message": f"it shows {answer.get('value')} GPUs"})
        lines = str(error.get("message", "")).strip().splitlines() or [str(error.get("type", ""))]
        raise SandboxError(
            f"CUDA does not start in the sandbox on GPU {gpu.bus} ({printable(lines[0], 160)}); leave out `gpu` in the "
            "rubric's [rerun], or see docs/grading.md, A GPU"
        )
