"""Lab 11: other right answers, and what each known mistake loses. Answers are sources."""

# Of the mistakes in `course_lib.exercises.answers.lab11`: parts that are lost → their names.
LOSES = {
    "scaling": {
        "baseline": "parallel on 1, without 1 rank",
        "strong weak baseline": "smallest, no efficiency, upside down",
        "strong baseline": "strong as weak",
        "weak baseline": "weak as strong",
        "studies": "odd batches, same batch, per rank",
    },
    "serial": {
        "faster": "cut off",
        "slower faster": "parallel, not divided, efficiency, percent",
    },
    "bytes": {
        "ring": "half a ring, whole messages",
        "server sharded": "to itself, received too, a worker's",
        "sharded": "keeps nothing, no worker, as if one, whole sums",
    },
    "model": {
        "ring": "half a ring, whole messages, no latency, one latency",
        "tree": "one way, no ceiling, rounded down, parts in a tree",
        "hierarchical": "as a ring, whole between nodes, nodes only, no gather",
        "overlap": "always apart, all hidden, last alone",
        "separate overlap": "no forward",
        "separate": "overlap always",
    },
    "fit": {
        "noise band": "absolute",
        "band": "no freedom, no variance, diagonal, variance, sum of errors, squares alone, two errors",
        "step": "errors added, computing alone, sum alone, computing left out",
    },
    "results": {
        "first median order": "first in, last, best, no efficiency, largest",
        "median": "mean",
        "order": "of one rank, by name",
    },
    "memory": {
        "optimizer sharded": "float32, everything, one stage on, one stage behind",
        "whole optimizer sharded": "no copy",
    },
}

_SCALING = """
def scaling(sequential, times, kind):
    gains = {n: (n if kind == "weak" else 1) * sequential / times[n] for n in map(np.int64, reversed(times))}
    return {n: [gain, np.float64(gain / n)] for n, gain in gains.items()}

def studies(sequential, parallel, ranks):
    weak = {b: (ranks * t / parallel[b], t / parallel[b]) for b, t in sequential.items() if b in parallel}
    strong = {ranks * b: (sequential[ranks * b] / t, sequential[ranks * b] / t / ranks) for b, t in parallel.items() if ranks * b in sequential}
    return [weak, strong]
"""
_MEASURE = """
def measure_step(step, device, clock, synchronize, warm_up, repeats):
    seconds = torch.zeros(repeats, dtype=torch.float64, device=device)
    for number in range(-warm_up, repeats):
        synchronize()
        if dist.is_initialized():
            dist.barrier()
        start = clock()
        step()
        synchronize()
        if number >= 0:
            seconds[number] = clock() - start
    if dist.is_initialized():
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds

def summarise(seconds):
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    return middle, high - low
"""
_EACH = """
def measure_step(step, device, clock, synchronize, warm_up, repeats):  # a maximum after each repeat
    several, found = dist.is_available() and dist.is_initialized(), []
    for _ in range(warm_up):
        step()
    synchronize()
    for _ in range(repeats):
        if several:
            dist.barrier()
        start = clock()
        step()
        synchronize()
        end = clock()
        mine = torch.tensor(end - start, dtype=torch.float64, device=device)
        if several:
            each = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(each, mine)
            mine = torch.stack(each).amax()
        found.append(mine.item())
    return found

def summarise(seconds):
    return torch.tensor(seconds).median().item() if len(seconds) % 2 else np.median(seconds), np.subtract(*np.percentile(seconds, [75, 25]))
"""
_MODEL = """
def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta, per_node=1):
    if algorithm == "tree":
        return 2 * (ranks - 1).bit_length() * (alpha + beta * nbytes)
    m = per_node if algorithm == "hierarchical" else 1
    k = ranks // m
    return 2 * (m - 1) * alpha + 2 * (k - 1) * alpha + 2 * beta * nbytes * (ranks - 1) / ranks

def step_seconds(forward, backward, buckets, overlap):
    if not overlap:
        return forward + backward + sum(buckets)
    n = len(buckets)
    return forward + max(backward * (i + 1) / n + sum(buckets[i:]) for i in range(n))
"""
_FIT = """
def fit(rows, seconds):
    A = rows / seconds[:, None]
    s = np.abs(A).max(0)
    x, (rss,), *_ = np.linalg.lstsq(A / s, np.ones(len(A)), rcond=None)
    rss = np.square(A @ (x / s) - 1).sum()
    return (x / s).tolist(), (np.linalg.pinv((A / s).T @ (A / s)) / s[:, None] / s * rss / (len(A) - A.shape[1])).tolist()

def predict(row, parameters, covariance):
    return torch.tensor(float(np.dot(row, parameters)), dtype=torch.float64), np.sqrt(np.einsum("i,ij,j", row, covariance, row))

def predict_step(batch, compute_fit, sum_fit, sum_seconds):
    (x, C), (y, D) = compute_fit, sum_fit
    a, b = np.array([1, batch]), np.array([sum_seconds(1, 0), sum_seconds(0, 1)])
    return [x @ a + sum_seconds(*y), (a @ C @ a + b @ D @ b) ** 0.5]
"""
_RESULTS = """
def read_results(folder):
    import statistics
    rates = {}
    for path in folder.iterdir():
        if path.suffix == ".json":
            run = json.loads(path.read_text())
            images = run["ranks"] * run["batch_size"]
            rates[run["ranks"]] = images / statistics.median(e["seconds"] / e["steps"] for e in run["epochs"] if e["number"] > 1)
    ranks = sorted(rates)
    return {n: [rates[n], rates[n] / rates[ranks[0]], rates[n] / n / (rates[ranks[0]] / ranks[0])] for n in ranks}
"""
_MEMORY = """
def memory_per_rank(params, ranks, stage):
    whole = {0: 16, 1: 4, 2: 2, 3: 0}[stage]
    return torch.tensor(params * (whole + (16 - whole) / ranks), dtype=torch.float64)
"""

