"""Lab 07: synchronous and asynchronous SGD. What ranks do together; `server.py` has the servers and the worker."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab07.server import BACKUP, SERVER, STALE_STEP, WORKER
from course_lib.exercises.ranks.broker_process_group import message_group
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.message_broker import MessageBroker
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["EXERCISES"]

RANKS = 3


def network(layers):
    """A network; its convolution's weight is channels-last in memory, as the labs' networks' are."""
    if layers == "convolution":
        return nn.Sequential(nn.Conv2d(2, 4, 3)).to(memory_format=torch.channels_last)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def filled(layers, state):
    model = network(layers)
    with torch.no_grad():
        for tensor, value in zip(model.state_dict().values(), state, strict=True):
            tensor.copy_(value)
    return model


def state_of(model):
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


NAMES = list(network("normed").state_dict())
BUFFERS = [place for place, name in enumerate(NAMES) if "running" in name or "num_batches" in name]
PARAMETERS = [place for place in range(len(NAMES)) if place not in BUFFERS]
COUNTERS = [place for place, name in enumerate(NAMES) if "num_batches" in name]


def _drawn_state(random, layers="normed"):
    state = []
    for tensor in network(layers).state_dict().values():
        if tensor.is_floating_point():
            state.append(torch.from_numpy(random.uniform(0.5, 3, tuple(tensor.shape))).float())
        else:
            state.append(torch.tensor(int(random.integers(5, 500))))
    return state


def _drawn(random, shapes):
    return [torch.from_numpy(random.normal(0, 2, shape)).float() for shape in shapes]


def _states_of(seen):
    return [one["state"] for one in seen["ranks"]]


def _all_have(seen, places, wanted):
    """Whether every rank has `wanted`, a whole state, at these places."""
    return all(equal([state[n] for n in places], [wanted[n] for n in places], 1e-5) for state in _states_of(seen))


def _mean(states, place):
    return torch.stack([state[place].float() for state in states]).mean(0)


_UNSEEN = "the values are right, but fewer bytes than they have passed between the ranks by collectives"

# --- synchronise


def _draw_beginnings(random):
    states = [_drawn_state(random) for _ in range(RANKS)]
    return {"ranks": [{"states": states, "about": f"{RANKS} ranks, each with weights of its own"}]}


def observe_beginning(case, rank, outside, synchronise):
    model = filled("normed", case["state"])
    with collective_group(rank, case["size"], outside):
        synchronise(model)
    return {"state": state_of(model)}


def _own_state(case, rank):
    return {"size": RANKS, "state": case["states"][rank]}


def _begun(places, what):
    def judge(case, seen, right):
        states = case["states"]
        if _all_have(seen, places, states[0]):
            return "" if seen["passed"] >= sum(states[0][place].nbytes for place in places) else _UNSEEN
        if all(equal(found[n], own[n]) for found, own in zip(_states_of(seen), states, strict=True) for n in places):
            return f"the ranks still have their own {what}" + (
                ": they are no parameters; state_dict() has both" if what == "buffers" else ""
            )
        others = {place: _mean(states, place) for place in places if place not in COUNTERS}
        if all(equal(state[n], mean) for state in _states_of(seen) for n, mean in others.items()):
            return (
                f"the {what} are the mean of the ranks'; rank 0's are to be everybody's: dist.broadcast(tensor, src=0)"
            )
        if any(_all_have(seen, places, state) for state in states[1:]):
            return f"the {what} are another rank's; rank 0 is the one that keeps its model: src=0"
        return f"the {what} are not rank 0's on every rank"

    return judge


_NO_STATE = "the model cannot be read afterwards"

INITIAL = Exercise(("synchronise",), _draw_beginnings, observe_beginning, {
    "parameters": Part("Every rank has rank 0's parameters", _NO_STATE, cases="ranks", judge=_begun(PARAMETERS, "parameters")),
    "buffers": Part("Every rank has rank 0's buffers", _NO_STATE, cases="ranks", judge=_begun(BUFFERS, "buffers")),
}, "on two ranks, fill the model with the rank's number, call it, and print every tensor of state_dict()",
    share=_own_state, **watched(RANKS, lambda case: CollectiveBroker(RANKS)))  # fmt: skip

# --- average_gradients


