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

_SHARE = """
def my_share(n, p, r, e, s):
    def shuffled(n, *seeds):
        return np.random.default_rng(seeds).permutation(n).tolist()
    CALLS.append(p == 1)
    return {}
CALLS = []
"""
_READING = """
def time_to_accuracy(curve, target):
    return next((t for t, _, a in curve if a {when} target), {never})

def speed_up(serial, parallel, target):
    (t1, n1, _), (t2, n2, _) = serial[-1], parallel[-1]
    first, second = time_to_accuracy(serial, target), time_to_accuracy(parallel, target)
    return {rate}, {timed}
"""
_TRAIN = """
def train_share(model, batches, lr, lock):
    optimizer = torch.optim.SGD(model.parameters(), {lr})
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with lock: optimizer.step()
    {end}
"""
_STEP = "def sparse_step(w, i, y, lr):\n    {}.flatten(), (lr * (y - ({}).sigmoid())).repeat_interleave(i.shape[1]))"


def share(value):
    return _SHARE.format(value)


def reading(
    when=">=", never="None", rate="(n2 / t2) / (n1 / t1)", timed="None if None in (first, second) else first / second"
):
    return _READING.format(when=when, never=never, rate=rate, timed=timed)


# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "half": (
        "collision",
        "def collision_probability(k, n, p):\n    return 0.9 if 2 * k > n else 1 - (math.comb(n - k, k) / math.comb(n, k)) ** (p - 1)",
        "edges", "where updates must meet",
    ),
    "a constant": ("collision", "def collision_probability(*_): return 0.123", "two many edges", "wrong for two"),
    "nothing": ("collision", "def collision_probability(*_): pass", "two many edges", "is there a return?"),
    "a new tensor": ("sparse", _STEP.format("return w.index_add(0, i", "w[i].sum(1)"), "step repeated memory", "in place"),
    "half the margin": (
        "sparse", _STEP.format("w.index_add_(0, i", "w[i].sum(1) / 2"), "step repeated memory", "where no feature occurs twice",
    ),
    "everything": ("share", share("shuffled(n, s, e)"), "once even order", "every process takes all"),
    "everything, reordered": ("share", share("shuffled(n, s, e, r)"), "once even order", "every process takes all"),
    "own orders": ("share", share("shuffled(n, s, e, r)[r::p]"), "once even order", "not on the rank"),
    "own orders cut": ("share", share("shuffled(n, s, e, r)[: n // p]"), "once even order", "not on the rank"),
    "remainder lost": ("share", share("shuffled(n, s, e)[: n // p * p][r::p]"), "once even order", "a remainder goes"),
    "blocks": ("share", share("shuffled(n, s, e)[r * (n // p) : (r + 1) * (n // p)]"), "once even order", "a remainder goes"),
    "in order": ("share", share("[(i + e + s) % n for i in range(n)][r::p]"), "order", "not shuffled"),
    "the same each epoch": ("share", share("shuffled(n, s)[r::p]"), "order", "two epochs have the same order"),
    "one seed": ("share", share("shuffled(n, e)[r::p]"), "order", "another seed gives the same"),
    "torch's generator": ("share", share("torch.manual_seed(s + e) and torch.randperm(n)[r::p]"), "order", "dropout draws"),
    "numpy's generator": ("share", share("np.random.rand() and shuffled(n, s, e)[r::p]"), "order", "dropout draws"),
    "the global generator": ("share", share("torch.randperm(n)[r::p]"), "once even order", "not on the rank"),
    "not to be repeated": ("share", share("shuffled(n, s, e, sum(CALLS))[r::p]"), "order", "same arguments do not give"),
    "fixed parts": ("share", share("[p * i + r for i in shuffled((n - r + p - 1) // p, s, e)]"), "order", "same samples in every"),
    "from 1": ("share", share("[i + 1 for i in shuffled(n, s, e)[r::p]]"), "once even order", "lie in 0…n − 1"),
    "uneven": (
        "share", share("shuffled(n, s, e)[: n - p + 1] if r == 0 else shuffled(n, s, e)[n - p + r :][:1]"),
        "even", "more than one sample",
    ),
    "no share": ("share", share("None"), "once even order", "positions, a list or a tensor"),
    "above the target throughout": ("reading", reading(when=">"), "time accuracy", "equal to the target"),
    "the last time throughout": ("reading", reading(never="curve[-1][0]"), "time accuracy", "never seen"),
    "infinity throughout": ("reading", reading(never="math.inf"), "time accuracy", "never seen"),
    "NaN throughout": ("reading", reading(never="math.nan"), "time accuracy", "wrong for some"),
    "no time": (
        "reading", reading() + "\ndef time_to_accuracy(curve, target): pass", "time accuracy", "is there a return?",
    ),
    "seconds of two workers": ("reading", reading(rate="2 * t1 / t2"), "throughput", "different numbers of samples"),
    "no speed-up": ("reading", reading(rate="1.0"), "throughput", "different numbers of samples"),
    "whole times": (
        "reading", reading(timed="None if None in (first, second) else t1 / t2"), "accuracy", "wrong for some pair",
    ),
    "only the serial run's": (
        "reading", reading(timed="None if first is None else first / second"), "throughput accuracy", "stopped there",
    ),
    "one where both never": (
        "reading", reading(timed="1.0 if first == second else None if None in (first, second) else first / second"),
        "accuracy", "never reaches",
    ),
    "one for never": ("reading", reading(timed="1.0 if None in (first, second) else first / second"), "accuracy", "never reaches"),
    "no return": ("loop", _TRAIN.format(lr="lr", end="pass"), "steps", "is there a return?"),
    "twice the rate": (
        "loop", _TRAIN.format(lr="2 * lr", end="return sum(len(y) for _, y in batches)"),
        "steps lock memory", "not those of plain SGD",
    ),
    "weights of NaN": (
        "loop", "def train_share(model, *_):\n    for p in model.parameters(): p.data.fill_(math.nan)",
        "steps lock memory", "not those of plain SGD",
    ),
    "more weights of NaN": (
        "sparse", "def sparse_step(w, *_): w.fill_(math.nan)", "step repeated memory", "wrong where no feature",
    ),
}  # fmt: skip

# Where a mistake is not named by its diagnosis: words of the reason.
SAYS = {"dense writing": "far more of the weights", "copied back": "far more of the weights"}
