"""Lab 09: other right answers, and what each mistake loses. The judges of `worker` and `program` name the mistakes themselves."""

from answer_sources import Notebook

# Of the mistakes in `course_lib.exercises.answers.lab09`: parts that are lost → their names.
LOSES = {
    "sparsity": {
        "omega": "words, mean text, all features",
        "delta": "occurrences, number of texts, mean feature",
        "rho": "not itself, among the others, mean collision, collisions",
    },
    "collision": {
        "two many edges": "the misses, itself too, one feature, k²/n, with replacement, per cent",
        "edges": "alone",
        "many edges": "one other, the sum",
        "many": "the sum up to 1",
    },
    "sparse": {
        "repeated": "repeats lost",
        "repeated lock": "in turn, sparse writes back",
        "step repeated memory lock": "unchanged, upwards, no rate, the mean, no sigmoid, signs, no label, indices changed",
        "step memory": "dense margins",
        "memory": "dense writing, copied back",
        "lock": "sparse gradient inside, sparse no lock, sparse before the lock, sparse after the lock",
    },
    "network": {
        "step lock memory": "cleared after the step, gradients add up, summed loss, network upwards, network no rate, "
        "tensors of its own, a copy",
        "lock memory": "gradient inside, no lock, before the lock, after the lock, a lock each",
        "memory": "writes back",
    },
    "speedup": {
        "median": "means, best",
        "median spread": "mean baseline, slowest baseline, first baseline, turned over",
        "spread": "highest first, distance",
    },
}
COSTLY = ("program",)  # it starts processes
VARYING = ("dead",)  # which process is the first to fail

OURS = Notebook("09_hogwild")
edited = OURS.edited

RIGHT = {
    "sparsity": [
        """
def sparsity(indices):
    texts = [set(words) for words in indices.tolist()]
    every = set().union(*texts)
    return (max(map(len, texts)), max(sum(w in t for t in texts) for w in every) / len(texts),
            max(sum(bool(t & other) for other in texts) for t in texts) / len(texts))
"""
    ],
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
def sparse_step(weights, batch, lr, lock):
    w, i = weights.numpy(), batch[0].numpy()
    error = 1 / (1 + np.exp(-w[i].sum(1))) - batch[1].numpy()
    with lock:
        np.subtract.at(w, i, lr * np.repeat(error[:, None], i.shape[1], 1))
""",
        """
def sparse_step(weights, batch, lr, lock):
    indices, labels = batch
    amounts = -lr * (torch.sigmoid(weights[indices].sum(1)) - labels)
    lock.__enter__()
    weights.index_put_((indices,), amounts[:, None].expand(indices.shape), accumulate=True)
    lock.__exit__(None, None, None)
""",
    ],
    "network": [
        """
def network_step(model, batch, lr, lock):
    gradients = torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), list(model.parameters()))
    with lock:
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.data.sub_(gradient, alpha=lr)
""",
        """
def network_step(model, batch, lr, lock):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    with lock:
        optimizer.step()
""",
    ],
    "worker": [
        edited("worker", "order[rank::size].split(size_of_batch)", "order.split(size_of_batch)[rank::size]"),
        """
def worker(rank, size, model, data, job, lock, barrier, done, clock):
    torch.set_num_threads(1)
    x, y = data
    job["step"](model.clone(), (x[:1], y[:1]), job["lr"], lock)
    barrier.wait()
    begun, trained = time.monotonic(), 0
    for epoch in job["epochs"]:
        torch.manual_seed(hash((job["seed"], epoch, rank)) % 2**31)
        mine = torch.from_numpy(np.array_split(np.random.default_rng([job["seed"], epoch]).permutation(len(y)), size)[rank])
        for start in range(0, len(mine), job["batch_size"]):
            places = mine[start : start + job["batch_size"]]
            job["step"](model, (x[places], y[places]), job["lr"], lock)
            trained += len(places)
            done[rank] = trained
    clock[rank] = torch.tensor([begun, time.monotonic()], dtype=torch.float64)
""",
    ],
    "program": [
        """
def train(context, worker, size, model, data, job, locked=False):
    for each in (model, *data):
        each.share_memory() if isinstance(each, nn.Module) else each.share_memory_()
    lock, barrier = (context.Lock() if locked else contextlib.nullcontext()), context.Barrier(size)
    done, clock = torch.zeros(size, dtype=torch.long), torch.zeros((size, 2), dtype=torch.double)
    done.share_memory_(), clock.share_memory_()
    every = []
    for rank in range(size):
        every.append(context.Process(target=worker, args=(rank, size, model, data, job, lock, barrier, done, clock), daemon=True))
        every[-1].start()
    try:
        while any(process.is_alive() for process in every):  # looks at all of them now and then
            for process in every:
                process.join(0.01)
                if process.exitcode not in (None, 0):
                    raise RuntimeError("a process has failed")
    finally:
        for process in every:
            process.kill()
            process.join()
    if any(process.exitcode for process in every):
        raise RuntimeError("a process has failed")
    starts, ends = clock.T.tolist()
    return [max(ends) - min(starts), [int(n) for n in done]]
