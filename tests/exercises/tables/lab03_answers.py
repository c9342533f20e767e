"""Lab 03: other right answers, and what each known mistake loses."""

from answer_sources import Notebook

OURS = Notebook("03_batch_size_scaling")

# Of the mistakes in `course_lib.exercises.answers.lab03`: parts that are lost → their names.
LOSES = {
    "training": {
        "updates losses passes schedule": "gradients kept, evaluation mode, one step more, second forward pass",
        "watch": "watch not called, watch goes on, watch before the update, latest loss watched",
        "passes": "one pass, no set_epoch, epochs from 1, always epoch 0", "schedule": "schedule per pass, schedule never",
        "losses": "loss after", "losses watch": "last loss",
        "linear sqrt fraction": "no reference, upside down", "fraction": "whole factors, never below",
        "linear": "linear by the root", "sqrt": "sqrt as linear", "none": "none scales",
    },
    "comparison": {
        "mean deviation error": "two numbers", "mean": "median, largest", "deviation": "variance, range", "error": "error over n",
        "deviation decision identical": "n", "error decision identical": "no root of n",
        "decision identical": "signed, fewer degrees, pooled degrees, twice, sum, one error, deviations, not t, fixed, never, always, turned",
    },
    "noise-scale": {
        "signal noise scale lost": "one number", "signal noise scale": "only the first",
        "signal lost": "biased signal, swapped", "signal": "root", "noise": "turned sign, no denominator",
        "scale": "mean of quotients, turned", "lost": "negative scale, zero",
    },
    "critical-batch": {
        "target stopped": "one loss, short window, mean of all", "target": "index, never is the last step", "stopped": "goes on",
        "fastest": "slowest, nan kept, as they came, no learning rate, steps for images, lowest rate",
        "fit noisy critical": "two numbers", "fit noisy": "swapped", "fit noisy critical refused": "smallest measured",
        "noisy": "absolute errors, two points", "critical": "turned, middle batch", "refused": "not refused",
        "prediction": "known steps for the fewest, halves for ever, rounded, upside down, images",
    },
    "search": {
        "choice diverged edge": "one number, worst, accuracy", "choice": "best run, median", "diverged edge": "nan left out",
        "diverged": "nan compared",
        "edge": "edge of the survivors, edge as entered, upper edge alone, never, always, turned",
    },
}  # fmt: skip

_TRAIN = """
def train_steps(model, batches, steps, optimizer, schedule, loss_fn, device, watch=None):
    def endless():
        for epoch in itertools.count():
            batches.set_epoch(epoch)
            yield from batches

    import itertools
    model.train()
    losses = torch.zeros(steps)
    for step, (images, labels) in enumerate(itertools.islice(endless(), steps)):
        {clear}
        loss = loss_fn(model(images), labels)
        loss.backward()
        losses[step] = loss.detach()
        optimizer.step()
        {schedule}
        if watch and watch(list(losses[:step + 1])):
            return losses[:step + 1]
    return {losses}

def scaled_lr(base_lr, batch, reference, rule):
    k = torch.tensor({factor}, dtype=torch.float64)
    return {linear} * base_lr if rule == "linear" else base_lr * k.sqrt() if rule == "sqrt" else base_lr
"""


def _train(
    clear="optimizer.zero_grad()", schedule="schedule and schedule.step()", losses="losses", factor="batch / reference",
    linear="k",
):  # fmt: skip
    return _TRAIN.format(clear=clear, schedule=schedule, losses=losses, factor=factor, linear=linear)


