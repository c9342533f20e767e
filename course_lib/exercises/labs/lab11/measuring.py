"""Lab 11: the harness that times a step. Its clock, its device and the other ranks are the grader's.

Time is pretended: a step, a rank that is late and a call of a collective take seconds that were drawn. So right seconds are
known on any machine. Each rank's clock has its own origin, as real ones have.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["MEASURE"]

LAUNCH = 0.001  # seconds in which a program starts a step on a device that computes by itself
CALL = 0.05  # seconds of a barrier or an all-reduce, beside waiting
MOST = 400  # steps of a rank


class Bench(CollectiveBroker):
    """Hands out steps, and moves the clocks of all ranks and of their devices."""

    def __init__(self, case):
        super().__init__(case["ranks"])
        self.case = case
        self.current, self.in_step = [""] * self.size, [False] * self.size
        self.now, self.device = [0.0] * self.size, [0.0] * self.size
        self.count = {name: [0] * self.size for name in case["scenarios"]}

    @property
    def answers(self):
        return {**super().answers, "scenario": self._scenario, "step": self._step, "stepped": self._stepped,
                "clock": self._read_clock, "synchronize": self._synchronize}  # fmt: skip

    def _scenario(self, rank, name):
        given = self.case["scenarios"][name]
        self.current[rank] = name
        self.now[rank] = given["arrive"][rank]
        self.device[rank] = given["arrive"][rank] + given["busy"][rank]

    def _step(self, rank):
        name = self.current[rank]
        given, number = self.case["scenarios"][name], self.count[name][rank]
        if number >= MOST:
            raise ValueError("far too many steps")
        self.count[name][rank] += 1
        seconds = _seconds(given, rank, number)
        if given["device"]:
            self.device[rank] = max(self.device[rank], self.now[rank]) + seconds
            self.now[rank] += LAUNCH
        else:
            self.now[rank] += seconds
        self.in_step[rank] = given["coupled"]

    def _stepped(self, rank):
        """The gradients are summed; each rank notices it a little later than the one before."""
        name = self.current[rank]
        given, number = self.case["scenarios"][name], self.count[name][rank] - 1
        self.in_step[rank] = False
        self.now[rank] += given["lag"][rank][number % len(given["lag"][rank])]

    def _read_clock(self, rank):
        return self.now[rank] + self.case["origins"][rank]

    def _synchronize(self, rank):
        self.now[rank] = max(self.now[rank], self.device[rank])

    def _join(self, rank, members, kind, root, operation, tensors):
        number = super()._join(rank, members, kind, root, operation, tensors)
        if isinstance(number, int) and self.collectives[number].ended is not None:
            together = max(self.now[member] for member in members)
            for member in members:
                self.now[member] = together + (0.0 if self.in_step[member] else CALL)
        return number

    def evidence(self):
        return {"steps": {name: list(count) for name, count in self.count.items()}}


def _seconds(given, rank, number):
    """Of a rank's step of this number: the first ones are slow, whatever the answer takes for warm-up."""
    steps = given["seconds"][rank]
    return steps[number % len(steps)]


# --- cases


