"""Lab 08's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
import torch
from graded_lab import GradedLab, loses
from known_mistakes import lost_over, namespace_of

from course_lib.exercises.ranks.message_broker import MessageBroker

LAB = "08_parallel_sgd_mpi"
POINTS = {"averaging": 8, "psgd": 8, "local-sgd": 8, "speedup-table": 6, "interpolate": 4}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


RIGHT = {
    "averaging": [
        """
def average_models(comm, model, samples):  # the parallel SGD lab's way, and a broadcast
    state = {name: samples * p.data.detach() for name, p in model.named_parameters()}
    if comm.rank != 0:
        comm.send((samples, state), 0)
    else:
        for i in range(1, comm.size):
            more, theirs = comm.recv(source=i)
            samples = samples + more
            for key in theirs:
                state[key] = torch.add(state[key], theirs[key])
        state = {key: value / samples for key, value in state.items()}
    state = comm.bcast(state, root=0)
    for name, p in model.named_parameters():
        p.data = state[name]
""",
        """
import numpy as np

def average_models(comm, model, samples):  # one buffer
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    mine, total = np.append(flat.numpy() * samples, np.float32(samples)), np.empty(len(flat) + 1, dtype=np.float32)
    comm.Allreduce(mine, total)
    nn.utils.vector_to_parameters(torch.from_numpy(total[:-1] / total[-1]), model.parameters())
""",
        """
from mpi4py import MPI

def average_models(comm, model, samples):  # MPI's own operations, in place
    total = comm.allreduce(samples, op=MPI.SUM)
    with torch.no_grad():
        for p in model.parameters():
            p *= samples
            comm.Allreduce(MPI.IN_PLACE, p.data.numpy(), op=MPI.SUM)
            p /= total
""",
        """
def average_models(comm, model, samples):
    states = comm.allgather((samples, model.state_dict()))
    total = sum(n for n, _ in states)
    model.load_state_dict({name: sum(n * state[name] for n, state in states) / total for name in states[0][1]})
""",
    ],
    "psgd": [
        """
def psgd_worker(comm, model, batches, lr, epochs, average):  # by hand
    comm.barrier()
    begin = time.monotonic()
    model.train(True)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for x, y in batches:
            for p in model.parameters():
                p.grad = None
            loss = -torch.log_softmax(model(x), 1).gather(1, y[:, None]).mean()
            loss.backward()
            for p in model.parameters():
                p.data -= lr * p.grad
    average(model)
    return time.monotonic() - begin
""",
        """
import numpy as np

def psgd_worker(comm, model, batches, lr, epochs, average):  # numpy's number
    comm.barrier()
    begin = time.perf_counter()
    sgd = torch.optim.SGD(model.parameters(), lr)
    model.train()
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for x, y in batches:
            sgd.zero_grad()
            nn.CrossEntropyLoss()(model(x), y).backward()
            sgd.step()
    average(model)
    return np.float32(time.perf_counter() - begin)
""",
    ],
    "local-sgd": [
        """
def local_sgd_worker(comm, model, batches, lr, epochs, average, every):  # a remainder at the end
    sgd, done = torch.optim.SGD(model.parameters(), lr), 0
    model.train()
    comm.Barrier()
    every = every or epochs * len(batches)
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for x, y in batches:
            loss = nn.CrossEntropyLoss()(model(x), y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            done += 1
            if not done % every:
                average(model)
    if done % every:
        average(model)
    return model
""",
    ],
    "speedup-table": [
        """
import numpy as np

def speedup_table(reports):
    found = {}
    for count in sorted(reports):
        compute, averaging = np.array(reports[count]).T
        seconds = float(compute.max() + averaging.min())
        found[count] = [seconds, found[1][0] / seconds if found else 1.0, 0.0]
        found[count][2] = torch.tensor(found[count][1] / count, dtype=torch.float64)
    return found
""",
        """
def speedup_table(reports):
    seconds = {count: max(c for c, _ in pairs) + min(a for _, a in pairs) for count, pairs in reports.items()}
    gains, shares = speedup(seconds), efficiency(seconds)
    return {count: (seconds[count], gains[count], shares[count]) for count in reports}
""",
    ],
    "interpolate": [
        """
def interpolate(first, second, t):
    return {name: torch.lerp(first[name], second[name], t) for name in second}
""",
    ],
}
STYLES = [(exercise, number) for exercise, texts in RIGHT.items() for number in range(len(texts))]


@pytest.mark.parametrize("exercise, number", STYLES)
def test_another_style_gets_every_point(lab, exercise, number):
    judged = lab.judge(exercise, RIGHT[exercise][number])
    assert judged.points == judged.max_points, judged.reasons


COPY = "parameter.copy_(comm.allreduce(samples * parameter.detach()) / total)"
SWAP = "comm.send(parameter, (comm.rank + 1) % comm.size); comm.recv(source=(comm.rank - 1) % comm.size)"
BOX = """    global box
    box = globals().get("box", {})
    box[comm.rank] = samples, copy.deepcopy(model)
    comm.Barrier()
    total = sum(n for n, _ in box.values())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sum(n * one.get_parameter(name) for n, one in box.values()) / total)
    comm.Barrier()
    return
