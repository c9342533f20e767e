"""Lab 09: other right answers, and what each known mistake loses. Answers are sources; `edits` change the notebook's."""

# Of the mistakes in `course_lib.exercises.answers.lab09`: parts that are lost → their names.
LOSES = {
    "collision": {
        "two many edges": "the misses, itself too, one feature, k²/n, with replacement, per cent",
        "edges": "alone",
        "many edges": "one other, the sum",
        "many": "the sum up to 1",
    },
    "sparse": {
        "repeated": "repeats lost, in turn",
        "step repeated memory": "unchanged, upwards, no rate, the mean, no sigmoid, signs, no label, indices changed",
        "step memory": "dense margins",
        "memory": "dense writing, copied back",
    },
    "reading": {
        "time": "above the target, the last such point, the last time, infinity for never, interpolated",
        "throughput": "ratio of seconds, turned rate",
        "accuracy": "turned, zero for never, the serial run never",
        "throughput accuracy": "stopped at None, no pair",
    },
    "loop": {
        "steps lock memory": "accumulates, cleared after the step, gradients add up, summed loss, upwards, no rate, tensors of its own, a copy",
        "steps": "counts batches, a tensor of samples, a float of samples",
        "lock memory": "gradient inside, no lock, before the lock, after the lock, a lock each",
        "memory": "writes back",
    },
}

RIGHT = {
    "collision": [
        """
def collision_probability(nonzeros, features, processes):
    misses = 1.0
    for i in range(nonzeros):
        misses *= max(0, features - nonzeros - i) / (features - i)
    return torch.tensor(1 - misses ** (processes - 1), dtype=torch.float64)
"""
    ],
    "sparse": [
        """
def sparse_step(weights, indices, labels, lr):
    w, i = weights.numpy(), indices.numpy()
    error = 1 / (1 + np.exp(-w[i].sum(1))) - labels.numpy()
    np.subtract.at(w, i, lr * np.repeat(error[:, None], i.shape[1], 1))
""",
        """
def sparse_step(weights, indices, labels, lr):
    amounts = -lr * (torch.sigmoid(weights[indices].sum(1)) - labels)
    weights.index_put_((indices,), amounts[:, None].expand(indices.shape), accumulate=True)
""",
    ],
    "share": [
        """
def my_share(samples, processes, rank, epoch, seed):
    return np.array_split(np.random.default_rng([seed, epoch]).permutation(samples), processes)[rank]
"""
    ],
    "reading": [
        """
def time_to_accuracy(curve, target):
    return min((t for t, n, a in curve if a >= target), default=None)

def speed_up(serial, parallel, target):
    times = [time_to_accuracy(curve, target) for curve in (serial, parallel)]
    rates = [curve[-1][1] / curve[-1][0] for curve in (serial, parallel)]
    return [rates[1] / rates[0], times[0] / times[1] if None not in times else None]
"""
    ],
    "loop": [
        """
def train_share(model, batches, lr, lock):
    done = 0
    for images, labels in batches:
        gradients = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
        lock.__enter__()
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.data.sub_(gradient, alpha=lr)
        lock.__exit__(None, None, None)
        done += labels.numel()
    return done
"""
    ],
}

_SHARE = "def my_share(n, p, r, e, s):\n    def shuffled(n, *seeds):\n        return np.random.default_rng(seeds).permutation(n).tolist()\n"
_READING = """
def time_to_accuracy(curve, target):
    return next((t for t, _, a in curve if a {when} target), {never})

def speed_up(serial, parallel, target):
    rate = (parallel[-1][1] / parallel[-1][0]) / (serial[-1][1] / serial[-1][0])
    times = time_to_accuracy(serial, target), time_to_accuracy(parallel, target)
    return rate, None if None in times else times[0] / times[1]
"""