def _draw_benches(random):
    def rounded(values):
        return np.round(values, 4).tolist()

    def scenario(
        ranks, warm_up, repeats, *, slow=1.0, device=False, coupled=False, busy=0.0, late=0.0, apart=0.0, alike=True
    ):
        seconds = random.uniform(0.2, 0.4, (1 if alike else ranks, warm_up + repeats))
        seconds = np.repeat(seconds, ranks, 0) if alike else seconds
        seconds[:, :warm_up] *= slow
        lag = random.uniform(0.3, 0.9, (ranks, warm_up + repeats)) * np.linspace(0.2, 1, ranks)[:, None]
        arrive = apart * random.permutation(ranks)
        return {
            "warm_up": warm_up, "repeats": repeats, "device": device, "coupled": coupled,
            "busy": rounded(busy + late * random.permutation(ranks)),
            "seconds": rounded(seconds), "lag": rounded(lag), "arrive": rounded(arrive),
        }  # fmt: skip

    def repeats():
        return int(random.integers(5, 9))

    def slowest():
        """A rank alone is the slowest in no more than a part of the repeats."""
        given = scenario(3, 0, 6, alike=False)
        for number in range(6):
            given["seconds"][number % 3][number] += 0.5
        return given

    single = {
        "alone": scenario(1, 0, repeats()),
        "warm-up": scenario(1, int(random.integers(2, 5)), repeats(), slow=9.0),
        "device": scenario(1, 0, repeats(), device=True, busy=5.0),
    }
    several = {
        "slowest": slowest(),
        "barrier": scenario(3, 0, repeats(), coupled=True, late=7.0, apart=1.5),
    }
    series = [rounded(random.uniform(0.1, 0.3, n) * np.append(np.ones(n - 1), 20.0)) for n in (4, 7, 10)]

    def case(ranks, scenarios, about):
        return {
            "ranks": ranks, "scenarios": scenarios, "origins": rounded(random.uniform(10, 9e4, ranks)), "series": series,
            "about": about,
        }  # fmt: skip

    return {
        "single": [case(1, single, "one rank")],
        "several": [case(3, several, "three ranks")],
    }


def _known_to_the_program(case, rank):
    names = ("warm_up", "repeats", "coupled")
    scenarios = {name: {key: given[key] for key in names} for name, given in case["scenarios"].items()}
    return {"ranks": case["ranks"], "scenarios": scenarios, "series": case["series"]}


def observe_measuring(case, rank, outside, measure_step, summarise):
    def measured(name):
        given = case["scenarios"][name]
        outside("scenario", name)

        def step():
            outside("step")
            if given["coupled"]:
                dist.all_reduce(torch.ones(1))
                outside("stepped")

        def clock():
            return outside("clock")

        def synchronize():
            outside("synchronize")

        seconds = measure_step(step, torch.device("cpu"), clock, synchronize, given["warm_up"], given["repeats"])
        return seconds.tolist() if hasattr(seconds, "tolist") else seconds

    found = {"summaries": [summarise(list(seconds)) for seconds in case["series"]]}
    if "alone" in case["scenarios"]:
        try:
            found["alone"] = measured("alone")
        except Exception as error:
            found["alone"] = f"{type(error).__name__}"
    with collective_group(rank, case["ranks"], outside):
        for name in case["scenarios"]:
            if name != "alone":
                found[name] = measured(name)
    return found


# --- judging


def _one_rank(given, *, dropped=True, before=True, after=True, barrier=0.0):
    """Seconds of the repeats on one rank, with or without each of the harness's precautions.

    `barrier`: the seconds of a barrier before each repeat, in which the device works on.
    """
    now, device, found = 0.0, given["busy"][0], []
    for number in range(given["repeats"] + given["warm_up"] * dropped):
        timed = not dropped or number >= given["warm_up"]
        now = max(now, device) if timed and before else now
        now += barrier * timed
        start = now
        if given["device"]:
            device = max(device, now) + _seconds(given, 0, number)
            now += LAUNCH
        else:
            now += _seconds(given, 0, number)
        now = max(now, device) if timed and after else now
        found += [now - start] * timed
    return found


def _coupled(given, barriers="each"):
    """Seconds of the slowest rank's repeats where a step waits for all ranks; with a barrier before which repeats."""
    ranks = range(len(given["seconds"]))
    device = [a + b for a, b in zip(given["arrive"], given["busy"], strict=True)]  # until then it has older work
    now, found = list(given["arrive"]) if barriers == "early" else list(device), []
    for number in range(given["warm_up"] + given["repeats"]):
        first, timed = number == given["warm_up"], number >= given["warm_up"]
        if timed and (barriers in ("each", "early") or barriers == ("first" if first else "later")):
            now = [max(now) + CALL] * len(now)
        if barriers == "early":
            now = [max(each, work) for each, work in zip(now, device, strict=True)]
        start = now
        together = max(now[rank] + _seconds(given, rank, number) for rank in ranks)
        now = [together + given["lag"][rank][number] for rank in ranks]
        found += [max(end - begin for end, begin in zip(now, start, strict=True))] * timed
    return found


