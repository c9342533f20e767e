"""Lab 14: what a stage of a pipeline computes, in which order, and what it sends its neighbours."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.broker_process_group import message_group
from course_lib.exercises.ranks.message_broker import MessageBroker
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["ORDERS", "PIPELINE"]

STAGES = 3

# --- gpipe, one_forward_one_backward


def _draw_orders(random):
    def case(stages, micro_batches):
        return {"stages": stages, "micro": micro_batches, "about": f"{stages} stages, {micro_batches} micro-batches"}

    stages = int(random.integers(3, 6))
    many = [case(stages, stages + int(random.integers(2, 5))), case(2, int(random.integers(4, 9)))]
    return {"many": many, "few": [case(stages, int(random.integers(1, stages - 1))), case(1, 3), case(4, 4)]}


def observe_orders(case, gpipe, one_forward_one_backward):
    found = {}
    for name, order in (("gpipe", gpipe), ("1f1b", one_forward_one_backward)):
        found[name] = [
            [tuple(action) for action in order(stage, case["stages"], case["micro"])] for stage in range(case["stages"])
        ]
    return found


ORDERS = Exercise(("gpipe", "one_forward_one_backward"), _draw_orders, observe_orders, {
    "gpipe": Part("The order of GPipe: all forwards, then all backwards", "GPipe's order is not all forwards, then all backwards, both from "
        "micro-batch 0 on", cases="many few", keys="gpipe"),
    "1f1b": Part("1F1B", "1F1B's order is not right: as many forwards as there are stages after this one, then forward and "
        "backward in turn, then the remaining backwards", cases="many", keys="1f1b"),
    "few": Part("1F1B with few micro-batches, or one stage", "1F1B's order is not right where there are fewer micro-batches than "
        "stages, or one stage: there are never more forwards than micro-batches", keys="1f1b", needs="1f1b"),
}, hint="write down the orders of two stages with three micro-batches: F0 F1 B0 F2 B1 B2 and F0 B0 F1 B1 F2 B2",
    show="{about}")  # fmt: skip

# --- run_schedule


def order_of(kind, stage, stages, micro):
    """The schedule of a case, written as a merge: no answer's form."""
    if kind == "gpipe":
        return [("F", n) for n in range(micro)] + [("B", n) for n in range(micro)]
    slots = [(2 * n + stage, ("F", n)) for n in range(micro)]
    slots += [(2 * n + 2 * stages - 1 - stage, ("B", n)) for n in range(micro)]
    return [action for _, action in sorted(slots)]


class Watched(nn.Module):
    """A stage that writes down its forwards and backwards, and how many graphs are alive."""

    def __init__(self, weights, bias):
        super().__init__()
        self.weights, self.bias, self.events = nn.Parameter(weights.clone()), nn.Parameter(bias.clone()), []

    def forward(self, x):
        self.events.append("F")
        out = torch.tanh(x.to(self.weights.dtype) @ self.weights) + self.bias
        if out.requires_grad:
            out.register_hook(lambda gradient: self.events.append("B"))
        return out


def mean_square(output, target):
    return ((output - target) ** 2).mean()


def _draw_pipelines(random):
    def case(schedule, stages, micro, buffered=True):
        width, size = int(random.integers(3, 6)), int(random.integers(2, 4))

        def gauss(*shape):
            return torch.from_numpy(random.normal(0, 1, shape))

        waits = "" if buffered else ", where a send waits for its receiver"
        return {
            "schedule": schedule, "stages": stages, "micro": micro, "shape": (size, width), "buffered": buffered,
            "weights": [(gauss(width, width), gauss(width)) for _ in range(stages)],
            "inputs": [torch.from_numpy(random.integers(-3, 4, (size, width))) for _ in range(micro)],  # as codes of letters
            "targets": [gauss(size, width) for _ in range(micro)],
            "about": f"{schedule}, {stages} stages, {micro} micro-batches{waits}",
        }  # fmt: skip

    return {
        "gpipe": [case("gpipe", 2, int(random.integers(2, 4))), case("gpipe", 3, 4)],
        "1f1b": [case("1f1b", 3, int(random.integers(4, 6)))],
        "blocking": [case("1f1b", 3, 4, False), case("1f1b", 2, 3, False)],
    }


def _of_stage(case, rank):
    last = case["stages"] - 1
    nothing = [torch.full(case["shape"], float("nan"), dtype=torch.float64)] * case["micro"]
    return case | {
        "weights": case["weights"][rank],
        "inputs": case["inputs"] if rank == 0 else nothing,
        "targets": case["targets"] if rank == last else nothing,
    }