""",
        """
def train(context, worker, size, model, data, job, locked=False):
    for each in (model, *data):
        each.share_memory() if isinstance(each, nn.Module) else each.share_memory_()
    lock, barrier = (context.Lock() if locked else contextlib.nullcontext()), context.Barrier(size)
    done = torch.zeros(size, dtype=torch.int64).share_memory_()
    clock = torch.zeros(size, 2, dtype=torch.float64).share_memory_()
    processes = [context.Process(target=worker, args=(rank, size, model, data, job, lock, barrier, done, clock)) for rank in range(size)]
    for process in processes:
        process.start()
    running = list(processes)
    while running and not any(process.exitcode for process in processes):
        ready = connection.wait([process.sentinel for process in running])
        running = [process for process in running if process.sentinel not in ready]  # reads each exit code once, at once
    for process in running:
        process.terminate()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process has failed")
    return float(clock[:, 1].max() - clock[:, 0].min()), done.tolist()
""",
    ],
    "speedup": [
        """
def speedups(train_once, counts, runs):
    seconds = np.array([[train_once(P, run) for P in counts] for run in range(runs)])
    rates = np.median(seconds[:, counts.index(1)]) / seconds
    return dict(zip(counts, zip(np.median(rates, 0).tolist(), rates.min(0).tolist(), rates.max(0).tolist())))
""",
    ],
}

_STEP = (
    "def sparse_step(w, batch, lr, lock):\n    i, y = batch\n    with lock:\n"
    "        {}.flatten(), (lr * (y - ({}).sigmoid())).repeat_interleave(i.shape[1]))"
)
_SHARES = "order[rank::size].split(size_of_batch)"
_STARTS = "    for process in processes:\n        process.start()\n"
_WATCH = """    running = processes
    while running and not any(process.exitcode for process in processes):
        connection.wait([process.sentinel for process in running])
        running = [process for process in running if process.exitcode is None]
    for process in running:
        process.terminate()