_RUNS = """
def summarise(values):
    return [np.mean(values), np.std(values, ddof=1), np.std(values, ddof=1) / {}]

def distinguishable(first, second):
    (a, _, e), (b, _, f) = summarise(first), summarise(second)
    v, w = e**2 / max(e**2 + f**2, 1e-300), f**2 / max(e**2 + f**2, 1e-300)
    if e == 0 and f == 0:
        return a != b
    limit = t_limit(1 / (v**2 / (len(first) - 1) + w**2 / (len(second) - 1))) * np.hypot(e, f)
    return {}
"""
_NORMS = """
def noise_scale(b, B, small_norms, big_norms):
    pairs = [((B * t - b * s) / (B - b), (s - t) / (1 / b - 1 / B)) for s, t in zip(small_norms, big_norms)]
    G2, trace = np.mean(pairs, axis=0)
    return {}
"""
_CURVE = """
def steps_to_loss(train, target, window):
    ends = []
    def watch(losses):
        if len(losses) >= window and np.mean([float(loss) for loss in losses[-window:]]) <= target:
            ends.append(len(losses))
            return True
    train(watch)
    return ends[0] if ends else float("nan")

def fastest(trials):
    table = pd.DataFrame(trials, columns=["batch", "lr", "steps"]).dropna()
    best = table.loc[table.groupby("batch").steps.idxmin()]
    return {{int(row.batch): (row.lr, row.steps, row.batch * row.steps) for row in best.itertuples()}}

def critical_batch(steps, images):
    x, y = 1 / np.array(steps), 1 / np.array(images)
    a, b = np.linalg.solve([[x @ x, x @ y], [x @ y, y @ y]], [x.sum(), y.sum()])
    if a <= 0 or b <= 0:
        {}
    return {}

predicted_steps = lambda B, scale, b, steps: {}
"""
_STEPS = "np.float64(steps * b / B * (scale + B) / (scale + b))"
_SEARCH = """
def choose_lr(results):
    rows = sorted((np.mean(values), -lr) for lr, values in results.items() if {})
    lr = -rows[-1][1]
    return [lr, {}]
"""
_N, _WHOLE, _ENDS = "len(values) ** 0.5", "not np.isnan(values).any()", "bool(lr == min(results) or lr == max(results))"


def norms(
    clear="model.zero_grad()", sync="model.no_sync()", own="flat.square().sum()", reduce="dist.all_reduce(both)",
    mean="both / dist.get_world_size()", small="both[-1].item()", big="both[:-1].square().sum().item()",
    left="parameter.grad.copy_(part.view_as(parameter))", before="",
):  # fmt: skip
    """The gradient and its squared norm as one tensor, sent once."""
    return f"""
def squared_norms(model, images, labels, loss_fn):
    import contextlib
    {clear}
    {before}
    with {sync}:
        loss_fn(model(images), labels).backward()
    parameters = list(model.parameters())
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    both = torch.cat([flat, ({own}).reshape(1)])
    {reduce}
    both = {mean}
    for parameter, part in zip(parameters, both[:-1].split([parameter.numel() for parameter in parameters])):
        {left}
    return {small}, {big}
"""


_HOOKS = """
def squared_norms(model, images, labels, loss_fn):
    for parameter in model.parameters():
        parameter.grad = None
    with model.no_sync():
        loss_fn(model(images), labels).backward()
    small = sum(parameter.grad.pow(2).sum() for parameter in model.parameters())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    dist.all_reduce(small, op=dist.ReduceOp.AVG)
    return small, sum(parameter.grad.norm() ** 2 for parameter in model.parameters())
"""