def _draw_gradients(random):
    state = _drawn_state(random)
    shapes = [tuple(p.shape) for p in network("normed").parameters()]
    counts = [int(n) for n in random.permutation([3, 40, 150]) + random.integers(0, 9, RANKS)]
    same = [int(random.integers(10, 50))] * RANKS
    idle, frozen = int(random.integers(0, RANKS)), int(random.integers(1, len(shapes) - 1))

    def case(about, samples, layers="normed", state=state, shapes=shapes, idle=-1, frozen=-1):
        gradients = [_drawn(random, shapes) for _ in range(RANKS)]
        if idle >= 0:
            gradients[idle] = None
        known = {"layers": layers, "state": state, "gradients": gradients, "samples": samples, "frozen": frozen}
        return known | {"about": f"{RANKS} ranks with {', '.join(map(str, samples))} images{about}"}

    absent = [0 if rank == idle else n for rank, n in enumerate(counts)]
    lying = _drawn_state(random, "convolution")
    convolution = {"layers": "convolution", "state": lying, "shapes": [tuple(tensor.shape) for tensor in lying]}
    return {
        "even": [case("", same)],
        "uneven": [case("", counts)],
        "absent": [case(f"; rank {idle}'s gradients are None", absent, idle=idle)],
        "frozen": [case("; one parameter is frozen", counts, frozen=frozen)],
        "channels": [case(", a convolution whose weight is channels-last in memory", counts, **convolution)],
    }


def _own_gradients(case, rank):
    own = {"gradients": case["gradients"][rank], "samples": case["samples"][rank], "size": RANKS}
    return case | own | {"about": ""}


def observe_average(case, rank, outside, average_gradients):
    model = filled(case["layers"], case["state"])
    parameters = list(model.parameters())
    for place, p in enumerate(parameters):
        if place == case["frozen"]:
            p.requires_grad_(False)
        elif case["gradients"] is not None:
            p.grad = torch.empty_like(p).copy_(case["gradients"][place])
    with collective_group(rank, case["size"], outside):
        average_gradients(model, case["samples"])
    return {"gradients": [None if p.grad is None else p.grad.detach().clone() for p in parameters]}


def _weighted(case, weights, divisor):
    """What gradients would be, with a weight for each rank."""
    known = [(weight, gradients) for weight, gradients in zip(weights, case["gradients"], strict=True) if gradients]
    return [sum(weight * each[place] for weight, each in known) / divisor for place in range(len(known[0][1]))]


def _are(case, seen, wanted):
    rest = [place for place in range(len(wanted)) if place != case["frozen"]]
    return all(equal([one["gradients"][n] for n in rest], [wanted[n] for n in rest], 1e-4) for one in seen["ranks"])


def _averaged(case, seen, right):
    samples = case["samples"]
    total, ones = sum(samples), [1] * RANKS
    if _are(case, seen, _weighted(case, samples, total)):
        gradients = next(each for each in case["gradients"] if each)
        least = (RANKS - samples.count(0)) * sum(
            tensor.nbytes for place, tensor in enumerate(gradients) if place != case["frozen"]
        )
        return "" if seen["passed"] >= least else _UNSEEN
    own = all(
        one["gradients"] == [None] * len(one["gradients"]) if mine is None else equal(one["gradients"], mine)
        for one, mine in zip(seen["ranks"], case["gradients"], strict=True)
    )
    if own:
        return "the ranks still have their own gradients: nothing was summed"
    wrong = {
        "the gradients are the ranks' sum; weigh each by its images, and divide by the images of all ranks": (ones, 1),
        "each rank counts as much as another; weigh each gradient by its rank's images": (ones, RANKS),
        "they are the weighted sum; divide it by the images of all ranks": (samples, 1),
        "the weighted sum is divided by the number of ranks, not by their images": (samples, RANKS),
    }
    for reason, (weights, divisor) in wrong.items():
        if _are(case, seen, _weighted(case, weights, divisor)):
            return reason
    return "the gradients are not the mean: are the pieces cut at the right places, in the order in which they were joined?"


def _edges(case, seen, right):
    gradients = [one["gradients"] for one in seen["ranks"]]
    if case["frozen"] >= 0 and any(each[case["frozen"]] is not None for each in gradients):
        return "a frozen parameter (requires_grad is False) got a gradient: leave it out"
    if not (fault := _averaged(case, seen, right)):
        return ""
    if None in case["gradients"]:
        return "wrong where a rank has no images (samples=0, its gradients None): it counts for nothing"
    if case["layers"] == "convolution":
        return "wrong where a convolution's weight is channels-last in memory: flatten() goes with view_as()"
    return fault


def _one_message(case, seen, right):
    numbers = sum(tensor.numel() for tensor in case["gradients"][0]) + 1
    if seen["kinds"] == ["allreduce"] and not seen["messages"]:
        if max(seen["reduced"]) <= 4 * (numbers + 3):
            return ""
        return "its message is longer than the float32 gradients and the number of images"
    if seen["messages"]:
        return "it sends messages from rank to rank; one dist.all_reduce is enough"
    if seen["kinds"] and set(seen["kinds"]) != {"allreduce"}:
        return "it uses other collectives; one dist.all_reduce is enough"
    return "it calls several collectives: join all gradients and the number of images in one vector, and sum it once"


