"""Lab 04: other right answers, and what each known mistake loses."""

_NOVOGRAD = "first later saved frozen decay options"

# Of the mistakes in `course_lib.exercises.answers.lab04`: parts that are lost → their names.
LOSES = {
    "momentum": {
        "heavy nesterov": "new tensor, uphill, no learning rate, no momentum, an average, of the first, the gradient itself",
        "heavy": "always nesterov",
        "nesterov": "never nesterov, half nesterov, twice the gradient",
    },
    "warmup": {
        "iteration epoch without": "nothing",
        "iteration": "a step ahead, always per epoch, whole epochs, a step short",
        "epoch": "an epoch ahead, always per iteration",
        "iteration epoch": "no end, falls back, from zero, waits, geometric, in steps",
        "without": "divides by zero, none starts low",
    },
    "range-test": {
        "rates": "no rates, linear, n ratios, n + 1, turned, logs",
        "losses steps choice": "no pair, against the first, nan passes, no stop, one epoch",
        "losses steps": "without the last",
        "steps": "first group, never set, gradients pile up, late",
        "choice": "no tenth, a tenth of the loss, the last",
    },
    "relative-steps": {
        "weights biases left other": "nothing, no copy, no step, new norm, not relative, difference of norms, entry by entry, "
        "no root, gradient, one number",
        "biases": "biases too",
        "left": "gradients pile up",
        "other": "by hand",
    },
    "adam": {
        "first later eps adamw lamb": "nothing, no bias of m, no bias of v, no bias, t from 0, t from 2, a norm, sums, no root",
        "later eps adamw lamb": "t stays, betas turned, nothing kept, corrected kept",
        "eps": "eps in the root, no eps",
        "adamw lamb": "no decay, decay's sign, new weights, defaults",
        "adamw": "decay at the full rate, decay in the gradient",
        "lamb": "no ratio, ratio upside down, weights' norm alone, decay outside, direction twice",
    },
    "novograd": {
        f"{_NOVOGRAD} gradients": "new tensors",
        _NOVOGRAD: "element-wise, one norm, mean, zero start, bias of m, no root, no division, upwards, always averaging, first weight alone",
        "later saved frozen decay options": "bias of v, old v, v not kept, norm, late division, forgets, betas turned",
        "saved": "state elsewhere",
        "frozen": "defaults",
        "decay": "no decay, decay in the norm, decay twice, decay of the weights, decay's sign, decay divided, decay after the step",
        "options": "eps in the root, no eps, no averaging, averaged later, decay not averaged",
    },
    "muon": {
        "wide tall kept": "nothing, not normalised, largest entry, spectral, one step less, one step more, cubic, "
        "element-wise, sign, exact, always five, normalised again",
        "tall": "not back",
    },
}


def sgd(v="m * state['v'] + g if 'v' in state else g", move="w.add_(v + 0 if not nesterov else g + m * v, alpha=-lr)"):
    return f"""
def sgd_step(w, g, state, lr, momentum=0.0, nesterov=False):
    m = momentum
    v = state["v"] = {v}
    {move}
"""


def warmup(whole):
    return f"""
def warmup_factor(step, n, epochs, start, per="iteration"):
    if epochs == 0: return 1
    if per == "iteration": return start + (1 - start) * min(1, step / {whole}(epochs * n))
    return start + (1 - start) * min(1, step // n / epochs)
"""


def range_test(rates="np.geomspace(low, high, n)", limit=4, chosen="rates[losses.index(min(losses[:n]))] / 10"):
    return f"""
import itertools
import numpy as np

def learning_rates(low, high, n): return {rates}

def lr_range_test(model, optimizer, batches, loss_fn, learning_rates):
    rates, losses, n = learning_rates, [], None
    for rate, (images, labels) in zip(rates, itertools.cycle(batches)):
        for group in optimizer.param_groups: group.update(lr=rate)
        model.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if not losses[-1] <= min({limit} * min(losses), 1e300):
            n = len(losses) - 1
            break
    return losses, {chosen}
"""


LAST_UPDATE = """
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
"""
NO_LAST_UPDATE = """
        losses.append(float(loss.detach()))
        if losses[-1] <= min(4 * min(losses), 1e300):
            loss.backward()
            optimizer.step()
"""


def relative_steps(times="", old="{n: p.clone() for n, p in model.state_dict().items() if p.ndim > 1}"):
    return f"""
def relative_steps(model, optimizer, images, labels, loss_fn):
    old = {old}
    model.zero_grad()
    loss_fn(model(images), labels).backward()
    optimizer.step()
    now = model.state_dict()
    return [{times}float(((now[n] - p) ** 2).sum() / (p**2).sum()) ** 0.5 for n, p in old.items()]
"""


