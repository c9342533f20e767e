"""Lab 03: other right answers, and what each known mistake loses."""

# Of the mistakes in `course_lib.exercises.answers.lab03`: parts that are lost → their names.
LOSES = {
    "batch-and-steps": {
        "effective steps": "one number", "effective": "one rank",
        "steps": "all images, one epoch, not rounded, last batch kept, rounded once",
    },
    "scaled-lr": {
        "linear sqrt fraction": "no reference, upside down", "fraction": "whole factors, never below",
        "linear": "linear by the root", "sqrt": "sqrt as linear", "none": "none scales",
    },
    "noise-or-not": {
        "mean spread error": "two numbers", "mean": "median", "spread": "variance, range", "error": "error over n",
        "mean decision": "largest", "spread decision": "n", "error decision": "no root of n",
        "decision": "signed, sum, spreads, one error, not twice, fixed",
    },
    "noise-scale": {
        "signal noise scale lost": "one number", "signal noise scale": "only the first",
        "signal lost": "biased signal, swapped", "signal": "root", "noise": "turned sign, no denominator",
        "scale": "mean of quotients, turned", "lost": "negative scale, zero",
    },
    "prediction": {
        "steps": "known steps for the fewest, halves for ever, rounded, upside down, images",
        "batch": "one more, divided",
    },
}  # fmt: skip

_JOBS = "batch_and_steps = lambda b, n, m, e: [{}, float(e * math.floor((m - m % n) / n / b))]"
_RATES = """
def scaled_lr(base, batch, reference, rule):
    k = torch.tensor({}, dtype=torch.float64)
    return {} * base if rule == "linear" else base * k.sqrt() if rule == "sqrt" else base
"""
_RUNS = """
def summarise(values):
    return [np.mean(values), np.std(values, ddof=1), np.std(values, ddof=1) / {}]

def is_noise(first, second):
    (a, _, e), (b, _, f) = summarise(first), summarise(second)
    return {}
"""
_NORMS = """
def noise_scale(b, B, small_norms, big_norms):
    pairs = [((B * t - b * s) / (B - b), (s - t) / (1 / b - 1 / B)) for s, t in zip(small_norms, big_norms)]
    G2, trace = np.mean(pairs, axis=0)
    return {}
"""
_PREDICTION = """
useful_batch = lambda scale, extra: {}
predicted_steps = lambda B, scale, b, steps: np.float64(steps * b / B * (scale + B) / (scale + b))
"""
_N, _K, _LIMIT = "len(values) ** 0.5", "batch / reference", "2 * np.hypot(e, f)"

RIGHT = {
    "batch-and-steps": [_JOBS.format("np.int64(b) * n")],
    "scaled-lr": [_RATES.format(_K, "k")],
    "noise-or-not": [
        _RUNS.format(_N, "np.abs(a - b) < " + _LIMIT),
        _RUNS.format(_N, "int(abs(a - b) <= 2 * np.hypot(e, f))"),
        _RUNS.format(_N, "torch.tensor((a - b) ** 2 <= 4 * (e**2 + f**2))"),
    ],
    "noise-scale": [_NORMS.format("G2, trace, math.inf if G2 <= 0 else trace / G2")],
    "prediction": [_PREDICTION.format("scale * extra")],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "the sum": ("batch-and-steps", _JOBS.format("b + n"), "effective", "the effective batch is wrong"),
    "no pair": ("batch-and-steps", "def batch_and_steps(*_): pass", "effective steps", "return the pair"),
    "a word": ("scaled-lr", "def scaled_lr(*_): return 'fast'", "linear sqrt none fraction", "it returned a str"),
    "twice": ("scaled-lr", _RATES.format(_K, "2 * k"), "linear", "rule 'linear' is wrong"),
    "twice, and cut": ("scaled-lr", _RATES.format("batch // reference", "2 * k"), "linear fraction", "is wrong"),
    "never far below": ("scaled-lr", _RATES.format(_K, "max(k, 0.9)"), "fraction", "wrong where the factor"),
    "no verdict": ("noise-or-not", _RUNS.format(_N, "None"), "decision", "decided wrongly"),
    "always noise": ("noise-or-not", _RUNS.format(_N, "True"), "decision", "decided wrongly"),
    "wrong way round": ("noise-or-not", _RUNS.format(_N, "abs(a - b) > " + _LIMIT), "decision", "decided wrongly"),
    "not of n": ("noise-or-not", _RUNS.format("3", "abs(a - b) < " + _LIMIT), "error decision", "√n times less"),
    "no numbers": ("noise-scale", _NORMS.format("None"), "signal noise scale lost", "return three numbers"),
    "nothing at all": ("noise-scale", _NORMS.format("0.0, 0.0, False"), "signal noise scale lost", "|G|² is wrong"),
    "text": ("prediction", _PREDICTION.format("str(scale * extra)"), "batch", "should return a number"),
}  # fmt: skip

SAYS = {}