def _reduced(case, seen):
    return f"{case['about']}: you called {len(seen['kinds'])} collective(s) with {max(seen['reduced'])} bytes in all per rank"


_NO_GRADIENTS = "the gradients cannot be read afterwards"

AVERAGE = Exercise(("average_gradients",), _draw_gradients, observe_average, {
    "even": Part("The mean of equal batches", _NO_GRADIENTS, judge=_averaged),
    "uneven": Part("The mean over all images of uneven batches", _NO_GRADIENTS, judge=_averaged),
    "edges": Part("Ranks without images, frozen parameters, channels-last weights", _NO_GRADIENTS,
                  cases="absent frozen channels", judge=_edges,
                  hint="call it with samples=0 and gradients that are None on one rank; freeze one parameter; call it "
                  "on a convolution after .to(memory_format=torch.channels_last)"),
    "one-message": Part("One all-reduce for everything", _NO_GRADIENTS, cases="even uneven", needs="even",
                        judge=_one_message, hint="count your calls of dist.all_reduce, and the numbers in each"),
}, "give rank 0 three images with gradient 1 and rank 1 one image with gradient 5, and compare with 2", _reduced,
    guarded="absent frozen channels", share=_own_gradients, **watched(RANKS, lambda case: CollectiveBroker(RANKS)))  # fmt: skip

# --- average_statistics


def _draw_statistics(random):
    shared = _drawn_state(random)
    states = [
        [own if n in BUFFERS else same for n, (own, same) in enumerate(zip(_drawn_state(random), shared, strict=True))]
        for _ in range(RANKS)
    ]
    return {"ranks": [{"states": states, "about": f"{RANKS} ranks with equal weights and buffers of their own"}]}


def observe_statistics(case, rank, outside, average_statistics):
    model = filled("normed", case["state"])
    with collective_group(rank, case["size"], outside):
        average_statistics(model)
    return {"state": state_of(model)}


def _averaged_statistics(case, seen, right):
    states, places = case["states"], [n for n in BUFFERS if n not in COUNTERS]
    means = {n: _mean(states, n) for n in places}
    if all(equal(state[n], means[n], 1e-5) for state in _states_of(seen) for n in places):
        return "" if seen["passed"] >= RANKS * sum(states[0][n].nbytes for n in places) else _UNSEEN
    if all(equal(found[n], own[n]) for found, own in zip(_states_of(seen), states, strict=True) for n in places):
        return "the ranks still have their own statistics: model.buffers() are the tensors to average, in place"
    if _all_have(seen, places, states[0]):
        return "the statistics are rank 0's. That is what DDP does; here their mean is asked for"
    if all(equal(state[n], RANKS * means[n], 1e-5) for state in _states_of(seen) for n in places):
        return "the statistics are the ranks' sums; divide by the number of ranks"
    return "the statistics are not the mean of the ranks'"


def _kept(case, seen, right):
    for found, own in zip(_states_of(seen), case["states"], strict=True):
        if any(not equal(found[n], own[n]) for n in COUNTERS):
            return "the counter num_batches_tracked changed: it is a whole number, and stays"
        if any(not equal(found[n], own[n], 1e-6) for n in PARAMETERS):
            return "the parameters changed: they are equal already"
    return ""


STATISTICS = Exercise(("average_statistics",), _draw_statistics, observe_statistics, {
    "mean": Part("The mean of the running statistics", _NO_STATE, cases="ranks", judge=_averaged_statistics),
    "kept": Part("Everything else stays", _NO_STATE, cases="ranks", needs="mean", judge=_kept,
                 hint="print num_batches_tracked and the weights before and after"),
}, "on two ranks, fill running_mean with the rank's number, call it, and print running_mean", share=_own_state,
    **watched(RANKS, lambda case: CollectiveBroker(RANKS)))  # fmt: skip

# --- step_through_server

STEPS = 2


def _draw_steps(random):
    shapes = [tuple(p.shape) for p in network("normed").parameters()]
    gradients = [[_drawn(random, shapes) for _ in range(STEPS)] for _ in range(RANKS)]
    lr, momentum = float(random.uniform(0.05, 0.2)), float(random.uniform(0.5, 0.9))
    case = {"state": _drawn_state(random), "gradients": gradients, "lr": lr, "momentum": momentum}
    return {"ranks": [case | {"about": f"{STEPS} steps on {RANKS} ranks, SGD with momentum on rank 0"}]}


