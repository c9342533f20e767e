"""Lab 07's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
from graded_lab import GradedLab, loses, with_seconds

LAB = "07_sync_async_sgd"
EXERCISES = ["initial", "average", "statistics", "worker", "server"]


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points, judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    runs = {run.cell: run.max_points for run in lab.rubric.runs}
    exercises = {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises}
    assert {**exercises, **runs} == in_notebook


RIGHT = {
    "parameters and buffers apart": ("initial", """
def synchronise(model):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, tensor.detach())
            tensor.copy_(everyones[0])
"""),
    "an all-gather, and .data": ("average", """
def average_gradients(model, samples):
    parameters = [p for p in model.parameters() if p.requires_grad]
    mine = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1).double() for p in parameters])
    mine = torch.cat([mine, torch.tensor([samples], dtype=torch.float64)])
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    total = sum(one[-1] for one in everyones)
    mean, place = sum(one[:-1] * one[-1] for one in everyones) / total, 0
    for p in parameters:
        p.grad = mean[place : place + p.numel()].reshape(p.shape).float()
        place += p.numel()
"""),
    "by name": ("statistics", """
def average_statistics(model):
    for name, tensor in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            dist.all_reduce(tensor)
            tensor.div_(dist.get_world_size())
"""),
    "blocking": ("worker", """
def push_and_pull(model, version):
    gradients = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.send(torch.cat([torch.tensor([GRADIENT, version]), gradients]), 0)
    answer = torch.empty(len(gradients) + 2)
    dist.recv(answer, 0)
    torch.nn.utils.vector_to_parameters(answer[2:], model.parameters())
    return int(answer[1].item())
"""),
    "a receive for each worker, by threads": ("server", """
import queue
import threading

def serve(model, optimizer, workers):
    arrived, updates, version, left = queue.Queue(), [], 0, set(range(1, workers + 1))
    def listen(rank):
        while True:
            message = message_for(model)
            dist.irecv(message, src=rank).wait()
            arrived.put((rank, message))
            if message[0] == GOODBYE:
                return
    for rank in left:
        threading.Thread(target=listen, args=(rank,), daemon=True).start()
    while left:
        rank, message = arrived.get()
        if message[0] == GOODBYE:
            left.discard(rank)
            continue
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        unpack(message, [p.grad for p in model.parameters()])
        optimizer.step()
        updates.append([rank, float(version - message[1])])
        version += 1
        answer = message_for(model)
        pack(answer, GRADIENT, version, model.parameters())
        dist.send(answer, dst=rank)
    return tuple(updates)
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_other_right_answers_get_every_point(lab, name):
    exercise, answer = RIGHT[name]
    judged = lab.judge(exercise, answer)
    assert judged.points == judged.max_points, judged.reasons


SLIDES = """
def average_gradients(model, samples):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
"""