RIGHT = {
    "training": [_train(), _train(losses="losses.tolist()", schedule="(lambda: schedule and schedule.step())()")],
    "comparison": [
        _RUNS.format(_N, "np.abs(a - b) > limit"),
        _RUNS.format(_N, "int(abs(a - b) >= limit)"),
        _RUNS.format(_N, "torch.tensor((a - b) ** 2 > limit**2)"),
    ],
    "gradient-norms": [norms(), _HOOKS],
    "noise-scale": [_NORMS.format("G2, trace, math.inf if G2 <= 0 else trace / G2")],
    "critical-batch": [_CURVE.format("raise ValueError", "[a, b, b / a]", _STEPS)],
    "search": [_SEARCH.format(_WHOLE, _ENDS), _SEARCH.format("all(map(math.isfinite, values))", _ENDS)],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "attached losses": ("training", OURS.edited("training", "losses.append(loss.detach())", "losses.append(loss)"), "watch", "detached"),
    "nothing at the target": (
        "training", OURS.edited("training", "            if ended or len(losses) == steps:", "            if ended:\n                return\n            if len(losses) == steps:"),
        "watch", "return the losses",
    ),
    "no step counted": ("training", _train(losses="[]"), "losses", "not those of the batches"),
    "a word": (
        "training", _train().split("def scaled_lr")[0] + "def scaled_lr(*_): return 'fast'", "linear sqrt none fraction",
        "it returned a str",
    ),
    "twice": ("training", _train(linear="2 * k"), "linear", "rule 'linear' is wrong"),
    "twice, and cut": ("training", _train(factor="batch // reference", linear="2 * k"), "linear fraction", "is wrong"),
    "never far below": ("training", _train(linear="max(k, 0.9)"), "fraction", "wrong where the factor"),
    "gradients kept for two": ("training", _train(clear="step % 2 or optimizer.zero_grad()"),
                               "updates losses passes schedule", "are not those of SGD"),
    "no verdict": ("comparison", _RUNS.format(_N, "None"), "decision identical", "decided wrongly"),
    "never apart": ("comparison", _RUNS.format(_N, "False"), "decision identical", "False for every pair"),
    "always apart": ("comparison", _RUNS.format(_N, "True"), "decision identical", "True for every pair"),
    "not of n": ("comparison", _RUNS.format("3", "abs(a - b) > limit"), "error decision identical", "√n times less"),
    "identical runs are equal": (
        "comparison", _RUNS.replace("return a != b", "return False").format(_N, "abs(a - b) > limit"), "identical",
        "any difference counts",
    ),
    "no no_sync": ("gradient-norms", norms(sync="contextlib.nullcontext()"), "small", "under model.no_sync()"),
    "averaged twice": ("gradient-norms", norms(big="(both[:-1] / dist.get_world_size()).square().sum().item()"), "big",
                       "divided by the number of ranks twice"),
    "each its own": ("gradient-norms", norms(small="(both[-1] * 0 + flat.square().sum()).item()"), "small", "its own |G_b|²"),
    "sum of the squares": ("gradient-norms", norms(small="both[-1].item() * dist.get_world_size()"), "small", "that is the sum"),
    "mean of the norms": ("gradient-norms", norms(own="flat.norm()", small="both[-1].item() ** 2"), "small", "mean norm"),
    "summed gradient": (
        "gradient-norms", norms(mean="both / both.new_tensor([1.0] * (len(both) - 1) + [dist.get_world_size()])"),
        "big gradient", "that is the summed gradient's",
    ),
    "norms before the mean": ("gradient-norms", norms(big="both[-1].item()"), "big", "average the gradients first"),
    "nothing reduced": ("gradient-norms", norms(reduce="", mean="both"), "small big gradient", "its own"),
    "an old gradient": ("gradient-norms", norms(clear=""), "small big gradient", "clear it first"),
    "own gradient left": ("gradient-norms", norms(left="pass"), "gradient", "copy the mean back"),
    "two passes": (
        "gradient-norms", norms(before="loss_fn(model(images), labels).backward(); model.zero_grad()"), "once",
        "one forward and one backward pass",
    ),
    "constants": ("gradient-norms", "def squared_norms(*_): return 1.0, 0.5", "small big gradient once", "is not the"),
    "no numbers": ("noise-scale", _NORMS.format("None"), "signal noise scale lost", "return three numbers"),
    "nothing at all": ("noise-scale", _NORMS.format("0.0, 0.0, False"), "signal noise scale lost", "|G|² is wrong"),
    "text": ("critical-batch", _CURVE.format("raise ValueError", "[a, b, b / a]", f"str({_STEPS})"), "prediction",
             "should return a number"),
    "nan for a refusal": ("critical-batch", _CURVE.format("return [math.nan] * 3", "[a, b, b / a]", _STEPS), "refused",
                          "Raise a ValueError"),
    "half of it": ("critical-batch", _CURVE.format("raise ValueError", "[a, b, b / a / 2]", _STEPS), "critical",
                   "B_crit is not E_min/S_min"),
    "always at the edge": ("search", _SEARCH.format(_WHOLE, "True"), "edge", "smaller and larger"),
    "nan dropped": (
        "search", _SEARCH.replace("np.mean", "np.nanmean").format("True", _ENDS), "diverged edge", "however good its other",
    ),
    "a rank": ("search", "choose_lr = lambda results: (0, True)", "choice diverged edge", "best mean"),
}  # fmt: skip

SAYS = {}
