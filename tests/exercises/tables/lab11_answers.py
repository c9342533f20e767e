"""Lab 11: other right answers, and what each known mistake loses. Answers are sources."""

# Of the mistakes in `course_lib.exercises.answers.lab11`: parts that are lost → their names.
LOSES = {
    "throughput": {
        "first": "first in",
        "first median": "first in and mean",
        "median": "mean",
        "slowest": "rank 0, fastest, all epochs, ranks first, times the ranks",
        "first slowest median": "seconds",
    },
    "scaling": {
        "baseline": "parallel on 1, without 1 rank",
        "strong weak baseline": "smallest, no efficiency, upside down",
        "strong baseline": "strong as weak",
        "weak baseline": "weak as strong",
    },
    "laws": {
        "amdahl": "Gustafson for Amdahl, Amdahl turned",
        "gustafson": "Amdahl for Gustafson, Gustafson turned",
        "single fit": "cut off, parallel share",
        "fit": "mean of shares, sums, largest alone, intercept",
    },
    "bytes": {
        "ring": "half a ring, whole messages",
        "server sharded": "to itself, received too, a worker's",
        "sharded": "keeps nothing, no worker, as if one, whole sums",
    },
    "model": {
        "noise": "absolute",
        "line noise": "half the messages, whole gradients, link first, backwards, beta first",
        "worth": "one too many, to the end, none, a float, no most",
    },
}

_LAWS = """
def amdahl(ranks, serial): return ranks / (1 + serial * (ranks - 1))
def gustafson(ranks, serial): return ranks - serial * (ranks - 1)
def serial_share(speedups):
    n, s = np.array(list(speedups)), np.array(list(speedups.values()))
    return np.linalg.lstsq((1 - 1 / n)[:, None], 1 / s - 1 / n, rcond=None)[0][0]
"""
_MODEL = """
def fit_step(rows):
    n, b, g, t = np.array(rows, dtype=float).T
    matrix = np.stack([np.ones_like(n), b, 2 * (n - 1), 2 * (n - 1) * g / n], 1) / t[:, None]
    scale = np.abs(matrix).max(0)
    return torch.from_numpy(np.linalg.lstsq(matrix / scale, np.ones(len(t)), rcond=None)[0] / scale)

def ranks_worth(model, batch, nbytes, least, most=4096):
    t0, c, alpha, beta = model
    seconds = [t0 + c * batch + 2 * (n - 1) * (alpha + beta * nbytes / n) for n in range(1, most + 1)]
    return max(np.arange(1, most + 1)[seconds[0] / np.array(seconds) >= least])
"""
_SCALING = """
def scaling(sequential, times, kind):
    gains = {n: (n if kind == "weak" else 1) * sequential / times[n] for n in map(np.int64, reversed(times))}
    return {n: [gain, np.float64(gain / n)] for n, gain in gains.items()}
"""
_RATE = "def steady_throughput(images, seconds): return images / "

RIGHT = {
    "throughput": [
        _RATE + "np.median(np.max(np.array(seconds), axis=0)[1:])",
        _RATE + "torch.tensor(seconds, dtype=torch.float64).amax(0)[1:].quantile(0.5)",
    ],
    "scaling": [_SCALING],
    "laws": [_LAWS],
    "bytes": ["busiest_sends = lambda way, size, n, k=1: size * 2 * (1 - 1 / n) if way == 'ring' else size * (1 + (n - 2) / k)"],
    "model": [_MODEL],
}  # fmt: skip

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "no rate": ("throughput", "def steady_throughput(*_): pass", "first slowest median", "is there a return?"),
    "rate of NaN": ("throughput", _RATE + "math.nan", "first slowest median", "epochs after the first"),
    "true": ("throughput", "def steady_throughput(*_): return True", "first slowest median", "should return a number"),
    "no table": ("scaling", "def scaling(*_): pass", "strong weak baseline", "{ranks: (speed-up, efficiency)}"),
    "other keys": ("scaling", "def scaling(*_): return {1: (1.0, 1.0)}", "strong weak baseline", "{ranks: (speed-up, efficiency)}"),
    "no numbers": ("scaling", "def scaling(s, t, k): return {n: (1.0, None) for n in t}", "strong weak baseline", "{ranks: (speed-up, efficiency)}"),
    "no speed-up": ("laws", _LAWS + "def gustafson(n, s): pass", "gustafson", "is there a return?"),
    "share of NaN": ("laws", _LAWS + "def serial_share(speedups): return math.nan", "single fit", "share is not right"),
    "no bytes": ("bytes", "def busiest_sends(*_): pass", "ring server sharded", "is there a return?"),
    "no fit": ("model", _MODEL + "def fit_step(rows): pass", "line noise", "is there a return?"),
    "three numbers": ("model", _MODEL + "def fit_step(rows): return 1.0, 2.0, 3.0", "line noise", "(t0, c, alpha, beta)"),
    "one is NaN": ("model", _MODEL + "def fit_step(rows): return 1.0, 2.0, 3.0, math.nan", "line noise", "(t0, c, alpha, beta)"),
    "never stops": ("model", _MODEL + "def ranks_worth(*_): return 4096", "worth", "not the largest number"),
}  # fmt: skip

SAYS = {}  # every mistake is named by its diagnosis