"""
_RETURNED = "(clock[:, 1].max() - clock[:, 0].min()).item()"
_TIMED = edited("program", _STARTS, "    began = time.monotonic()\n" + _STARTS, _RETURNED, "time.monotonic() - began")

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    # sparsity, collision
    "numbers in a row": ("sparsity", edited("sparsity", "return omega, delta, rho", "return delta, rho, omega"), "omega delta rho", "Ω is wrong"),
    "two numbers": ("sparsity", edited("sparsity", "return omega, delta, rho", "return omega, delta"), "omega delta rho", "should return a number"),
    "half": (
        "collision",
        "def collision_probability(k, n, p):\n    return 0.9 if 2 * k > n else 1 - (math.comb(n - k, k) / math.comb(n, k)) ** (p - 1)",
        "edges", "where updates must collide",
    ),
    "a constant": ("collision", "def collision_probability(*_): return 0.123", "two many edges", "wrong for two"),
    "nothing": ("collision", "def collision_probability(*_): pass", "two many edges", "is there a return?"),
    # sparse, network
    "a new tensor": ("sparse", _STEP.format("return w.index_add(0, i", "w[i].sum(1)"), "step repeated memory lock", "in place"),
    "half the margin": (
        "sparse", _STEP.format("w.index_add_(0, i", "w[i].sum(1) / 2"), "step repeated memory lock", "where no feature occurs twice",
    ),
    "more weights of NaN": (
        "sparse", "def sparse_step(w, *_): w.fill_(math.nan)", "step repeated memory lock", "wrong where no feature",
    ),
    "twice the rate": ("network", edited("network", "lr * parameter.grad", "2 * lr * parameter.grad"), "step lock memory", "not those of plain SGD"),
    "weights of NaN": (
        "network", "def network_step(model, *_):\n    for p in model.parameters(): p.data.fill_(math.nan)",
        "step lock memory", "not those of plain SGD",
    ),
    # worker
    "never trains": ("worker", edited("worker", "            step(model, (inputs[batch], labels[batch]), lr, lock)\n", ""),
                     "steps work random count clock", "never called"),
    "trains a copy": ("worker", edited("worker", "    barrier.wait()\n", "    barrier.wait()\n    model = copy.deepcopy(model)\n"),
                      "steps work random count clock", "a copy of the model"),
    "another lock": ("worker", edited("worker", ", lr, lock)", ", lr, contextlib.nullcontext())"), "steps work random count clock", "not given the lock"),
    "lock held always": ("worker", edited("worker", "            step(model,", "            with lock: step(model,"),
                         "steps work random count clock", "holds the lock itself"),
    "many threads": ("worker", edited("worker", "    torch.set_num_threads(1)\n", ""), "steps work random count clock", "more than one thread"),
    "labels in order": ("worker", edited("worker", "labels[batch]), lr, lock", "labels[:len(batch)]), lr, lock"),
                        "steps work random count clock", "at the same places"),
    "all do everything": ("worker", edited("worker", "order[rank::size]", "order"), "work random", "times the work"),
    "all do everything, in orders of their own": (
        "worker", edited("worker", "manual_seed(number))", "manual_seed(number + rank))", "order[rank::size]", "order"), "work random", "times the work",
    ),
    "one epoch": ("worker", edited("worker", 'in job["epochs"]', 'in job["epochs"][:1]'), "work random", "every epoch"),
    "own orders": ("worker", edited("worker", "manual_seed(number))", "manual_seed(number + 1000 * rank))"), "work random", "used twice"),
    "remainder lost": ("worker", edited("worker", _SHARES, "order[: len(order) // size * size][rank::size].split(size_of_batch)"),
                       "work random", "left out"),
    "last batch lost": ("worker", edited("worker", _SHARES, "[b for b in order[rank::size].split(size_of_batch) if len(b) == size_of_batch]"),
                        "work random", "left out"),
    "one batch": ("worker", edited("worker", ".split(size_of_batch)", ".split(len(order))"), "work random", "a batch has more than"),
    "one by one": ("worker", edited("worker", ".split(size_of_batch)", ".split(1)"), "work random", "only the last batch"),
    "not shuffled": ("worker", edited("worker", "torch.randperm(len(labels), generator=torch.Generator().manual_seed(number))", "torch.arange(len(labels))"),
                     "random", "shuffle them"),
    "the same each epoch": ("worker", edited("worker", "number = job[\"seed\"] + epoch", "number = job[\"seed\"]"), "random", "the same order"),
    "seeded once a call": ("worker", edited("worker", "    for epoch in job", "    generator = torch.Generator().manual_seed(job[\"seed\"])\n    for epoch in job",
        "generator=torch.Generator().manual_seed(number)", "generator=generator"), "random", "if the call begins with it"),
    "the same samples": ("worker", edited("worker", _SHARES, "torch.arange(rank, len(labels), size)[order[order < (len(labels) - rank + size - 1) // size]].split(size_of_batch)"),
                         "random", "the same samples in every epoch"),
    "no job's seed": ("worker", edited("worker", 'number = job["seed"] + epoch', "number = epoch"), "random", 'another job["seed"]'),
    "masks once a call": ("worker", edited("worker", "        torch.manual_seed(1000 * number + rank)\n", "", "    for epoch in job", '    torch.manual_seed(job["seed"] + rank)\n    for epoch in job'),
        "random", "numbers of another epoch"),
    "masks of the next epoch": ("worker", edited("worker", "1000 * number + rank", "number + rank"), "random", "numbers of another epoch"),
    "counts an epoch ahead": ("worker", edited("worker", "            done[rank] += len(batch)\n", "        done[rank] += len(order[rank::size])\n"), "count", "up to date"),
    "equal masks": ("worker", edited("worker", "1000 * number + rank", "number"), "random", "dropout masks are equal"),
    "global generator": ("worker", edited("worker", "generator=torch.Generator().manual_seed(number)", "generator=torch.manual_seed(number)",
                         "        torch.manual_seed(1000 * number + rank)\n", ""), "random", "dropout masks are equal"),
    "counts batches": ("worker", edited("worker", "done[rank] += len(batch)", "done[rank] += 1"), "count", "counts batches"),
    "others' places": ("worker", edited("worker", "done[rank] += len(batch)", "done += len(batch)"), "count", "another process's place"),
    "no warm-up": ("worker", edited("worker", "    step(copy.deepcopy(model), first, lr, contextlib.nullcontext())\n", ""), "clock", "there is no step"),
    "warm-up on the weights": ("worker", edited("worker", "copy.deepcopy(model)", "model"), "clock", "give it a copy"),
    "no barrier": ("worker", edited("worker", "    barrier.wait()\n", ""), "clock", "never waits"),
    "clock before the barrier": (
        "worker", edited("worker", "    barrier.wait()\n    clock[rank, 0] = time.monotonic()\n", "    clock[rank, 0] = time.monotonic()\n    barrier.wait()\n"),
        "clock", "before the barrier",
    ),
    "clock first of all": (
        "worker", edited("worker", "    clock[rank, 0] = time.monotonic()\n", "", "    inputs, labels = data\n",
                         "    inputs, labels = data\n    clock[rank, 0] = time.monotonic()\n"),
        "clock", "before the first step",
    ),
    "processor time": ("worker", edited("worker", "time.monotonic()", "time.process_time()"), "clock", "time.monotonic()"),
    # program
    "a loop": ("program", "def train(context, worker, size, model, data, job, locked=False):\n    return 1.0, [1] * size",
               "processes shared lock results dead", "no worker was started"),
    "in this process": (
        "program", edited("program", _STARTS, "    worker(0, size, *shared)\n    processes = []\n"), "processes shared lock results dead", "in the process that called",
    ),
    "threads": (
        "program",
        "import threading\n" + edited("program", "context.Process(", "threading.Thread(", _WATCH, "", "process.exitcode", "0"),
        "processes shared lock results dead", "threads of one process",
    ),
    "one after the other": ("program", edited("program", "        process.start()\n", "        process.start()\n        process.join()\n"),
                            "processes shared lock results dead", "before you join one"),
    "one process": ("program", edited("program", "for rank in range(size)]", "for rank in range(1)]"), "processes shared lock results dead", "in vain"),
    "a barrier each": ("program", edited("program", "context.Barrier(size)", "context.Barrier(1)", "rank, size, *shared", "rank, size, *shared[:4], context.Barrier(1), *shared[5:]"),
                       "processes shared lock results", "before all processes had"),
    "not joined": ("program", edited("program", _WATCH, "", "        process.join()\n", "        pass\n"),
                   "processes shared lock results dead", "still running"),
    "not shared": ("program", edited("program", "        model.share_memory()\n", "        pass\n", "        model.share_memory_()\n", "        pass\n"),
                   "shared", "not in shared memory"),
    "a copy": ("program", edited("program", "shared = model, data", "shared = copy.deepcopy(model), data"), "shared", "not in shared memory"),
    "a shared copy": ("program", edited("program", "    for tensor in data:", "    model = copy.deepcopy(model)\n    model.share_memory() if isinstance(model, nn.Module) else model.share_memory_()\n    for tensor in data:"),
                      "shared", "another model"),
    "data copied": ("program", edited("program", "        tensor.share_memory_()\n", "        pass\n"), "shared", "the data is not"),
    "always locked": ("program", edited("program", "context.Lock() if locked else contextlib.nullcontext()", "context.Lock()"), "lock", "had to wait"),
    "never locked": ("program", edited("program", "context.Lock() if locked else contextlib.nullcontext()", "contextlib.nullcontext()"), "lock", "at the same time"),
    "a lock each": (
        "program", edited("program", "rank, size, *shared", "rank, size, *shared[:3], context.Lock() if locked else lock, *shared[4:]"), "lock", "at the same time",
    ),
    "clock around the start": ("program", _TIMED, "results", "how long the processes take to start"),
    "the longest process": ("program", edited("program", _RETURNED, "(clock[:, 1] - clock[:, 0]).max().item()"), "results", "the longest process's own"),
    "process 0's": ("program", edited("program", _RETURNED, "(clock[0, 1] - clock[0, 0]).item()"), "results", "process 0's"),
    "done not shared": ("program", edited("program", "dtype=torch.int64).share_memory_()", "dtype=torch.int64)"), "results", "not those in `done`"),
    "a tensor of samples": ("program", edited("program", "done.tolist()", "list(done)"), "results", "a list of int"),
    "seconds alone": ("program", edited("program", ".item(), done.tolist()", ".item()"), "results", "should return a pair"),
    "only joined": ("program", edited("program", _WATCH, ""), "dead", "wait for the first process"),
    "the dead are ignored": ("program", edited("program", "    if any(codes):\n", "    if False:\n"), "dead", "does not raise RuntimeError"),
    "others left": ("program", edited("program", "        process.terminate()\n    for process in processes:\n        process.join()\n", "        pass\n"),
                    "dead", "leaves others running"),
    # speedup
    "all of one P": (
        "speedup", edited("speedup", "    for run in range(runs):\n        for P in counts:\n", "    for P in counts:\n        for run in range(runs):\n"),
        "rounds", "a slow minute",
    ),
    "no number of the round": ("speedup", edited("speedup", "train_once(P, run)", "train_once(P, 0)"), "rounds", "number of the round"),
    "once": ("speedup", edited("speedup", "in range(runs)", "in range(1)"), "rounds median spread", "`runs` times"),
}  # fmt: skip

# Where a mistake is not named by its diagnosis: words of the reason.
SAYS = {
    "sparse writes back": "repeated features got only one",
    "dense writing": "far more of the weights",
    "copied back": "far more of the weights",
}