WRONG = [  # exercise, edits of the solution (old, new…), parts lost, what a reason says
    ("initial", ("model.state_dict().values()", "model.parameters()"), "buffers", "does not have rank 0's buffers"),
    ("initial", ("src=0", "src=1"), "parameters buffers", "rank 0 does not have rank 0's parameters"),
    ("average", ("samples * g.flatten()", "g.flatten()"), "even uneven edges", "wrong even where"),
    ("average", ("/ vector[-1]", "/ dist.get_world_size()"), "even uneven edges", "wrong even where"),
    ("average", (" if p.requires_grad]", "]"), "edges", "frozen parameter"),
    ("average", ("g.flatten()", "g.view(-1)"), "edges", "channels-last"),
    ("average", ("g.flatten()", "g.as_strided((g.numel(),), (1,))"), "edges", "channels-last"),
    ("statistics", ("buffer /= dist.get_world_size()", "pass"), "mean", "not the mean"),
    ("statistics", ("buffer.is_floating_point()", "True", "buffer /= ", "buffer //= "), "mean kept", "counters"),
    ("worker", ("[p.grad for p in model.parameters()]", "list(model.parameters())"), "message", "does not carry"),
    ("worker", ("pack(question, GRADIENT, version,", "pack(question, GRADIENT, 0,"), "message", "second number"),
    ("worker", ("pack(question, GRADIENT,", "pack(question, GOODBYE,"), "message", "first number"),
    ("worker", ("unpack(answer, list(model.parameters()))", "pass"), "parameters", "not those that"),
    ("worker", ("return int(answer[1])", "return answer[1]"), "version", "an int"),
    ("worker", ("return int(answer[1])", "return version + 1"), "version", "another number"),
    ("server", ("version - int(request[1])", "version + 1 - int(request[1])"), "staleness", "the staleness is not"),
    ("server", ("version - int(request[1])", "0"), "staleness", "the staleness is not"),
    ("server", ("updates.append((worker,", "updates.append((worker - 1,"), "staleness", "rank of the worker"),
    ("server", ("return updates", "return None"), "staleness", "nothing (None)"),
    ("server", ("pack(answer, GRADIENT, version,", "pack(answer, GRADIENT, version - 1,"), "versions staleness", "another version"),
    ("server", ("pack(answer, GRADIENT,", "pack(answer, GOODBYE,"), "versions", "first number"),
    ("server", ("        optimizer.step()\n", ""), "parameters", "not those after"),
    ("server", ("p.grad for p in model.parameters()]", "p for p in model.parameters()]"), "parameters", "not those after"),
]  # fmt: skip


@pytest.mark.parametrize("exercise, edits, lost, reason", WRONG)
def test_a_mistake_loses_its_part_and_no_other(lab, exercise, edits, lost, reason):
    loses(lab, exercise, lab.edited(exercise, *edits), lost, reason)


def test_one_collective_a_parameter_loses_a_part(lab):
    answer = lab.edited(
        "average",
        "    dist.all_reduce(vector)\n",
        "    for place in range(len(vector) - 1):\n        dist.all_reduce(vector[place : place + 1])\n"
        "    dist.all_reduce(vector[-1:])\n",
    )
    loses(lab, "average", answer, "one-message", "many messages")


def test_two_collectives_lose_the_same_part(lab):
    answer = lab.edited(
        "average",
        "    dist.all_reduce(vector)\n",
        "    half = len(vector) // 2\n    dist.all_reduce(vector[:half])\n    dist.all_reduce(vector[half:])\n",
    )
    loses(lab, "average", answer, "one-message", "many messages")


def test_the_slides_listing_loses_what_is_new(lab):
    judged = lab.judge("average", SLIDES)
    assert judged.lost >= {"uneven", "edges"} or judged.points == 0


@pytest.mark.parametrize(
    "exercise, answer",
    [
        ("server", """
def serve(model, optimizer, workers):
    request, answer, updates = message_for(model), message_for(model), []
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    while True:
        for worker in range(1, workers + 1):
            dist.recv(request, src=worker)
            if request[0] == GOODBYE:
                return updates
            unpack(request, [p.grad for p in model.parameters()])
            optimizer.step()
            updates.append((worker, 0))
            pack(answer, GRADIENT, len(updates), list(model.parameters()))
            dist.send(answer, dst=worker)
"""),
        ("worker", """
def push_and_pull(model, version):
    answer = message_for(model)
    dist.recv(answer, src=0)
    return int(answer[1])
"""),
    ],
    ids=["in turns", "asks for nothing"],
)  # fmt: skip
def test_what_waits_for_ever_loses_everything_in_time(lab, monkeypatch, exercise, answer):
    with_seconds(monkeypatch, 2)
    judged = lab.judge(exercise, answer)
    assert judged.points == 0 and any("timed out" in reason for reason in judged.reasons.values()), judged.reasons


@pytest.mark.parametrize("exercise", EXERCISES)
def test_a_blank_is_not_answered(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0 and all("not answered" in reason for reason in judged.reasons.values()), judged.reasons
