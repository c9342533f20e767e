"""Lab 14: parts of layers, stages of a model, and a plan that says which of them to use."""

from __future__ import annotations

from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab14.pipeline import ORDERS, PIPELINE
from course_lib.exercises.labs.lab14.tensor import BLOCKS, CONJUGATE, LAYERS

__all__ = ["EXERCISES"]

# --- rank_bytes, step_seconds, best_plan


def _draw_plans(random):
    def model():
        return {
            "layers": 12, "heads": 12, "width": 64 * int(random.integers(2, 8)), "context": 32 * int(random.integers(2, 9)),
            "vocabulary": int(random.integers(50, 400)), "batch": 48, "shared": 10.0, "divided": 24.0,
            "seconds_per_token": float(random.uniform(1e-6, 1e-4)),
        }  # fmt: skip

    def link():
        return {"alpha": float(random.uniform(1e-5, 2e-4)), "beta": float(random.uniform(1e-10, 1e-9))}

    def plan(data=1, tensor=1, pipe=1, micro=1, zero=0):
        return {"data": data, "tensor": tensor, "pipe": pipe, "micro": micro, "zero": zero}

    def case(*shape):
        each = plan(*shape)
        words = ", ".join(f"{name} {n}" for name, n in each.items())
        return {"model": model(), "plan": each, "link": link(), "about": words}

    def choice(devices, tight):
        drawn = model()
        if tight:  # some plan fits: the activations of a micro-batch are few beside the weights
            drawn["context"] = 32
        return {"model": drawn, "link": link(), "devices": devices, "tight": tight,
                "about": f"the best plan for {devices} devices{', little memory' if tight else ''}"}  # fmt: skip

    def sharded():  # 11 layers, 11 heads: two devices can only divide the batch, and only with ZeRO it fits
        drawn = choice(2, "states")
        drawn["model"] |= {"layers": 11, "heads": 11, "context": 32}
        return drawn | {"about": "the best plan for 2 devices, memory for ZeRO only"}

    return {
        "one": [case(1, 1, 1, 1)],
        "memory": [case(1, 2), case(2, 1, 3, 8, 1), case(1, 4, 2, 2), case(3, 1, 1, 2, 1)],
        "time": [case(1, 3), case(4, 1), case(1, 1, 4, 6), case(2, 2, 3, 4), case(1, 2, 2, 8)],
        "choice": [choice(4, False), choice(8, True), choice(6, True), sharded()],
        "none": [choice(4, None)],
    }


def observe_plan(case, rank_bytes, step_seconds, best_plan):
    if "plan" in case:
        return {"bytes": rank_bytes(case["model"], case["plan"]), "seconds": step_seconds(case["model"], case["plan"], case["link"])}
    # The memory: three tenths of the weights and states, which no single stage fits; what all states take; everything; or nothing.
    weights = 12 * case["model"]["width"] ** 2 * case["model"]["layers"]
    whole = weights + 2 * case["model"]["vocabulary"] * case["model"]["width"]
    memory = {None: 1.0, True: 16 * weights * 0.3, "states": 16 * whole, False: 1e15}[case["tight"]]
    found = best_plan(case["model"], case["devices"], memory, case["link"])
    if found is None:
        return {"plan": None}
    plan = {name: int(found[name]) for name in ("data", "tensor", "pipe", "micro", "zero")}
    # On one stage without tensor ranks the micro-batches cost no time: of equally fast numbers that fit, each is as good.
    seconds = step_seconds(case["model"], plan, case["link"])
    for micro in range(1, plan["micro"]):
        fewer = plan | {"micro": micro}
        divides = case["model"]["batch"] % (plan["data"] * micro) == 0
        if (
            divides
            and rank_bytes(case["model"], fewer) <= memory
            and abs(step_seconds(case["model"], fewer, case["link"]) - seconds) <= 1e-9 * seconds
        ):
            return {"plan": fewer}
    return {"plan": plan}


PLAN = Exercise(("rank_bytes", "step_seconds", "best_plan"), _draw_plans, observe_plan, {
    "memory": Part("Bytes of a rank", "the bytes are not 16 (with ZeRO 8 + 8 / data) for each of the rank's parameters and 4 for each kept activation",
        cases="one memory", keys="bytes", tolerance=1e-6),
    "one-time": Part("A step on one device", "on one device a step takes batch · context · seconds_per_token",
        cases="one", keys="seconds", tolerance=1e-6),
    "time": Part("Seconds of a step", "the seconds are not (m + p − 1) slots and one all-reduce of the rank's gradients", cases="time",
        keys="seconds", tolerance=1e-6, needs="one-time"),
    "choice": Part("The fastest plan that fits", "it is not the fastest of the plans that fit: data · tensor · pipe = devices, tensor "
        "divides the heads, pipe the layers, data · micro the batch; of equally fast plans the one without ZeRO", keys="plan", needs="memory time"),
    "none": Part("None where nothing fits", "where no plan fits it should return None", keys="plan", needs="choice"),
}, hint="take one layer, width 1, one token, and write both numbers down by hand; then change one of the four sizes",
    show="{about}")  # fmt: skip

EXERCISES = {
    "conjugate": CONJUGATE, "layers": LAYERS, "blocks": BLOCKS, "orders": ORDERS, "pipeline": PIPELINE, "plan": PLAN,
}  # fmt: skip