def adam(direction="m / (v**0.5 + eps)", scale="lr * w.norm() / u.norm()"):
    return f"""
def adam_direction(g, state, betas=(0.9, 0.999), eps=1e-8):
    state.setdefault("all", []).append(g)
    n, (b, c) = len(state["all"]), betas
    m = sum(b ** (n - 1 - i) * each for i, each in enumerate(state["all"])) * (1 - b) / (1 - b**n)
    v = sum(c ** (n - 1 - i) * each.square() for i, each in enumerate(state["all"])) * (1 - c) / (1 - c**n)
    return {direction}

def adamw_step(w, g, state, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    u = adam_direction(g, state, betas, eps)
    w.mul_(1 - lr * weight_decay).add_(u, alpha=-lr)

def lamb_step(w, g, state, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
    u = adam_direction(g, state, betas, eps) + weight_decay * w
    w -= {scale} * u
"""


def novograd(divided="div", move="w -= group['lr'] * kept['m']", none="if g is None: continue"):
    return f"""
class HandmadeNovoGrad(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=True):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, grad_averaging=grad_averaging)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            betas = group["betas"]
            for w in group["params"]:
                g = w.grad
                {none}
                kept = self.state[w]
                kept["t"] = kept.get("t", 0) + 1
                norm = float(torch.linalg.vector_norm(g)) ** 2
                kept["v"] = betas[1] * kept.get("v", norm) + (1 - betas[1]) * norm
                step = g.{divided}(kept["v"] ** 0.5 + group["eps"]) + group["weight_decay"] * w
                kept["m"] = betas[0] * kept.get("m", 0) + step * (1 - betas[0] if group["grad_averaging"] else 1)
                {move}
"""


def muon(start="matrix / matrix.square().sum().sqrt()", c=2.0315):
    return f"""
def orthogonalise(matrix, steps=5):
    x = {start}
    tall = x.shape[0] > x.shape[1]
    if tall: x = x.T
    for _ in range(steps):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + {c} * x @ x.T @ x @ x.T @ x
    return x.T if tall else x
"""


RIGHT = {
    "momentum": [sgd()],
    "warmup": [warmup("round"), warmup("int")],
    "range-test": [
        range_test(),
        range_test().replace(LAST_UPDATE, NO_LAST_UPDATE),
        range_test("torch.logspace(math.log10(low), math.log10(high), n)"),
    ],
    "relative-steps": [relative_steps()],
    "adam": [adam()],
    "novograd": [novograd()],
    "muon": [muon()],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "g is changed": ("momentum", sgd("m * state['v'] + g if 'v' in state else g.clone()", "w.sub_(lr * (g.add_(v, alpha=m) if nesterov else v))"), "nesterov", "steps are wrong"),
    "the first g is changed": ("momentum", sgd("state['v'].mul_(m).add_(g) if 'v' in state else g"), "heavy nesterov", "steps are wrong"),
    "one velocity for all": ("momentum", "kept = {}\n" + sgd().replace("state", "kept").replace("g, kept", "g, state"), "heavy nesterov", "a v for each tensor"),
    "a new weight": ("momentum", sgd(move="w = w - lr * v"), "heavy nesterov", "did not move"),
    "too few iterations": ("warmup", warmup("0.5 * "), "iteration", "finished share"),
    "first ratio alone": ("range-test", range_test("[low, low * (high / low) ** (1 / (n - 1)), *[high] * (n - 2)]"), "rates", "geometric sequence"),
    "one rate": ("range-test", range_test("low"), "rates", "should return a list"),
    "no choice": ("range-test", range_test(chosen="None"), "choice", "is there a return?"),
    "in percent": ("relative-steps", relative_steps("100 * "), "weights biases left other", "what it was before"),
    "last layer alone": ("relative-steps", relative_steps(old="{n: p.clone() for n, p in list(model.state_dict().items())[-2:] if p.ndim > 1}"), "biases", "without biases"),
    "a half": ("adam", adam("m / (v**0.5 + eps) / 2"), "first later eps adamw lamb", "nearly ±1"),
    "unit steps": ("adam", adam(scale="lr / u.norm()"), "lamb", "‖w‖/‖u‖"),
    "bias of both": ("novograd", novograd(move="w -= group['lr'] * kept['m'] / (1 - betas[0] ** kept['t'])"), "first later saved frozen decay options", "m's bias"),
    "gradients divided": ("novograd", novograd("div_"), "gradients", "in place"),
    "weights of NaN": ("novograd", novograd(move="w.fill_(math.nan)"), "first later saved frozen decay options gradients", "not the paper's"),
    "no gradient is zero": ("novograd", novograd(none="g = torch.zeros_like(w) if g is None else g").replace("/ (", "/ ("), "frozen", "without a gradient"),
    "half the norm": ("muon", muon("matrix / matrix.norm() / 2"), "wide tall kept", "Newton–Schulz"),
    "in place": ("muon", muon("matrix.div_(matrix.norm())"), "kept", "in place"),
}  # fmt: skip

SAYS = {}
