"""Lab 08's answers. What has no single right answer is judged without a reference, and its mistakes are named by the judges."""

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _table(compute=max, averaging=min):
    def speedup_table(reports):
        seconds = {P: compute([c for c, _ in pairs]) + averaging([a for _, a in pairs]) for P, pairs in reports.items()}
        return {P: (seconds[P], seconds[1] / seconds[P], seconds[1] / seconds[P] / P) for P in reports}

    return speedup_table


def _mean(times):
    return sum(times) / len(times)


speedup = Answers(
    (_table(),),
    {
        "mean of the workers": Mistake("you took the mean over the workers; the run ends when the slowest has trained",
                                       _table(compute=_mean)),
        "sum of the workers": Mistake("you added the workers' times; they run at the same time", _table(compute=sum)),
        "longest averaging": Mistake("the longest averaging contains the waiting for the slowest worker, whose training is "
                                     "counted already: take the shortest", _table(averaging=max)),
        "mean averaging": Mistake("the mean averaging contains waiting for the slowest worker, whose training is counted "
                                  "already: take the shortest", _table(averaging=_mean)),
        "first worker": Mistake("you took the first worker's own times", _table(lambda c: c[0], lambda a: a[0])),
        "no averaging": Mistake("the averaging is left out", _table(averaging=lambda a: 0.0)),
        "fastest worker": Mistake("you took the fastest worker; the run ends when the slowest has trained", _table(compute=min)),
    },
)  # fmt: skip

ANSWERS = {name: Answers() for name in ("partition", "start", "worker", "averaging", "reduce", "program", "align")} | {
    "speedup-table": speedup
}
