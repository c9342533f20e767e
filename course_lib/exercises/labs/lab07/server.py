"""Lab 07: Algorithm 2's two sides, a step by staleness, and backup workers. The partners are played from a drawn script."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.broker_process_group import message_group
from course_lib.exercises.ranks.played_ranks import PlayedServer, PlayedWorkers, on_played_ranks

__all__ = ["BACKUP", "SERVER", "STALE_STEP", "WORKER"]

GRADIENT, GOODBYE = 1.0, 2.0  # the first number of a message, as in the notebook


def served_network(state):
    """A network with these parameters, one after the other in a vector."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))
    nn.utils.vector_to_parameters(state.clone(), model.parameters())
    return model


def parameters_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def give_gradients(model, vector):
    for p, piece in zip(model.parameters(), vector.split([p.numel() for p in model.parameters()]), strict=True):
        p.grad = piece.view_as(p).clone()


LENGTH = sum(p.numel() for p in served_network(torch.zeros(17)).parameters())


def _vector(random):
    return torch.from_numpy(random.normal(0, 1, LENGTH)).float()


def _message(kind, version, rest):
    return torch.cat([torch.tensor([kind, float(version)]), rest])


def _optimizer(random):
    return {"lr": float(random.uniform(0.05, 0.2)), "momentum": float(random.uniform(0.5, 0.9))}


# --- push_and_pull


def _draw_exchanges(random):
    versions = [int(n) for n in random.integers(1, 10_000, 3)]
    back = [int(n) for n in random.integers(10_000, 20_000, 3)]
    case = {
        "state": _vector(random),
        "gradients": [_vector(random) for _ in range(3)],
        "versions": versions,
        "answers": [_message(GRADIENT, version, _vector(random)) for version in back],
    }
    return {"exchanges": [case | {"about": f"3 exchanges, on versions {versions}; the server answers with {back}"}]}


def observe_worker(case, outside, push_and_pull):
    model, returned, parameters = served_network(case["state"]), [], []
    with message_group(1, 2, outside):
        for gradients, version in zip(case["gradients"], case["versions"], strict=True):
            give_gradients(model, gradients)
            returned.append(push_and_pull(model, version))
            parameters.append(parameters_of(model))
    return {"returned": returned, "parameters": parameters}


WORKER = Exercise(("push_and_pull",), _draw_exchanges, observe_worker, {
    "message": Part("The gradients arrive, with their kind and version", "the messages are not [GRADIENT, version, "
                    "gradients], one per call", keys="questions"),
    "parameters": Part("The model has the parameters that came back", "the model's parameters are not those that the "
                       "server sent", keys="parameters"),
    "version": Part("Returns their version", "it should return the version of the new parameters, an int", keys="returned"),
}, "let rank 0 receive the message and print it, and answer with numbers that you know",
    watch=lambda case: PlayedServer(case["answers"]), transport=on_played_ranks,
    share=lambda case, rank: {name: case[name] for name in ("state", "gradients", "versions")})  # fmt: skip

# --- serve


class Script:
    """Messages of workers to a server that answers as it should, in the order in which they are sent."""

    def __init__(self, random, workers, needed=1):
        self.random, self.needed, self.lines = random, needed, []
        self.has = dict.fromkeys(range(1, workers + 1), 0)  # version by worker
        self.version = self.answers = 0
        self.waiting = []  # workers whose gradient is in the step under way

    def gradient(self, worker):
        """A worker sends a gradient on the parameters that it has, once everything before is answered."""
        self.lines.append((worker, _message(GRADIENT, self.has[worker], _vector(self.random)), self.answers, True))
        if self.has[worker] < self.version and self.needed > 1:  # late
            self.has[worker] = self.version
            self.answers += 1
            return
        self.waiting.append(worker)
        if len(self.waiting) == self.needed:
            self.version += 1
            self.has.update(dict.fromkeys(self.waiting, self.version))
            self.answers += len(self.waiting)
            self.waiting = []

    def goodbye(self, worker):
        self.lines.append((worker, _message(GOODBYE, self.has[worker], torch.zeros(LENGTH)), self.answers, False))


def _served(random, script, about, **more):
    workers = len(script.has)
    return (
        {"state": _vector(random), "workers": workers, "script": script.lines, "about": about}
        | _optimizer(random)
        | more
    )