def observe_steps(case, rank, outside, step_through_server):
    model, optimizer, steps, after = filled("normed", case["state"]), None, [], []
    if rank == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=case["momentum"])
        optimizer.register_step_post_hook(lambda *_: steps.append(len(after)))
    with message_group(rank, case["size"], outside):
        for gradients in case["gradients"]:
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.grad = gradient.clone()
            step_through_server(model, optimizer)
            after.append([p.detach().clone() for p in model.parameters()])
    return {"after": after, "steps": steps}


def _stepped(case, gradients_of):
    """The parameters after each step, by `gradients_of(step)`."""
    model = filled("normed", case["state"])
    optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=case["momentum"])
    after = []
    for step in range(STEPS):
        for gradients in gradients_of(step):
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.grad = gradient.clone()
            optimizer.step()
        after.append([p.detach().clone() for p in model.parameters()])
    return after


def _joined(case, step, divisor):
    each = [gradients[step] for gradients in case["gradients"]]
    return [sum(tensors) / divisor for tensors in zip(*each, strict=True)]


def _one_step(case, seen, right):
    found, steps = seen["ranks"][0]["after"], seen["ranks"][0]["steps"]
    mean = _stepped(case, lambda step: [_joined(case, step, RANKS)])
    if equal(found, mean, 1e-4):
        return "" if steps == list(range(STEPS)) else "rank 0's optimiser does not make exactly one step per call"
    if equal(found, _stepped(case, lambda step: [_joined(case, step, 1)]), 1e-4):
        return "rank 0 steps with the sum of the gradients; divide it by the number of ranks"
    if equal(found, _stepped(case, lambda step: [_joined(case, step, RANKS - 1)]), 1e-4):
        return "the sum is divided by the number of the other ranks; rank 0 has a gradient, too"
    if equal(found, _stepped(case, lambda step: [case["gradients"][0][step]]), 1e-4):
        return "rank 0 steps with its own gradient alone"
    if len(steps) > STEPS:
        return "rank 0 steps once per gradient; collect all of them, then make one step with their mean"
    if not steps:
        return "rank 0's optimiser makes no step"
    return "rank 0's parameters are not those after one step with the mean of all ranks' gradients"


def _everywhere(case, seen, right):
    first, *others = (one["after"] for one in seen["ranks"])
    mean = _stepped(case, lambda step: [_joined(case, step, RANKS)])
    if all(equal(after, mean, 1e-4) for after in (first, *others)):
        return ""
    if not equal(first, mean, 1e-4):
        return _one_step(case, seen, right) or "rank 0's parameters are not right"
    return "another rank does not have rank 0's new parameters: receive them, and copy them into the model"


def _star(case, seen, right):
    size = 4 * sum(tensor.numel() for tensor in case["gradients"][0][0])
    whole = [message for message in seen["messages"] if 0 in message[:2]]
    if len(whole) != len(seen["messages"]):
        return "ranks send to each other; each sends to rank 0 alone, and rank 0 to each"
    total = sum(nbytes for *_, nbytes in seen["messages"])
    if seen["taken"] is True and total == STEPS * 2 * (RANKS - 1) * size:
        return ""
    return (
        "rank 0's link does not carry 2(N − 1) times the gradient's bytes per step: one vector up and one down per rank"
    )


def _traffic(case, seen):
    total = sum(nbytes for *_, nbytes in seen["messages"])
    return f"{case['about']}: {len(seen['messages'])} messages with {total:,} bytes in all"


_NO_PARAMETERS = "the parameters cannot be read afterwards"

SYNC_SERVER = Exercise(("step_through_server",), _draw_steps, observe_steps, {
    "one-step": Part("Rank 0 makes one step with the mean", _NO_PARAMETERS, cases="ranks", judge=_one_step),
    "values": Part("Every rank has rank 0's new parameters", _NO_PARAMETERS, cases="ranks", judge=_everywhere),
    "bytes": Part("2(N − 1) times the gradient through rank 0", _NO_PARAMETERS, cases="ranks", needs="values",
                  judge=_star, hint="trace it on 3 ranks (trace_messages), and add up the bytes"),
}, "on two ranks, one weight: gradients 1 and 3, learning rate 1. Both should subtract 2", _traffic,
    share=lambda case, rank: case | {"gradients": case["gradients"][rank], "size": RANKS, "about": ""},
    **watched(RANKS, lambda case: MessageBroker(RANKS)))  # fmt: skip

EXERCISES = {
    "initial": INITIAL, "average": AVERAGE, "statistics": STATISTICS, "sync-server": SYNC_SERVER, "worker": WORKER,
    "server": SERVER, "stale-step": STALE_STEP, "backup": BACKUP,
}  # fmt: skip
