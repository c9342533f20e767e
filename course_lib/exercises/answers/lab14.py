"""Lab 14's answers where there is one right value: orders of a pipeline, and the planner."""

from __future__ import annotations

from itertools import product

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _gpipe(stage, stages, micro_batches):
    return [(kind, n) for kind in "FB" for n in range(micro_batches)]


def _one_each(ahead=lambda stage, stages, micro: min(stages - 1 - stage, micro), start="F"):
    """1F1B by what is to do: a forward while fewer than `ahead` + 1 are under way, else a backward."""

    def order(stage, stages, micro_batches):
        most, actions, forwards, backwards = ahead(stage, stages, micro_batches) + 1, [], 0, 0
        while backwards < micro_batches:
            if forwards < micro_batches and forwards - backwards < most:
                actions.append(("F", forwards))
                forwards += 1
            else:
                actions.append(("B", backwards))
                backwards += 1
        return actions

    return order


_right = _one_each()


def _beyond(stage, stages, micro_batches):
    """Counts forwards that there are not."""
    ahead = stages - 1 - stage
    order = [("F", n) for n in range(ahead)]
    order += [action for n in range(ahead, micro_batches) for action in (("F", n), ("B", n - ahead))]
    return order + [("B", n) for n in range(max(0, micro_batches - ahead), micro_batches)]


orders = Answers((_gpipe, _right), {
    "newest first": Mistake("GPipe's backwards begin with the last micro-batch; here they begin with micro-batch 0",
        lambda stage, stages, micro: [("F", n) for n in range(micro)] + [("B", n) for n in reversed(range(micro))], None),
    "backwards first": Mistake("the backwards come before their forwards",
        lambda *given: sorted(_gpipe(*given)), None),
    "GPipe again": Mistake("1F1B is GPipe's order: a backward starts as soon as its micro-batch is back", None, _gpipe),
    "one after another": Mistake("each micro-batch goes forward and backward before the next one: the other stages wait meanwhile",
        None, _one_each(lambda *given: 0)),
    "one too many": Mistake("there is one forward too many before the first backward: as many as there are stages *after* this one, "
        "then forward and backward in turn", None, _one_each(lambda stage, stages, micro: stages - stage)),
    "first for last": Mistake("the stages are turned round: the first stage has the most forwards before its first backward, the last "
        "one none", None, _one_each(lambda stage, stages, micro: stage)),
    "stages for all": Mistake("every stage runs as many forwards ahead as the first one", None,
        _one_each(lambda stage, stages, micro: stages - 1)),
    "more than there are": Mistake("with fewer micro-batches than stages it has forwards of micro-batches that there are not: "
        "min(stages − 1 − stage, micro_batches)", None, _beyond),
})  # fmt: skip


def _ring(nbytes, ranks, link):
    return 2 * (ranks - 1) * (link["alpha"] + link["beta"] * nbytes / ranks)


def _parameters(model, plan, split=("tensor", "pipe"), both=2):
    layers = 12 * model["width"] ** 2 * model["layers"]
    for name in split:
        layers /= plan[name]
    return layers + (both if plan["pipe"] == 1 else 1) * model["vocabulary"] * model["width"]


def _bytes(per_parameter=16, split=("tensor", "pipe"), both=2, kept=lambda plan: min(plan["pipe"], plan["micro"]),
           parts=lambda plan: plan["data"] * plan["micro"], shared=lambda model, plan: model["shared"], sharded=0.5):  # fmt: skip
    def rank_bytes(model, plan):
        tokens = model["batch"] / parts(plan) * model["context"]
        numbers = tokens * model["width"] * (shared(model, plan) + model["divided"] / plan["tensor"])
        activations = numbers * model["layers"] / plan["pipe"] * kept(plan)
        owners = plan["data"] if plan["zero"] else 1
        per_rank = per_parameter * (1 - sharded + sharded / owners)
        return per_rank * _parameters(model, plan, split, both) + 4 * activations

    return rank_bytes


def _seconds(slots=lambda plan: plan["micro"] + plan["pipe"] - 1, reduces=4, by_stage=True, messages=2,
             data=lambda plan: plan["data"], gradients=4, chunk=lambda plan: plan["data"] * plan["micro"]):  # fmt: skip
    def step_seconds(model, plan, link):
        tokens = model["batch"] / chunk(plan) * model["context"]
        nbytes = 4 * tokens * model["width"]
        layers = model["layers"] / (plan["pipe"] if by_stage else 1)
        slot = tokens * model["seconds_per_token"] / plan["tensor"] / plan["pipe"]
        slot += reduces * layers * _ring(nbytes, plan["tensor"], link)
        slot += messages * (link["alpha"] + link["beta"] * nbytes) * (plan["pipe"] > 1)
        return slots(plan) * slot + _ring(gradients * _parameters(model, plan), data(plan), link)

    return step_seconds