def observe_pipeline(case, rank, outside, run_schedule):
    stage = Watched(*case["weights"])
    for parameter in stage.parameters():
        parameter.grad = torch.ones_like(parameter)  # of an earlier batch: the gradients grow
    order = order_of(case["schedule"], rank, case["stages"], case["micro"])
    with message_group(rank, case["stages"], outside):
        loss = run_schedule(
            stage, list(order), [x.clone() for x in case["inputs"]], [y.clone() for y in case["targets"]], mean_square
        )
    return {
        "loss": loss, "events": "".join(stage.events),
        **{name: None if p.grad is None else p.grad - 1 for name, p in (("weights", stage.weights), ("bias", stage.bias))},
    }  # fmt: skip


def _sequential(case):
    weights = [tuple(each.clone().requires_grad_() for each in pair) for pair in case["weights"]]
    x = torch.cat(case["inputs"]).double()
    for matrix, bias in weights:
        x = torch.tanh(x @ matrix) + bias
    loss = mean_square(x, torch.cat(case["targets"]))
    loss.backward()
    return loss.item(), weights


def _gradients(case, seen, right):
    _, weights = _sequential(case)

    def are(times):
        return all(
            equal(one[name], times * weights[rank][place].grad, 1e-6)
            for rank, one in enumerate(seen["ranks"]) for place, name in enumerate(("weights", "bias"))
        )  # fmt: skip

    if are(1):
        return ""
    if are(case["micro"]):
        return "the gradients are as many times too large as there are micro-batches: divide each loss by their number"
    if any(one["weights"] is None or not one["weights"].any() for one in seen["ranks"]):
        return "a stage has no gradients: has its output gone backward with the gradient that the next stage sent?"
    return "the gradients are not those of the whole model on the whole batch"


def _loss(case, seen, right):
    loss, _ = _sequential(case)
    found = finite(seen["ranks"][-1]["loss"])
    if equal(found, loss, 1e-6):
        others = all(equal(one["loss"], 0.0) for one in seen["ranks"][:-1])
        return "" if others else "the stages before the last do not return 0.0"
    if equal(found, loss * case["micro"], 1e-6):
        return "the loss is the sum of the micro-batches' losses; return their mean"
    return "the last stage does not return the batch's mean loss"


def _in_order(case, seen, right):
    for rank, one in enumerate(seen["ranks"]):
        asked = "".join(kind for kind, _ in order_of(case["schedule"], rank, case["stages"], case["micro"]))
        if one["events"] != asked:
            if one["events"] == "FB" * case["micro"]:
                return "each micro-batch goes forward and at once backward: only one stage works at a time. Follow `order`"
            return "a stage's forwards and backwards are not in the order of `order`"
    return ""


def _few_messages(case, seen, right):
    nbytes = 8 * case["shape"][0] * case["shape"][1]
    wanted = []
    for stage in range(case["stages"] - 1):
        wanted += [(stage, stage + 1, nbytes), (stage + 1, stage, nbytes)] * case["micro"]
    if sorted(tuple(each) for each in seen["messages"]) == sorted(wanted):
        return ""
    return (
        "the messages are not one activation to the next stage and one gradient back for each micro-batch, of the micro-batch's size"
    )


def _counted(case, seen):
    return f"{case['about']}: your ranks sent {len(seen['messages'])} messages"


_NOTHING = "it should return the loss, and leave gradients in the stage's parameters"
_part = partial(Part, wrong=_NOTHING)

PIPELINE = Exercise(("run_schedule",), _draw_pipelines, observe_pipeline, {
    "gradients": _part("The gradients of the whole batch", cases="gpipe", judge=_gradients),
    "loss": _part("The batch's mean loss, on the last stage", cases="gpipe", judge=_loss),
    "order": _part("The order that is given", cases="gpipe 1f1b", needs="gradients", judge=_in_order),
    "messages": _part("One activation and one gradient per micro-batch", cases="gpipe", needs="gradients", judge=_few_messages),
    "deadlock": Part("1F1B ends where sends wait for their receivers", "deadlock: in 1F1B a stage sends forward while the next one "
        "sends back, and both wait: isend, and wait for the request later", cases="blocking", needs="gradients", judge=_gradients),
}, "two stages, one micro-batch, one number: print what each rank sends and receives",
    _counted, guarded="1f1b blocking", share=_of_stage,
    **watched(STAGES, lambda case: MessageBroker(case["stages"], case["buffered"]), lambda case: case["stages"]))  # fmt: skip