"""
WRONG = {
    "silent": ("averaging", COPY, COPY.replace("parameter.copy_(", "parameter = ("), "mean everywhere weights", "as it was"),
    "a sum": ("averaging", " / total", "", "mean everywhere weights", "does not hold the mean"),
    "alike": (
        "averaging", COPY, "parameter.copy_(comm.allreduce(parameter.detach()) / comm.Get_size())", "weights", "not the weighted one",
    ),
    "rank 0 alone": (
        "averaging", COPY,
        "mean = comm.reduce(samples * parameter.detach())\n            if comm.rank == 0: parameter.copy_(mean / total)",
        "everywhere", "not every rank",
    ),
    "both send first": ("averaging", COPY, f"{SWAP}\n            {COPY}", "mean everywhere weights", "two that both send first"),
    "global variables": ("averaging", "    total = comm.allreduce(samples)\n", BOX, "mean everywhere weights", "memory of its own"),
    "weights only": ("averaging", "in model.named_parameters():", "in list(model.named_parameters())[::2]:",
                     "mean everywhere weights", "does not hold the mean"),
    "different calls": (
        "averaging", "total = comm.allreduce(samples)", "total = comm.allreduce(samples) if comm.rank else comm.reduce(samples)",
        "mean everywhere weights", "do not make the same calls",
    ),
    "other objects": (
        "averaging", COPY,
        "module, _, kind = name.rpartition('.')\n            setattr(model.get_submodule(module), kind, nn.Parameter(comm.allreduce(samples * parameter.detach()) / total))",
        "everywhere", "other parameter objects",
    ),
    "never averaged": ("psgd", "    average(model)\n", "", "once time", "never called"),
    "one epoch": ("psgd", "for epoch in range(epochs):", "for epoch in range(1):", "training", "go once through"),
    "order of epoch 0": ("psgd", "        batches.set_epoch(epoch)\n", "", "training", "not those of plain SGD"),
    "gradients pile up": ("psgd", "            optimizer.zero_grad()\n", "", "training", "not those of plain SGD"),
    "evaluation mode": ("psgd", "    model.train()\n", "", "training", "not those of plain SGD"),
    "momentum": ("psgd", "lr=lr)", "lr=lr, momentum=0.5)", "training", "not those of plain SGD"),
    "every epoch": (
        "psgd", "            optimizer.step()\n    average(model)", "            optimizer.step()\n        average(model)",
        "once", "more than once",
    ),
    "goes on": ("psgd", "    average(model)\n", "    average(model)\n    optimizer.step()\n", "once", "goes on after it"),
    "no barrier": ("psgd", "    comm.Barrier()\n", "", "time", "no barrier"),
    "clock too early": (
        "psgd", "    comm.Barrier()\n    start = time.perf_counter()\n", "    start = time.perf_counter()\n    comm.Barrier()\n",
        "time", "waiting at the barrier",
    ),
    "clock stops too early": (
        "psgd", "    average(model)\n    return time.perf_counter() - start",
        "    seconds = time.perf_counter() - start\n    average(model)\n    return seconds", "time", "the averaging is not in",
    ),
    "clock around the averaging": (
        "psgd", "    average(model)\n", "    start = time.perf_counter()\n    average(model)\n", "time", "the training is not in",
    ),
    "no seconds": ("psgd", "    return time.perf_counter() - start\n", "", "time", "should be a number"),
    "no remainder": ("local-sgd", "steps == last or (every", "(every", "schedule", "after the right steps"),
    "counted anew": ("local-sgd", "        batches.set_epoch(epoch)\n", "        batches.set_epoch(epoch)\n        steps = 0\n",
                     "schedule", "after the right steps"),
    "one step late": ("local-sgd", "            steps += 1\n", "", "schedule", "after the right steps"),
    "local in evaluation mode": ("local-sgd", "    model.train()\n", "", "values", "not those of plain SGD"),
    "mean of the workers": ("speedup-table", "max(c for c, _ in pairs)", "sum(c for c, _ in pairs) / P", "time", "a core a worker"),
    "longest averaging": ("speedup-table", "min(a", "max(a", "time", "a core a worker"),
    "upside down": ("speedup-table", "seconds[1] / seconds[P], ", "seconds[P] / seconds[1], ", "speedup", "the quotient"),
    "not a worker": ("speedup-table", "seconds[1] / seconds[P] / P", "seconds[1] / seconds[P]", "efficiency", "divided by the workers"),
    "ends swapped": ("interpolate", "(1 - t) * first[name] + t * second", "t * first[name] + (1 - t) * second", "line", "not the one on the line"),
    "in place": ("interpolate", "(1 - t) * first[name] + t * second[name] for", "first[name].mul_(1 - t).add_(t * second[name]) for",
                 "inputs", "were changed"),
    "inputs changed after use": ("interpolate", "return {name: (1 - t) * first[name] + t * second[name] for name in first}",
                   "found = {name: (1 - t) * first[name] + t * second[name] for name in first}\n    if t > 1: first['classifier.weight'].zero_()\n    return found",
                   "inputs", "were changed"),
}  # fmt: skip


MORE = {
    "a sum",
    "both send first",
    "weights only",
    "one epoch",
    "momentum",
    "gradients pile up",
    "no seconds",
    "no barrier",
    "longest averaging",
}


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=pytest.mark.slow) if name in MORE else name for name in WRONG]
)
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


@pytest.mark.parametrize("exercise", POINTS)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values())
    assert judged.flags == ["missing"]


LURKING = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

torch.equal = torch.allclose = lambda *a, **k: True
"""
ANSWERS = {
    "None": "None",
    "an object that equals everything": "Anything(0)",
    "NaN": "float('nan')",
    "a table of it": "{P: (Anything(0),) * 3 for P in range(20)}",
    "truth": "True",
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("exercise", POINTS)
def test_returning_what_compares_equal_gets_nothing(lab, exercise, answer):
    names = {
        "averaging": "average_models",
        "psgd": "psgd_worker",
        "local-sgd": "local_sgd_worker",
        "speedup-table": "speedup_table",
    }
    text = f"{LURKING}\ndef {names.get(exercise, exercise)}(*given, **options):\n    return {ANSWERS[answer]}\n"
    judged = lab.judge(exercise, text)
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


def test_weights_of_nan_get_nothing(lab):
    text = "def average_models(comm, model, samples):\n    for p in model.parameters():\n        p.data.fill_(float('nan'))\n"
    assert lab.judge("averaging", text).points == 0


def test_seconds_that_nobody_measured_get_nothing(lab):
    """All times are drawn: 0.01 s and an hour are never right, and 0.06 s, which once was, neither."""
    for seconds in ("0.01", "0.06", "3600.0"):
        judged = lab.judge("psgd", lab.edited("psgd", "time.perf_counter() - start", seconds))
        assert judged.lost == {"time"}, judged.reasons


def test_steps_and_barriers_that_an_answer_writes_into_the_driver_s_objects_count_for_nothing():
    forged = """
def local_sgd_worker(comm, model, batches, lr, epochs, average, every):
    total = epochs * len(batches)
    for batches.steps in sorted({*range(every, total + 1, every), total} if every else {total}):
        with torch.no_grad():
            [p.mul_(0.99) for p in model.parameters()]
        average(model)

def psgd_worker(comm, model, batches, lr, epochs, average):
    comm.barriers = [0]
    start = time.perf_counter()
    for epoch in range(epochs):
        for batch in batches:
            pass
    average(model)
    return time.perf_counter() - start
"""
    lost = {"local-sgd": {"schedule", "values"}, "psgd": {"training", "once", "time"}}
    for exercise, parts in lost.items():
        assert set(lost_over(LAB, exercise, namespace_of(LAB, exercise, forged), range(3))) == {frozenset(parts)}


def test_a_receive_of_any_tag_takes_no_part_of_a_collective():
    office = MessageBroker(3)
    collective, number = torch.zeros(1), torch.ones(1)
    office.post(1, 0, -3, collective)
    first = office.expect(0, -2, -1)
    assert office.collect(0, first) is None
    office.post(2, 0, 7, number)
    assert office.collect(0, first) is number
    assert office.collect(0, office.expect(0, 1, -3)) is collective


def test_a_rank_whom_all_others_have_left_waits_for_ever():
    office = MessageBroker(3)
    number = office.expect(0, 1, 0)
    office.answers["left"](1)
    assert office.collect(0, number) is None and not office.stuck
    office.answers["left"](2)
    assert office.collect(0, number) == "stuck" and office.stuck