def _draw_orders(random):
    early, late, other = (int(n) for n in random.permutation(3) + 1)
    script = Script(random, 3)
    for worker in [late, late, *(int(n) for n in random.permutation([early] * 3 + [late] * 4 + [other] * 2))]:
        script.gradient(worker)
    script.goodbye(early)
    for worker in (late, late, other):
        script.gradient(worker)
    script.goodbye(late)
    script.gradient(other)
    script.goodbye(other)
    order = ", ".join(str(worker) for worker, *_, awaits in script.lines if awaits)
    return {"orders": [_served(random, script, f"gradients come from workers {order}; {early} says goodbye first")]}


def observe_server(case, outside, serve):
    model = served_network(case["state"])
    optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=case["momentum"])
    steps = []

    def step(optimizer, staleness):
        steps.append(whole(staleness))
        optimizer.step()

    with message_group(0, case["workers"] + 1, outside):
        updates = serve(model, optimizer, case["workers"], step)
    return {"updates": whole_pairs(updates), "steps": steps, "final": parameters_of(model)}


def whole_pairs(updates):
    """Pairs of whole numbers, however they are held; what is none stays as it is."""
    if not isinstance(updates, list | tuple):
        return None if isinstance(updates, float | int) else updates
    return [list(map(whole, each)) if isinstance(each, list | tuple) else each for each in updates]


def whole(number):
    if (isinstance(number, torch.Tensor) and number.numel() == 1) or isinstance(number, float):
        return int(number) if float(number) == float(number) // 1 else None
    return number


class Workers(PlayedWorkers):
    """Its evidence: what the answers carry, by worker."""

    def evidence(self):
        each = super().evidence()

        def number(answer, place):
            return float(answer.flatten()[place]) if answer.numel() > place else None

        return {
            "parameters": [[answer.flatten()[2:] for answer in one] for one in each["answers"]],
            "kinds": [[number(answer, 0) for answer in one] for one in each["answers"]],
            "versions": [[number(answer, 1) for answer in one] for one in each["answers"]],
            "left": each["left"],
        }


def _server_share(case, rank):
    return {name: value for name, value in case.items() if name not in ("script", "about")}


def _answers_in_words(mine, theirs):
    """Where the workers' answers, or the parameters at the end, first differ from the right ones."""
    for worker, (one, right) in enumerate(zip(mine["parameters"], theirs["parameters"], strict=True), start=1):
        if len(one) != len(right):
            return f"worker {worker} gets {len(one)} answer(s), it should get {len(right)}"
        for number, (answer, wanted) in enumerate(zip(one, right, strict=True), start=1):
            if not equal(answer, wanted):
                return f"answer {number} to worker {worker} has other parameters than it should"
    if mine["left"]:
        return "a worker's message was not received, or a GOODBYE was answered"
    return "" if equal(mine["final"], theirs["final"]) else "the server's own model has other parameters at the end"


_PLAYED = {
    "watch": lambda case: Workers(case["workers"], case["script"]),
    "share": _server_share,
    "transport": on_played_ranks,
}

SERVER = Exercise(("serve",), _draw_orders, observe_server, {
    "parameters": Part("Each gradient is applied, and answered with the parameters after it", "an answer is missing, "
                       "too many, or has other parameters than those after the optimiser's step", keys="parameters final left",
                       words=_answers_in_words),
    "versions": Part("Answers carry their kind and the version", "an answer carries another kind or version than its own; "
                     "the first update makes version 1", keys="kinds versions",
                     hint="print the first two numbers of each answer: GRADIENT, and the version; the first is 1"),
    "staleness": Part("Steps by the staleness, and returns who it was and how stale", "the server should call "
                      "step(optimizer, staleness), and return a pair (worker's rank, staleness) for each update; the staleness is the "
                      "version before the update minus the one that came with it", keys="updates steps", hint="take the order 1, 2, 1, 1, 2: the staleness is 0, 1, 1, 0, 2"),
}, "write a script of five messages by hand, apply them to one weight on paper, and compare", **_PLAYED)  # fmt: skip

# --- staleness_aware_step


def _draw_stale(random):
    def case(staleness, groups):
        rates = [float(rate) for rate in random.uniform(0.05, 0.5, groups)]
        about = f"staleness {staleness}, learning rate {', '.join(f'{rate:.3f}' for rate in rates)}"
        weights, gradients = ([torch.from_numpy(random.normal(0, 1, 4)) for _ in rates] for _ in range(2))
        return {"rates": rates, "weights": weights, "gradients": gradients, "staleness": staleness, "about": about}

    some = [0, 1, *(int(n) for n in random.integers(2, 20, 3))]
    return {"one": [case(staleness, 1) for staleness in some], "groups": [case(staleness, 2) for staleness in some[1:]]}


