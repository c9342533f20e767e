"""A sweep from its grid to its results: what is left to do, the executor that does it, its table and figures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from course_lib.runs.labs import Lab
from course_lib.runs.slurm.squeue import check_slurm
from course_lib.runs.sweep.folder import DiskFullError, Outcome, SweepFolder, read_outcome, write_outcome
from course_lib.runs.sweep.local import EndedTrial, Machine, core_budget, describe_end, run_local
from course_lib.runs.sweep.outcome.estimate import SIZES, makespan, past_runs, trial_seconds
from course_lib.runs.sweep.outcome.progress import SweepProgress
from course_lib.runs.sweep.outcome.publish import SweepResult, publish
from course_lib.runs.sweep.run_trial import DISK_FULL, LESSON, TrialTask, digest
from course_lib.runs.sweep.slurm import cancel_left, run_slurm, submitted_attempts
from course_lib.runs.sweep.trials import Trial, plan

__all__ = ["DiskFullError", "Sweep", "SweepResult"]


@dataclass
class Sweep:
    """A sweep of a lab's notebook.

    Parameters
    ----------
    axes : mapping of parameter to values
    fixed : mapping
        Parameters that override the profile's.
    repeats : int
        Seeds per combination.
    whole : bool
        Execute the cells tagged ``lesson`` too, which a run does not need.
    zipped : bool
        The axes' values are taken side by side instead of in every combination.
    target : float, optional
        Accuracy whose time the table gives; by default each trial's parameter ``target_accuracy``.

    Raises
    ------
    ParameterError
        From `trials`; see `plan`.
    SweepFolderError
        From `run`.
    """

    lab: Lab
    profile: str
    axes: Mapping[str, Sequence[Any]]
    fixed: Mapping[str, Any]
    repeats: int
    folder: Path
    whole: bool = False
    zipped: bool = False
    target: float | None = None
    trials: list[Trial] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).absolute()
        self.trials = plan(self.lab, self.profile, self.axes, self.fixed, self.repeats, self.zipped)
        self._sweep = SweepFolder(self.folder)

    def check_folder(self) -> None:
        """Raise `SweepFolderError` where `run` would find a folder that is not this sweep's."""
        self._sweep.check(self._description())

    def _description(self) -> dict[str, Any]:
        """What ``sweep.json`` holds."""
        return {
            "lab": self.lab.name, "profile": self.profile, "fixed": dict(self.fixed),
            "seed": int(self.trials[0].parameters["seed"]),
            "axes": {name: list(values) for name, values in self.axes.items()}, "repeats": self.repeats,
        } | ({"zipped": True} if self.zipped else {})  # fmt: skip

    def to_do(self, retry: bool = False) -> list[Trial]:
        """Trials that have not ended; with `retry` those that failed too."""
        self._sweep.read(self.trials)
        ended = {"done"} if retry else {"done", "failed"}
        over = {folder for folder, outcome in self._sweep.outcomes.items() if outcome.status in ended}
        return [trial for trial in self.trials if trial.folder not in over]

    def estimate(self, trials: Sequence[Trial], jobs: int, machine: Machine) -> tuple[float | None, int]:
        """Seconds that `trials` will take on this machine, and how many of them resemble no past run.

        None where no past run resembles any of them; the others count as their mean.
        """
        past = past_runs(self.folder.parent, self.lab.name)
        sizes = {trial.folder: str([trial.parameters.get(name) for name in SIZES]) for trial in trials}
        examples = {sizes[trial.folder]: trial for trial in trials}  # a long grid has few sizes; each is looked up once
        seconds = {size: trial_seconds(trial, past) for size, trial in examples.items()}
        known = [seconds[size] for size in sizes.values() if seconds[size] is not None]
        if not known:
            return None, len(trials)
        mean = sum(known) / len(known)
        filled = {folder: mean if seconds[size] is None else seconds[size] for folder, size in sizes.items()}
        room = len(machine.gpus) or len(machine.cores)
        gpus = {trial.folder: trial.ranks for trial in trials}
        needed = gpus if machine.gpus else core_budget(self.trials, machine, jobs)
        return makespan(filled, trials, needed, room, jobs), len(trials) - len(known)

    def task(self, trial: Trial, executor: str = "local") -> TrialTask:
        """What the process that runs the trial needs."""
        before = self._sweep.outcomes.get(trial.folder)
        return TrialTask(
            str(self.lab.notebook), str(self.folder / trial.folder), self.lab.name, self.profile, dict(trial.parameters),
            attempts=1 if before is None else before.attempts + 1, skip="" if self.whole else LESSON, executor=executor,
        )  # fmt: skip

    def run(
        self, executor: str = "local", jobs: int = 1, retry: bool = False, options: Mapping[str, str] | None = None
    ) -> SweepResult:
        """Run what is left to do, and write the table and the figures, also when the sweep is interrupted.

        Parameters
        ----------
        executor : {"local", "slurm"}
        jobs : int
            Trials at a time; 0, for Slurm: all, and it decides.
        retry : bool
            Run again what failed.
        options : mapping, optional
            For Slurm: sbatch's.

        Raises
        ------
        ParameterError
            A trial has more ranks than the machine can hold.
        SweepFolderError, SlurmError, WarmServerError, DiskFullError
            What cannot be used, in one line.
        """
        machine = Machine.here()
        budget: dict[str, int] = {}
        if executor == "local":
            budget = core_budget(self.trials, machine, jobs)  # refuses before anything is written
        else:
            check_slurm()
        with self._sweep.hold(self._description()):
            left = self.to_do(retry)
            if executor == "slurm":
                left = self._with_submitted(left)
            progress = SweepProgress(len(left))
            for note in self._notes(left, retry, budget):
                progress.log(note)
            try:
                if not left:
                    ended = (each for each in ())
                elif executor == "slurm":
                    task = partial(self.task, executor="slurm")
                    ended = run_slurm(left, task, self.folder, jobs, options or {}, progress.began, progress.log)
                else:
                    cancel_left(self.folder, progress.log)
                    ended = run_local(left, budget, self.task, machine, jobs, progress.began)
                with closing(ended):
                    for each in ended:
                        progress.ended(each.trial, self._record(each, executor))
            finally:
                progress.close()
                result = self._publish()
        return result

    def _record(self, ended: EndedTrial, executor: str) -> Outcome:
        """The outcome of a trial that has ended; a failure where its process did not write one."""
        trial, folder = ended.trial, self.folder / ended.trial.folder
        if ended.code == DISK_FULL:
            raise DiskFullError(self.folder)
        outcome = read_outcome(folder)
        if outcome is None or outcome == self._sweep.outcomes.get(trial.folder):
            task = self.task(trial)
            error, text = ended.reason, ended.tail
            if not error:
                error, text = describe_end(ended.code), _tail(folder / "process.log")
            outcome = Outcome(
                "failed", task.lab, task.profile, task.parameters, 0.0, "", task.attempts, error, text, executor,
                notebook=digest(self.lab.notebook),
            )  # fmt: skip
            write_outcome(folder, outcome)
        self._sweep.outcomes[trial.folder] = outcome
        return outcome

    def _with_submitted(self, left: Sequence[Trial]) -> list[Trial]:
        """Trials to do, and those of an interrupted ``--retry`` that Slurm has: they count as failed until they end."""
        attempts = submitted_attempts(self.folder)
        return [
            trial for trial in self.trials
            if trial in left or attempts.get(trial.folder, 0) > self._sweep.outcomes[trial.folder].attempts
        ]  # fmt: skip

    def _publish(self) -> SweepResult:
        return publish(self._sweep, self.trials, list(self.axes), self.lab.name, self.target)

    def _notes(self, left: Sequence[Trial], retry: bool, budget: Mapping[str, int]) -> Iterator[str]:
        """Lines about the trials that ran in earlier calls: how many, and whether they can be compared with the rest."""
        outcomes = self._sweep.outcomes
        compare = "compare them with care, or start a new sweep with another -o DIR"
        if len(left) < len(self.trials):
            failed = sum(outcome.status == "failed" for outcome in outcomes.values())
            again = f", {failed} of them failed (--retry runs these again)" if failed and not retry else ""
            yield f"{len(self.trials) - len(left)} of {len(self.trials)} trials have ended before{again}"
        now = digest(self.lab.notebook)
        if edited := sum(outcome.notebook not in ("", now) for outcome in outcomes.values()):
            yield f"note: {self.lab.notebook.name} has changed since {edited} of these trials ran; {compare}"
        # The folder's name does not hold every parameter, and a profile can be edited between two calls.
        before = [(trial, outcomes[trial.folder]) for trial in self.trials if trial.folder in outcomes]
        changed = [
            {name: (then, now) for name, now in trial.parameters.items()
             if (then := outcome.parameters.get(name, now)) != now}
            for trial, outcome in before
        ]  # fmt: skip
        if any(changed):
            values = {name: pair for each in changed for name, pair in each.items()}
            listed = ", ".join(f"{name} = {then} (now {now})" for name, (then, now) in values.items())
            count = sum(map(bool, changed))
            yield f"note: {count} of these trials ran with {listed}: the profile or the notebook has changed; {compare}"
        # More ranks than before, or another --jobs, divide the cores in another way.
        cores = [
            (outcome.cores // trial.ranks, budget[trial.folder] // trial.ranks)
            for trial, outcome in before
            if left and budget and outcome.cores != budget[trial.folder]
            and (outcome.status, outcome.executor) == ("done", "local")
        ]  # fmt: skip
        if cores:
            yield (
                f"note: {len(cores)} of these trials ran with {cores[0][0]} core(s) per rank, and now a rank has "
                f"{cores[0][1]}; to compare their times, start a new sweep with another -o DIR"
            )


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""