def _own(given, rank=0):
    return [_seconds(given, rank, number) for number in range(given["repeats"])]


_LIST = "measure_step should return a list with the seconds of each repeat"


def _is_list(seen, given):
    """A message for what is no list of so many numbers, or the empty string."""
    if not isinstance(seen, list | tuple):
        return _LIST
    if len(seen) == given["repeats"] + given["warm_up"] and given["warm_up"]:
        return "the warm-up steps are among the seconds: they are run, and not timed"
    if len(seen) != given["repeats"]:
        return f"{_LIST}, as many as `repeats`"
    return ""


def _equal(seen, right):
    """Equal, or longer by a collective of the student's own, which is another part's affair."""
    return equal(seen, right) or equal(seen, [one + CALL for one in right])


def _named(seen, right, mistakes, otherwise):
    if _equal(seen, right):
        return ""
    return next((reason for reason, wrongs in mistakes.items() if any(_equal(seen, one) for one in wrongs)), otherwise)


def _alone(case, seen, right):
    found, given = seen["ranks"][0]["alone"], case["scenarios"]["alone"]
    if isinstance(found, str):
        return "without a process group it raises: use collectives only where dist.is_initialized()"
    return _is_list(found, given) or _named(
        found, _one_rank(given), {}, "without a process group the seconds are wrong"
    )


def _warm_up(case, seen, right):
    found, given = seen["ranks"][0]["warm-up"], case["scenarios"]["warm-up"]
    if fault := _is_list(found, given):
        return fault
    kept = "the first steps are slow, and they are among the repeats: run `warm_up` steps before the first timed one"
    fault = _named(found, _one_rank(given), {kept: [_one_rank(given, dropped=False)]}, "the seconds are not those of the steps after the warm-up")  # fmt: skip
    if not fault and seen["steps"]["warm-up"] != [given["warm_up"] + given["repeats"]]:
        return "it runs more steps than `warm_up` + `repeats`"
    return fault


def _synchronised(case, seen, right):
    found, given = seen["ranks"][0]["device"], case["scenarios"]["device"]
    launched = (
        "the step is only launched when you read the clock: call synchronize() after the step, before that reading"
    )
    earlier = (
        "the first repeat contains work that the device had not finished: call synchronize() before the first reading"
    )
    return _is_list(found, given) or _named(
        found, _one_rank(given),
        {launched: [_one_rank(given, after=False)], earlier: [_one_rank(given, before=False, barrier=each) for each in (0.0, CALL)]},
        "on a device that computes by itself the seconds are not those of the steps",
    )  # fmt: skip


def _each_rank(seen, name):
    return [one[name] for one in seen["ranks"]]


def _slowest(case, seen, right):
    found, given = _each_rank(seen, "slowest"), case["scenarios"]["slowest"]
    if fault := next(filter(None, (_is_list(one, given) for one in found)), ""):
        return fault
    own = np.array([_own(given, rank) for rank in range(3)])
    for reason, wrong in {
        "": [own.max(0)] * 3,
        "each rank returns its own seconds; the slowest rank's were asked for, by all_reduce with MAX": list(own),
        "that is the mean over the ranks; a step lasts as long as its slowest rank": [own.mean(0)] * 3,
        "that is the sum over the ranks; take the maximum": [own.sum(0)] * 3,
        "that is the fastest rank's; take the maximum": [own.min(0)] * 3,
        "the seconds contain a barrier or an all-reduce of your own: read the clock before it": [own.max(0) + CALL] * 3,
        "only some ranks return the slowest rank's seconds: all_reduce gives them to all": [own.max(0), *own[1:]],
    }.items():
        if equal(found, [one.tolist() for one in wrong]):
            return reason
    return "the seconds are not the slowest rank's of each repeat"