def observe_stale_step(case, staleness_aware_step):
    weights = [nn.Parameter(weight.clone()) for weight in case["weights"]]
    groups = [{"params": [weight], "lr": rate} for weight, rate in zip(weights, case["rates"], strict=True)]
    optimizer, steps = torch.optim.SGD(groups, momentum=0.9), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for staleness in (case["staleness"], case["staleness"] + 1):  # the second shows what the momentum has taken in
        for group, rate in zip(optimizer.param_groups, case["rates"], strict=True):
            group["lr"] = rate
        for weight, gradient in zip(weights, case["gradients"], strict=True):
            weight.grad = gradient.clone()
        staleness_aware_step(optimizer, staleness)
    left = [rate_of(group["lr"]) for group in optimizer.param_groups]
    return {"weights": [weight.detach().clone() for weight in weights], "rates": left, "steps": len(steps)}


def rate_of(value):
    """A learning rate, which may be a tensor; None for what is none."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value if isinstance(value, int | float) else None


STALE_STEP = Exercise(("staleness_aware_step",), _draw_stale, observe_stale_step, {
    "rate": Part("One step with the learning rate divided by 1 + staleness", "the step is not one step with the learning "
                 "rate divided by 1 + staleness", cases="one", keys="weights steps"),
    "groups": Part("In every parameter group", "with two parameter groups the step is wrong", needs="rate",
                   keys="weights steps"),
    "restored": Part("The learning rates are as before afterwards", "afterwards a learning rate is another than before",
                     cases="one groups", keys="rates", needs="rate"),
}, "take one weight 1 with gradient 1, learning rate 0.3 and staleness 2: it becomes 0.9")  # fmt: skip

# --- serve_first


def _draw_backups(random):
    def together(workers):
        script = Script(random, workers, workers)
        for _ in range(3):
            for worker in random.permutation(workers) + 1:
                script.gradient(int(worker))
        for worker in range(1, workers + 1):
            script.goodbye(worker)
        return _served(random, script, f"{workers} workers, all of them needed", needed=workers)

    return {"together": [together(3), together(2)], "late": [_late(random), _late(random)]}


def _late(random):
    """Two of four are needed. One sends its first gradient two steps late; afterwards chance decides."""
    fast, second, slow = (int(n) for n in random.permutation(4)[:3] + 1)
    script, gone = Script(random, 4, 2), []
    for worker in (fast, second, second, fast, fast, slow):
        script.gradient(worker)

    def free():
        return [worker for worker in script.has if worker not in (*script.waiting, *gone)]

    for turn in range(12):
        script.gradient(int(random.choice(free())))
        if turn == 6:
            gone.append(next(worker for worker in free() if worker != slow))
            script.goodbye(gone[0])
    while script.waiting:
        script.gradient(free()[0])
    for worker in free():
        script.goodbye(worker)
    return _served(random, script, "4 workers, 2 of them needed; some gradients come after their step", needed=2)


def observe_backup(case, outside, serve_first):
    model = served_network(case["state"])
    optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=case["momentum"])
    with message_group(0, case["workers"] + 1, outside):
        dropped = serve_first(model, optimizer, case["workers"], case["needed"])
    return {"dropped": list(dropped) if isinstance(dropped, list | tuple) else dropped, "final": parameters_of(model)}


BACKUP = Exercise(("serve_first",), _draw_backups, observe_backup, {
    "together": Part("One step with the mean of the gradients that are needed", "where all workers are needed, the "
                     "answers are not the parameters after one step with the mean of their gradients",
                     keys="parameters versions kinds final left", words=_answers_in_words),
    "late": Part("A late gradient changes nothing, and nobody waits for it", "a gradient of an older version changes the "
                 "parameters, or is not answered at once with the newest parameters and their version", cases="late",
                 needs="together", keys="parameters versions kinds final left", words=_answers_in_words),
    "dropped": Part("Returns whose gradients were dropped", "should return the list of the workers whose gradients came "
                    "too late, in their order", cases="late", needs="together", keys="dropped"),
}, "write a script by hand, 2 of 3 workers needed: gradients of 1 and 2, then a late one of 3. What is each answered?",
    guarded="late", **_PLAYED)  # fmt: skip