_SPEED_UP = """
def time_to_accuracy(curve, target):
    return next((t for t, _, a in curve if a >= target), None)

def speed_up(serial, parallel, target):
    (t1, n1, _), (t2, n2, _) = serial[-1], parallel[-1]
    first, second = time_to_accuracy(serial, target), time_to_accuracy(parallel, target)
    return {rate}, {timed}
"""
_RATE, _TIMED = "(n2 / t2) / (n1 / t1)", "None if first is None or second is None else first / second"

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "half": (
        "collision",
        "def collision_probability(k, n, p):\n    return 0.9 if 2 * k > n else 1 - (math.comb(n - k, k) / math.comb(n, k)) ** (p - 1)",
        "edges", "where updates must meet",
    ),
    "a constant": ("collision", "def collision_probability(k, n, p):\n    return 0.123", "two many edges", "wrong for two"),
    "nothing": ("collision", "def collision_probability(k, n, p):\n    pass", "two many edges", "is there a return?"),
    "a new tensor": (
        "sparse",
        "def sparse_step(w, i, y, lr):\n    return w.index_add(0, i.flatten(), (lr * (y - w[i].sum(1).sigmoid())).repeat_interleave(i.shape[1]))",
        "step repeated memory", "change those that were given, in place",
    ),
    "half the margin": (
        "sparse",
        "def sparse_step(w, i, y, lr):\n    w.index_add_(0, i.flatten(), (lr * (y - (w[i].sum(1) / 2).sigmoid())).repeat_interleave(i.shape[1]))",
        "step repeated memory", "wrong where no feature occurs twice",
    ),
    "everything": ("share", _SHARE + "    return shuffled(n, s, e)", "once even order", "every process takes all"),
    "everything in its own order": ("share", _SHARE + "    return shuffled(n, s, e, r)", "once even order", "every process takes all"),
    "own orders": ("share", _SHARE + "    return shuffled(n, s, e, r)[r::p]", "once even order", "not on the rank"),
    "own orders cut": ("share", _SHARE + "    return shuffled(n, s, e, r)[: n // p]", "once even order", "not on the rank"),
    "remainder lost": ("share", _SHARE + "    return shuffled(n, s, e)[: n // p * p][r::p]", "once even order", "a remainder goes"),
    "blocks": (
        "share", _SHARE + "    return shuffled(n, s, e)[r * (n // p) : (r + 1) * (n // p)]", "once even order", "a remainder goes",
    ),
    "in order": (
        "share", _SHARE + "    return [(i + e + s) % n for i in range(n)][r::p]", "order", "not shuffled",
    ),
    "the same each epoch": ("share", _SHARE + "    return shuffled(n, s)[r::p]", "order", "two epochs have the same order"),
    "one seed": ("share", _SHARE + "    return shuffled(n, e)[r::p]", "order", "another seed gives the same"),
    "torch's generator": (
        "share", "def my_share(n, p, r, e, s):\n    return torch.manual_seed(s + e) and torch.randperm(n)[r::p]",
        "order", "from which dropout draws",
    ),
    "numpy's generator": (
        "share", _SHARE + "    return np.random.rand() and shuffled(n, s, e)[r::p]", "order", "from which dropout draws",
    ),
    "the global generator": (
        "share", "def my_share(n, p, r, e, s):\n    return torch.randperm(n)[r::p]", "once even order", "not on the rank",
    ),
    "not to be repeated": (
        "share", "CALLS = [0]\n" + _SHARE + "    CALLS[0] += p == 1\n    return shuffled(n, s, e, CALLS[0])[r::p]",
        "order", "the same arguments do not give",
    ),
    "fixed parts": (
        "share", _SHARE + "    return [p * i + r for i in shuffled((n - r + p - 1) // p, s, e)]", "order", "the same samples in every epoch",
    ),
    "from 1": ("share", _SHARE + "    return [i + 1 for i in shuffled(n, s, e)[r::p]]", "once even order", "lie in 0…n − 1"),
    "uneven": (
        "share", _SHARE + "    return shuffled(n, s, e)[: n - p + 1] if r == 0 else shuffled(n, s, e)[n - p + r :][:1]",
        "even", "more than one sample",
    ),
    "no share": ("share", "def my_share(*question):\n    pass", "once even order", "positions, a list or a tensor"),
    "above the target throughout": ("reading", _READING.format(when=">", never="None"), "time accuracy", "equal to the target"),
    "the last time throughout": ("reading", _READING.format(when=">=", never="curve[-1][0]"), "time accuracy", "never seen"),
    "infinity throughout": ("reading", _READING.format(when=">=", never="math.inf"), "time accuracy", "never seen"),
    "NaN throughout": ("reading", _READING.format(when=">=", never="math.nan"), "time accuracy", "wrong for some"),
    "no time": (
        "reading", _SPEED_UP.format(rate=_RATE, timed=_TIMED) + "\ndef time_to_accuracy(curve, target):\n    pass",
        "time accuracy", "is there a return?",
    ),
    "seconds of two workers": (
        "reading", _SPEED_UP.format(rate="2 * t1 / t2", timed=_TIMED), "throughput", "different numbers of samples",
    ),
    "no speed-up": ("reading", _SPEED_UP.format(rate="1.0", timed=_TIMED), "throughput", "different numbers of samples"),
    "whole times": (
        "reading", _SPEED_UP.format(rate=_RATE, timed="None if first is None or second is None else t1 / t2"),
        "accuracy", "wrong for some pair",
    ),
    "only the serial run's time": (
        "reading", _SPEED_UP.format(rate=_RATE, timed="None if first is None else first / second"),
        "throughput accuracy", "your function stopped there",
    ),
    "one where both never": (
        "reading",
        _SPEED_UP.format(rate=_RATE, timed="1.0 if first == second else None if None in (first, second) else first / second"),
        "accuracy", "never reaches",
    ),
    "one for never": (
        "reading", _SPEED_UP.format(rate=_RATE, timed="1.0 if None in (first, second) else first / second"),
        "accuracy", "never reaches",
    ),
    "no return": (
        "loop",
        "def train_share(model, batches, lr, lock):\n    optimizer = torch.optim.SGD(model.parameters(), lr)\n    for x, y in batches:\n"
        "        optimizer.zero_grad()\n        F.cross_entropy(model(x), y).backward()\n        with lock: optimizer.step()",
        "steps", "is there a return?",
    ),
    "a float of samples": (
        "loop",
        "def train_share(model, batches, lr, lock):\n    optimizer = torch.optim.SGD(model.parameters(), lr)\n    for x, y in batches:\n"
        "        optimizer.zero_grad()\n        F.cross_entropy(model(x), y).backward()\n        with lock: optimizer.step()\n"
        "    return float(sum(len(y) for _, y in batches))",
        "steps", "as an int",
    ),
    "twice the rate": (
        "loop",
        "def train_share(model, batches, lr, lock):\n    optimizer = torch.optim.SGD(model.parameters(), 2 * lr)\n    for x, y in batches:\n"
        "        optimizer.zero_grad()\n        F.cross_entropy(model(x), y).backward()\n        with lock: optimizer.step()\n"
        "    return sum(len(y) for _, y in batches)",
        "steps lock memory", "not those of plain SGD",
    ),
    "weights of NaN": (
        "loop", "def train_share(model, *more):\n    for p in model.parameters(): p.data.fill_(float('nan'))\n    return 0",
        "steps lock memory", "not those of plain SGD",
    ),
    "more weights of NaN": (
        "sparse", "def sparse_step(weights, *more):\n    weights.fill_(float('nan'))", "step repeated memory", "wrong where no",
    ),
}  # fmt: skip

# Where a mistake is not named by its diagnosis: words of the reason.
SAYS = {"dense writing": "far more of the weights", "copied back": "far more of the weights"}