RIGHT = {
    "measure": [_MEASURE, _EACH],
    "scaling": [_SCALING],
    "serial": ["serial_fraction = lambda n, s: (n - s) / (s * (n - 1))"],
    "bytes": ["busiest_sends = lambda way, size, n, k=1: size * 2 * (1 - 1 / n) if way == 'ring' else size * (1 + (n - 2) / k)"],
    "model": [_MODEL],
    "fit": [_FIT],
    "results": [_RESULTS],
    "memory": [_MEMORY],
}  # fmt: skip


_TIMED = """
    found = []
    for _ in range(repeats):
        {before}
        start = clock()
        step()
        {after}
        found.append(clock() - start)
    {end}
    return found
"""


def harness(
    warm="for _ in range(warm_up): step()",
    first="synchronize()",
    before="",
    after="synchronize()",
    end="",
    barrier=True,
):
    """The harness, a line of it other than it should be."""
    if barrier:
        before = f"if dist.is_initialized(): dist.barrier()\n        {before}"
    end = (
        end
        or """if dist.is_initialized():
        found = torch.tensor(found, dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        found = found.tolist()"""
    )
    body = "".join(f"    {line}\n" for line in (warm, first) if line)
    return (
        "def measure_step(step, device, clock, synchronize, warm_up, repeats):\n" + body
        + _TIMED.format(before=before or "pass", after=after or "pass", end=end)
        + "\ndef summarise(seconds):\n    return np.median(seconds), np.subtract(*np.percentile(seconds, [75, 25]))\n"
    )  # fmt: skip


def combined(by):
    return f"""if dist.is_initialized():
        found = torch.tensor(found, dtype=torch.float64)
        {by}
        found = found.tolist()"""


# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "no warm-up": ("measure", harness(warm=""), "warm-up", "first steps are slow"),
    "warm-up kept": ("measure", harness(warm="repeats += warm_up"), "warm-up", "are among the seconds"),
    "warm-up of one": ("measure", harness(warm="step()"), "warm-up synchronise alone barrier slowest", ""),
    "never synchronised": ("measure", harness(first="", after=""), "synchronise", "only launched"),
    "not after": ("measure", harness(before="synchronize()", after=""), "synchronise", "only launched"),
    "not before": ("measure", harness(first=""), "synchronise barrier", "had not finished"),
    "barrier, then synchronise": ("measure", harness(first="", before="synchronize()"), "barrier", "finish older work"),
    "no barrier": ("measure", harness(barrier=False), "barrier", "no barrier"),
    "one barrier": ("measure", harness(barrier=False, first="synchronize()\n    if dist.is_initialized(): dist.barrier()"), "barrier", "is not enough"),
    "always a group": ("measure", harness(barrier=False, before="dist.barrier()"), "alone", "is_initialized"),
    "own seconds": ("measure", harness(end="pass"), "slowest", "its own seconds"),
    "mean of ranks": ("measure", harness(end=combined("dist.all_reduce(found); found /= dist.get_world_size()")), "slowest", ""),
    "sum of ranks": ("measure", harness(end=combined("dist.all_reduce(found)")), "slowest", ""),
    "fastest": ("measure", harness(end=combined("dist.all_reduce(found, op=dist.ReduceOp.MIN)")), "slowest", ""),
    "rank 0 alone": ("measure", harness(end=combined("dist.reduce(found, 0, op=dist.ReduceOp.MAX)")), "slowest", "only some ranks"),
    "barrier inside": ("measure", harness(after="synchronize()\n        if dist.is_initialized(): dist.barrier()"), "slowest", ""),
    "no seconds": ("measure", harness(end="found = None"), "warm-up synchronise alone slowest barrier", "a list with the seconds"),
    "total": ("measure", harness(end="found = sum(found)"), "warm-up synchronise alone slowest barrier", "a list with the seconds"),
    "deviation": ("measure", _MEASURE + "\ndef summarise(seconds): return np.median(seconds), np.std(seconds)", "summary", "standard deviation"),
    "mean": ("measure", _MEASURE + "\ndef summarise(seconds): return np.mean(seconds), np.subtract(*np.percentile(seconds, [75, 25]))", "summary", "is the mean"),
    "range": ("measure", _MEASURE + "\ndef summarise(seconds): return np.median(seconds), np.ptp(seconds)", "summary", "is the range"),
    "no studies": ("scaling", _SCALING + "\ndef studies(*_): return {}, {}", "studies", "from measured steps"),
    "no table": ("scaling", _SCALING + "\ndef scaling(*_): pass", "strong weak baseline", "{ranks: (speed-up, efficiency)}"),
    "other keys": ("scaling", _SCALING + "\ndef scaling(*_): return {1: (1.0, 1.0)}", "strong weak baseline", "{ranks: (speed-up, efficiency)}"),
    "no numbers": ("scaling", _SCALING + "\ndef scaling(s, t, k): return {n: (1.0, None) for n in t}", "strong weak baseline", "{ranks: (speed-up, efficiency)}"),
    "no fraction": ("serial", "def serial_fraction(*_): pass", "slower faster", "is there a return?"),
    "no bytes": ("bytes", "def busiest_sends(*_): pass", "ring server sharded", "is there a return?"),
    "no sum": ("model", _MODEL + "\ndef all_reduce_seconds(*_): pass", "ring tree hierarchical", "is there a return?"),
    "no step": ("model", _MODEL + "\ndef step_seconds(*_): pass", "separate overlap", "is there a return?"),
    "no step's prediction": ("fit", _FIT + "\ndef predict_step(*_): return 0.0, 0.0", "step", "both fits' values add"),
    "no prediction": ("fit", _FIT + "\ndef predict(*_): return 0.0, 0.0", "band", "standard error of a prediction"),
    "other parameters": ("fit", _FIT + "\ndef fit(rows, seconds): return np.ones(rows.shape[1]), np.eye(rows.shape[1])", "exact noise band", "does not find the parameters"),
    "no results": ("results", "def read_results(folder): pass", "first median order", "images/s, speed-up, efficiency"),
    "no memory": ("memory", "def memory_per_rank(*_): pass", "whole optimizer sharded", "is there a return?"),
}  # fmt: skip

SAYS = {}
