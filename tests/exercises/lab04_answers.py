"""Lab 04: other right answers, and what each known mistake loses."""

# Of the mistakes in `course_lib.exercises.answers.lab04`: parts that are lost → their names.
LOSES = {
    "momentum": {
        "length distance": "no pair, limit, t - 1, t + 1, an average, no rate, turned, first gradient",
        "distance": "t times the last, t full steps, last step alone, no momentum, one missing, one too many",
    },
    "warmup": {
        "iteration epoch without": "nothing",
        "iteration": "a step ahead, always per epoch",
        "epoch": "an epoch ahead, always per iteration",
        "iteration epoch": "no end, falls back, from zero, geometric, in steps",
        "without": "divides by zero, none starts low",
    },
    "range-test": {
        "rates": "no rates, linear, n ratios, n + 1, turned, logs",
        "stop choice": "no pair, against the first, nan passes",
        "stop": "the place before, no stop",
        "choice": "after the stop, no tenth, a tenth of the loss",
    },
    "novograd": {
        "first later decay options gradients": "new tensors",
        "first later decay options": "element-wise, one norm, mean, zero start, bias of m, no root, no division, upwards, always averaging",
        "later decay options": "bias of v, old v, v not kept, norm, late division, forgets, betas turned",
        "later": "state elsewhere",
        "decay": "no decay, decay in the norm, decay twice, decay of the weights, decay's sign",
        "options": "eps in the root, no eps, no averaging, averaged later, decay not averaged",
    },
    "curve": {
        "name": "no name, no ending, another order",
        "rows again": "no file, no header, no first row, not rounded, per cent, an epoch less, no last line end",
        "again": "appended",
    },
}


def momentum(value):
    return f"def momentum_step(lr, m, t):\n    length = lr * (1 - m**t) / (1 - m)\n    return {value}"


def warmup(whole):
    return f"""
def warmup_factor(step, n, epochs, start, per="iteration"):
    if epochs == 0: return 1
    if per == "iteration": return start + (1 - start) * min(1, step / {whole}(epochs * n))
    return start + (1 - start) * min(1, step // n / epochs)
"""


def range_test(rates, limit=4, chosen="rates[losses.index(min(losses[:stop]))] / 10"):
    return f"""
import numpy as np

def range_test_rates(low, high, n): return {rates}

def read_range_test(rates, losses):
    stop = next((i for i in range(1, len(losses)) if not losses[i] <= min({limit} * min(losses[:i]), 1e300)), len(losses))
    return stop, {chosen}
"""


def novograd(divided="div", move="w -= lr * kept['m']"):
    return f"""
def novograd_step(weights, gradients, state, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False):
    for i, (w, g) in enumerate(zip(weights, gradients)):
        kept = state.setdefault(i, {{}})
        kept["t"] = kept.get("t", 0) + 1
        norm = float(torch.linalg.vector_norm(g)) ** 2
        kept["v"] = betas[1] * kept.get("v", norm) + (1 - betas[1]) * norm
        step = g.{divided}(kept["v"] ** 0.5 + eps) + weight_decay * w
        kept["m"] = betas[0] * kept.get("m", 0) + step * (1 - betas[0] if grad_averaging else 1)
        {move}
"""


def curve(lr="{lr}", seconds="{t:.1f}"):
    return f"""
def curve_name(ranks, bs, lr, m, w): return f"{{ranks}}ranks-{{bs}}bs-{lr}lr-{{m}}m-{{w}}w.csv"

def write_curve(path, times, accuracies):
    rows = [f"{seconds},{{a:.4f}}\\n" for t, a in zip([0, *times], [0, *accuracies])]
    path.write_text("time,val_accuracy\\n" + "".join(rows))
"""


RIGHT = {
    "momentum": [momentum("[torch.tensor(length), lr / (1 - m) * (t - m * (1 - m**t) / (1 - m))]")],
    "warmup": [warmup("round"), warmup("int")],
    "range-test": [
        range_test("np.geomspace(low, high, n)", chosen="min(zip(losses[:stop], rates))[1] * 0.1"),
        range_test("torch.logspace(math.log10(low), math.log10(high), n)"),
    ],
    "novograd": [novograd()],
    "curve": [curve()],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "length alone": ("momentum", momentum("length"), "length distance", "return two numbers"),
    "text": ("momentum", momentum("'a', 1"), "length distance", "it returned a str"),
    "half": ("momentum", momentum("length / 2, 1"), "length distance", "write out v₁"),
    "too few iterations": ("warmup", warmup("0.5 * "), "iteration", "past the end"),
    "first ratio alone": ("range-test", range_test("[low, low * (high / low) ** (1 / (n - 1)), *[high] * (n - 2)]"), "rates", "geometric sequence"),
    "one rate": ("range-test", range_test("low"), "rates", "should return a list"),
    "a limit of 1.05": ("range-test", range_test("np.geomspace(low, high, n)", 1.05), "stop", "wrong place"),
    "no choice": ("range-test", range_test("np.geomspace(low, high, n)", chosen="None"), "choice", "is there a return?"),
    "bias of both": ("novograd", novograd(move="w -= lr * kept['m'] / (1 - betas[0] ** kept['t'])"), "first later decay options", "m's bias"),
    "gradients divided": ("novograd", novograd("div_"), "gradients", "in place"),
    "weights of NaN": ("novograd", novograd(move="w.fill_(math.nan)"), "first later decay options gradients", "not the paper's"),
    "into the list": ("novograd", novograd(move="weights[i] = w - lr * kept['m']"), "first later decay options gradients", "in place"),
    "digits of the rate": ("curve", curve("{lr:.3f}"), "name", "as Python prints them"),
    "cut off": ("curve", curve(seconds="{int(10 * t) / 10}"), "rows again", "rounding"),
    "whole seconds": ("curve", curve(seconds="{t:.0f}"), "rows again", "rounding"),
}  # fmt: skip

SAYS = {}