def _best(fits=True, heads=True, layers=True, batch=True, key=None, nothing=None, zeros=(0, 1)):
    def best_plan(model, devices, memory, link):
        counts = range(1, devices + 1)
        plans = [
            dict(zip(("data", "tensor", "pipe", "micro", "zero"), each, strict=True))
            for each in product(counts, counts, counts, range(1, model["batch"] + 1), zeros)
        ]
        plans = [
            each for each in plans
            if each["data"] * each["tensor"] * each["pipe"] == devices
            and (model["heads"] % each["tensor"] == 0 or not heads)
            and (model["layers"] % each["pipe"] == 0 or not layers)
            and (model["batch"] % (each["data"] * each["micro"]) == 0 or not batch)
        ]  # fmt: skip
        fitting = [each for each in plans if _bytes()(model, each) <= memory or not fits]
        if not fitting:
            return nothing and min(plans, key=lambda each: _bytes()(model, each))
        return min(fitting, key=lambda each: (key or _seconds())(model, each, link))

    return best_plan


plan = Answers((_bytes(), _seconds(), _best()), {
    "weights only": Mistake("4 bytes count for each parameter; AdamW keeps weight, gradient and two averages, 16 bytes",
        _bytes(per_parameter=4), None, None),
    "not by tensor": Mistake("the layers' parameters are not divided by the tensor ranks", _bytes(split=("pipe",)), None, None),
    "not by stage": Mistake("the layers' parameters are not divided among the stages", _bytes(split=("tensor",)), None, None),
    "one matrix": Mistake("on one stage there are both matrices of the vocabulary, the embedding and the head",
        _bytes(both=1), None, None),
    "all kept": Mistake("all micro-batches' activations count; 1F1B keeps min(pipe, micro) of them",
        _bytes(kept=lambda plan: plan["micro"]), None, None),
    "one kept": Mistake("one micro-batch's activations count; 1F1B keeps min(pipe, micro) of them",
        _bytes(kept=lambda plan: 1), None, None),
    "all divided": Mistake("all activations are divided by the tensor ranks; the `shared` ones are whole on each rank",
        _bytes(shared=lambda model, plan: model["shared"] / plan["tensor"]), None, None),
    "whole batch": Mistake("the activations are those of the whole batch; a rank has batch / (data · micro) sequences at a time",
        _bytes(parts=lambda plan: 1), None, None),
    "ZeRO forgotten": Mistake("with ZeRO the data ranks divide AdamW's two averages, 8 of the 16 bytes", _bytes(sharded=0), None, None),
    "ZeRO for all": Mistake("ZeRO-1 divides the two averages only, 8 of the 16 bytes; each rank keeps weights and gradients",
        _bytes(sharded=1), None, None),
    "no bubble": Mistake("the bubble is missing: a step has m + p − 1 slots", None, _seconds(lambda plan: plan["micro"]), None),
    "p slots too many": Mistake("a step has m + p − 1 slots, not m + p", None, _seconds(lambda plan: plan["micro"] + plan["pipe"] * (plan["pipe"] > 1)), None),
    "two all-reduces": Mistake("a layer has four all-reduces: MLP and attention, forward and backward", None, _seconds(reduces=2), None),
    "every layer": Mistake("a stage has layers / pipe layers, whose all-reduces count", None, _seconds(by_stage=False), None),
    "one way": Mistake("in each slot a micro-batch goes forward and another one back: two messages", None, _seconds(messages=1), None),
    "no gradients": Mistake("the all-reduce of the gradients among the data ranks is missing", None, _seconds(data=lambda plan: 1), None),
    "states too": Mistake("16 bytes of each parameter are all-reduced; only the gradients are, 4 bytes", None, _seconds(gradients=16), None),
    "memory forgotten": Mistake("the plan does not fit into the memory", None, None, _best(fits=False, nothing=True)),
    "something at least": Mistake("where nothing fits it returns a plan all the same; it should return None", None, None, _best(nothing=True)),
    "never ZeRO": Mistake("no plan has ZeRO; it is one of the choices", None, None, _best(zeros=(0,))),
    "always ZeRO": Mistake("each plan has ZeRO; of equally fast plans the one without is asked for", None, None, _best(zeros=(1, 0))),
    "least memory": Mistake("it is the plan with the least memory; the fastest of those that fit is asked for", None, None,
        _best(key=lambda model, each, link: _bytes()(model, each))),
})  # fmt: skip

ANSWERS = {
    "conjugate": Answers(), "layers": Answers(), "blocks": Answers(), "orders": orders, "pipeline": Answers(), "plan": plan,
}  # fmt: skip