def _barrier(case, seen, right):
    found, given = _each_rank(seen, "barrier"), case["scenarios"]["barrier"]
    if fault := next(filter(None, (_is_list(one, given) for one in found)), ""):
        return fault
    missing = "no barrier: a rank that starts early waits inside the step, and that is counted. dist.barrier() before each repeat"
    wrong = {
        missing: [_coupled(given, "none")],
        "the ranks start the first repeat at different times: dist.barrier() before it, too": [_coupled(given, "later")],
        "a barrier before the first repeat is not enough: the ranks leave each step at different times": [_coupled(given, "first")],
        "the ranks' devices finish older work after the barrier, at different times: synchronize() first, then dist.barrier()": [_coupled(given, "early")],
    }  # fmt: skip
    own, right = np.array(_own_of_coupled(given)), _coupled(given)
    wholes = [own.mean(0), own.min(0), own.sum(0)]  # what is made of the ranks' seconds is another part's affair
    if all(any(_equal(one, whole.tolist()) for whole in wholes) for one in found):
        return ""
    if all(_equal(one, right) or _equal(one, mine.tolist()) for one, mine in zip(found, own, strict=True)):
        return ""
    if all(equal(one, found[0]) for one in found):
        return _named(found[0], right, wrong, "the ranks do not begin each repeat together")
    return missing


def _own_of_coupled(given):
    """Each rank's own seconds, all from a common start."""
    numbers = range(given["warm_up"], given["warm_up"] + given["repeats"])
    return [
        [max(_seconds(given, other, n) for other in range(3)) + given["lag"][rank][n] for n in numbers]
        for rank in range(3)
    ]


def _summaries(case, seen, right):
    found = seen["ranks"][0]["summaries"]
    series = [np.array(one) for one in case["series"]]

    def each(middle, spread):
        return [[float(middle(one)), float(spread(one))] for one in series]

    def quartiles(one):
        return np.percentile(one, 75) - np.percentile(one, 25)

    for reason, wrong in {
        "": each(np.median, quartiles),
        "the spread is the standard deviation, which one disturbed repeat decides": each(np.median, np.std),
        "the spread is the standard deviation, which one disturbed repeat decides ": each(np.median, lambda one: one.std(ddof=1)),
        "the spread is the range, which one disturbed repeat decides": each(np.median, np.ptp),
        "the first number is the mean, which one disturbed repeat moves; take the median": each(np.mean, quartiles),
        "the first number is the minimum; take the median": each(np.min, quartiles),
        "the two numbers are swapped": [pair[::-1] for pair in each(np.median, quartiles)],
    }.items():  # fmt: skip
        if equal(found, wrong):
            return reason.strip()
    return "should return (median, spread) of the seconds, the spread from the 25th to the 75th percentile"


def _shown(case, seen):
    names = ", ".join(
        f"{name}: {given['warm_up']} + {given['repeats']} steps" for name, given in case["scenarios"].items()
    )
    return f"{case['about']} ({names})"


_ON_PAPER = "let a fake step print its name, and fake clock() and synchronize() too; then read the order of the calls"

MEASURE = Exercise(("measure_step", "summarise"), _draw_benches, observe_measuring, {
    "warm-up": Part("Warm-up steps are run and left out", _LIST, cases="single", judge=_warm_up),
    "synchronise": Part("The device is synchronised before each reading", _LIST, cases="single", judge=_synchronised),
    "alone": Part("It works without a process group", _LIST, cases="single", judge=_alone),
    "slowest": Part("The slowest rank's seconds, on every rank", _LIST, cases="several", judge=_slowest),
    "barrier": Part("A barrier before each repeat", _LIST, cases="several", judge=_barrier),
    "summary": Part("Median and spread", "summarise should return (median, spread)", cases="single", judge=_summaries),
}, _ON_PAPER, _shown, share=_known_to_the_program, **watched(3, Bench, lambda case: case["ranks"]))  # fmt: skip
