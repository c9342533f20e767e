"""Lab 08: other right answers, and what each mistake loses. Most of its judges name the mistakes themselves."""

from answer_sources import Notebook

COSTLY = ("worker",)  # it trains for several epochs

LOSES = {
    "speedup-table": {
        "time": "mean of the workers, sum of the workers, longest averaging, mean averaging, first worker, no averaging, "
        "fastest worker",
    },
}  # fmt: skip
SAYS = {}

OURS = Notebook("08_parallel_sgd_mpi")
edited = OURS.edited

# All of the wall clocks: their mean is right where each of them is.
CLOCKED = edited(
    "program",
    "    so_far = 0.0\n",
    "    from time import monotonic_ns\n    so_far = 0.0\n    clocks = (time.perf_counter, time.time, time.monotonic, timeit.default_timer, perf_counter,\n"
    "              lambda: monotonic_ns() / 1e9, lambda: time.time_ns() / 1e9, MPI.Wtime,\n"
    "              lambda: (datetime.now() - datetime(1970, 1, 1)).total_seconds(),\n"
    "              lambda: dates.datetime.now(dates.UTC).timestamp(), lambda: dates.datetime.utcnow().timestamp())\n",
    "        start = time.perf_counter()",
    "        comm.Barrier()\n        start = [read() for read in clocks]",
    "time.perf_counter() - start",
    "np.mean([read() - one for read, one in zip(clocks, start)])",
)

RIGHT = {
    "partition": [
        """
def partition(labels, size, rank, seed, by_label=False):
    count = len(labels)
    order = np.argsort(labels.numpy(), kind="stable") if by_label else np.random.default_rng(seed).permutation(count)
    return torch.from_numpy(np.array_split(order, size)[rank].copy())
""",
        """
def partition(labels, size, rank, seed, by_label=False):  # the global generator, seeded alike
    torch.manual_seed(seed)
    order = labels.sort(stable=True).indices if by_label else torch.randperm(len(labels))
    return order.tensor_split(size)[rank]
""",
    ],
    "start": [
        """
def tensors(model):  # parameters first, then buffers
    return [*model.parameters(), *model.buffers()]


def pack(model):
    return np.concatenate([t.detach().numpy().astype(np.float32).ravel() for t in tensors(model)])


def unpack(model, buffer):
    start = 0
    with torch.no_grad():
        for t in tensors(model):
            part = torch.from_numpy(buffer[start : start + t.numel()])
            t.copy_((part if t.is_floating_point() else part.round()).view_as(t))
            start += t.numel()


def broadcast_state(comm, model):
    buffer = torch.from_numpy(pack(model))
    comm.Barrier()
    comm.Bcast([buffer.numpy(), MPI.FLOAT], 0)
    unpack(model, buffer.numpy())
""",
    ],
    "worker": [
        """
from time import perf_counter, process_time


def train_local(comm, model, batches, lr, epochs, average, every):  # by hand; a clock that is stopped
    model.train(True)
    epochs = list(epochs)
    total = len(epochs) * len(batches)
    done, compute, averaging = 0, 0.0, 0.0
    comm.barrier()
    begun = process_time()
    for epoch in epochs:
        batches.set_epoch(epoch)
        for x, y in batches:
            for p in model.parameters():
                p.grad = None
            loss = -torch.log_softmax(model(x), 1).gather(1, y[:, None]).mean()
            loss.backward()
            for p in model.parameters():
                p.data -= lr * p.grad
            done += 1
            if done % (every or total) == 0:
                compute += process_time() - begun
                wall = perf_counter()
                average(model)
                averaging += perf_counter() - wall
                begun = process_time()
    compute += process_time() - begun
    if done % (every or total):
        wall = perf_counter()
        average(model)
        averaging += perf_counter() - wall
    return np.float64(compute), torch.tensor(averaging, dtype=torch.float64)
""",
        """
def train_local(comm, model, batches, lr, epochs, average, every):
    import time

    optimizer, steps, spent, gone = torch.optim.SGD(model.parameters(), lr), 0, 0.0, 0.0
    model.train()
    comm.Barrier()
    start = time.process_time()
    for epoch in epochs:
        batches.set_epoch(epoch)
        for images, labels in batches:
            loss = nn.CrossEntropyLoss()(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if (every and steps % every == 0) or steps == len(epochs) * len(batches):
                mine, wall = time.process_time(), time.monotonic()
                average(model)
                spent, gone = spent + time.monotonic() - wall, gone + time.process_time() - mine
    return [time.process_time() - start - gone, spent]
""",
    ],
    "averaging": [
        """
def average_models(comm, model, samples):  # the samples by a message of their own, in place
    total = comm.allreduce(samples, op=MPI.SUM)
    buffer = pack(model) * np.float32(samples / total)
    comm.Allreduce(MPI.IN_PLACE, buffer)
    unpack(model, buffer)
""",
        """
def average_models(comm, model, samples):  # without pack
    with torch.no_grad():
        state = list(model.state_dict().values())
        flat = torch.cat([t.flatten().float() for t in state] + [torch.ones(1)]) * samples
        total = torch.empty_like(flat)
        comm.Allreduce(flat, total)
        mean = total[:-1] / total[-1]
        for t, part in zip(state, mean.split([t.numel() for t in state])):
            t.copy_(part.view_as(t) if t.is_floating_point() else part.view_as(t).round())
""",
    ],
    "reduce": [
        """
def reduce_results(comm, loss_sum, correct, images, seconds):
    found = comm.gather((loss_sum, correct, images, seconds))
    if found is None:
        return
    losses, right, count, times = map(np.array, zip(*found))
    return losses.sum() / count.sum(), torch.tensor(right.sum() / count.sum(), dtype=torch.float64), max(times)
""",
        """
def reduce_results(comm, loss_sum, correct, images, seconds):
    sums, slowest = torch.zeros(3, dtype=torch.float64), np.zeros(1)
    comm.Allreduce(torch.tensor([loss_sum, correct, images], dtype=torch.float64), sums)
    comm.Reduce(np.array([float(seconds)]), slowest, MPI.MAX)
    if comm.rank == 0:
        return [(sums[0] / sums[2]).item(), (sums[1] / sums[2]).item(), slowest[0]]
""",
    ],
    "speedup-table": [
        """
def speedup_table(reports):
    found = {}
    for count in sorted(reports):
        compute, averaging = np.array(reports[count]).T
        seconds = float(compute.max() + averaging.min())
        found[count] = [seconds, found[1][0] / seconds if found else 1.0, 0.0]
        found[count][2] = torch.tensor(found[count][1] / count, dtype=torch.float64)
    return found
""",
    ],
    "program": [
        """
def main(comm, args, run=None):
    size, rank = comm.size, comm.rank
    torch.manual_seed(args.seed + rank)
    data = load(args.dataset, train_samples=args.train_samples)
    each = len(data.train.labels) // size
    own = data.train.part(partition(data.train.labels, size, rank, args.seed)[:each])

    def batches_of(split, size=100, **more):
        return Batches(split, size, mean=data.mean, std=data.std, **more)

    training = batches_of(own, args.batch_size, shuffle=True, seed=args.seed)
    model, time_so_far = ParallelSGDNet(len(data.classes), data.channels), 0.0
    broadcast_state(comm, model)
    test = data.test.part(range(rank, len(data.test), size))
    for epoch in range(args.epochs):
        begun = time.perf_counter()
        train_local(comm, model, training, args.base_lr, [epoch], lambda m: average_models(comm, m, each), args.average_every)
        seconds = time.perf_counter() - begun
        results = [reduce_results(comm, *evaluate(model, batches_of(part), nn.CrossEntropyLoss()), seconds)
                   for part in (own.part(range(min(500, each))), test)]
        if rank:
            continue
        time_so_far += results[0][2]
        report(run, args, epoch, time_so_far, each // args.batch_size * args.batch_size * size, *results)
    if run and not rank:
        run.save_model(model)
    return model.state_dict()
""",
        f"import datetime as dates\nimport timeit\nfrom datetime import datetime\nfrom time import perf_counter\n\n\n{CLOCKED}",
        edited(
            "program",
            "        trained = reduce",
            "        seconds = comm.allreduce(seconds, op=MPI.MAX)\n        trained = reduce",
        ),
    ],
    "align": [
        """
def align(first, second, layers):  # from the other end, in matrices of permutation
    mine = {name: t.clone() for name, t in second.items()}
    for _ in range(10):
        for inner, outer in reversed(layers):
            count = len(mine[inner + ".bias"])
            similar = first[inner + ".weight"].flatten(1) @ mine[inner + ".weight"].flatten(1).T
            similar += torch.outer(first[inner + ".bias"], mine[inner + ".bias"])
            a, b = (s[outer + ".weight"].reshape(-1, count, s[outer + ".weight"].numel() // count // len(s[outer + ".weight"]))
                    for s in (first, mine))
            similar += torch.einsum("oik,ojk->ij", a, b)
            turn = torch.eye(count)[best_matching(similar)]
            for kind in (".weight", ".bias"):
                t = mine[inner + kind]
                mine[inner + kind] = (turn @ t.reshape(count, -1)).reshape(t.shape)
            mine[outer + ".weight"] = torch.einsum("ij,ojk->oik", turn, b).reshape(mine[outer + ".weight"].shape)
    return mine
""",
    ],
}

REDUCED = "comm.Reduce(mine, total, op=MPI.SUM, root=0)"
ALL = "comm.Allreduce(mine, total, op=MPI.SUM)"
ALONE = """
def average_models(comm, model, samples):
    total = sum([samples])
    comm.Barrier()
    unpack(model, samples * pack(model) / np.float32(total))
"""

WRONG = {
    # program
    "test results twice": ("program", edited("program", "images, trained, tested)", "images, tested, tested)"), "evaluation", "reported training results"),
    "all training images": ("program", edited("program", "data.train.part(mine[:500])", "data.train"), "evaluation", "more than 500"),
    "others' images": ("program", edited("program", "data.train.part(mine[:500])", "data.train.part(range(len(mine)))"), "evaluation", "reported training results"),
    # partition
    "each rank draws its own order": (
        "partition", edited("partition", ", generator=generator", ""), "cover equal seed by-label", "in two shares",
    ),
    "the first images of each share": (
        "partition", edited("partition", "return order[rank::size]", "return order[rank * (len(labels) // size):][:len(labels) // size]"),
        "cover equal seed by-label", "not all images",
    ),
    "neighbours share an image": (
        "partition", edited("partition", "return order[rank::size]", "return torch.cat([order[rank::size], order[(rank + 1) % size][None]])"),
        "cover equal seed by-label", "in two shares",
    ),
    "torch's sampler, which repeats images": (
        "partition", edited("partition", "return order[rank::size]", "return torch.tensor([*torch.utils.data.DistributedSampler(labels, size, rank, seed=seed)])"),
        "cover equal seed by-label", "in two shares",
    ),
    "not shuffled": (
        "partition", edited("partition", "torch.randperm(len(labels), generator=generator)", "torch.arange(len(labels))"),
        "seed", "not drawn from the seed",
    ),
    "the last share has the rest": (
        "partition",
        edited("partition", "return order[rank::size]", "return order[rank * (len(labels) // size - 1):][:None if rank == size - 1 else len(labels) // size - 1]"),
        "equal", "more than one image",
    ),
    "by label dealt in turn": (
        "partition", edited("partition", "order.tensor_split(size)[rank]", "order[rank::size]"), "by-label", "not consecutive parts",
    ),
    # start
    "parameters only": ("start", edited("start", "model.state_dict().values()", "model.parameters()", ".flatten().float()", ".detach().flatten().float()",
                        "tensor.copy_(", "tensor.data.copy_("), "buffer equal root message", "leaves out the buffers"),
    "not unpacked": ("start", edited("start", "    unpack(model, buffer)\n", ""), "equal root message", "still has its own model"),
    "rank 1 is the root": ("start", edited("start", "root=0", "root=1"), "root", "another rank's model"),
    "pickled": ("start", edited("start", "comm.Bcast(buffer, root=0)", "buffer = comm.bcast(buffer, root=0)"), "message", "comm.bcast pickles"),
    "tensor by tensor": (
        "start",
        edited("start", "    buffer = pack(model)\n    comm.Bcast(buffer, root=0)\n    unpack(model, buffer)\n",
               "    for tensor in model.state_dict().values():\n        comm.Bcast(tensor.numpy(), root=0)\n"),
        "message", "more than once",
    ),
    "unpack forgets": ("start", edited("start", "tensor.copy_(part.view_as(tensor))", "tensor = part.view_as(tensor)"),
                       "buffer equal root message", "leaves the model as it was"),
    "double": ("start", edited("start", ".float() for", ".double() for"), "buffer message", "another type than float32"),
    "fractions cut off": ("start", edited("start", "part = part.round()", "part = part.trunc()"), "buffer", "4.75 becomes 5"),
    "one rank waits": ("start", edited("start", "    comm.Bcast", "    if comm.Get_rank() == 0:\n        comm.Barrier()\n    comm.Bcast"),
                       "buffer equal root message", "make different calls"),
    # worker
    "never averaged": ("worker", edited("worker", "                average(model)\n", "                pass\n"),
                       "once schedule", "was never called"),
    "one order": ("worker", edited("worker", "batches.set_epoch(epoch)", "batches.set_epoch(epochs[0])"), "training time", "one order"),
    "order never set": ("worker", edited("worker", "        batches.set_epoch(epoch)\n", ""), "training time", "set_epoch is not called"),
    "gradients pile up": ("worker", edited("worker", "            optimizer.zero_grad()\n", ""), "training time", "set to zero"),
    "evaluation mode": ("worker", edited("worker", "    model.train()\n", ""), "training time", "model.train()"),
    "momentum": ("worker", edited("worker", "lr=lr)", "lr=lr, momentum=0.5)"), "training time", "not those of plain SGD"),
    "the optimiser's states averaged": (
        "worker",
        edited("worker", "lr=lr)", "lr=lr, momentum=0.5)", "                average(model)\n", """
                states = copy.deepcopy(model)
                for state, p in zip(states.parameters(), model.parameters()):
                    state.data = optimizer.state[p]["momentum_buffer"]
                average(states)
"""),
        "training once time", "not those of plain SGD",
    ),
    "counted anew": ("worker", edited("worker", "        batches.set_epoch(epoch)\n", "        batches.set_epoch(epoch)\n        steps = 0\n",
                     "steps == last or", "(steps == len(batches) and epoch == epochs[-1]) or"), "schedule", "of each epoch anew"),
    "no remainder": ("worker", edited("worker", "steps == last or (every and", "steps == last and not every or (every and"),
                     "schedule", "not averaged"),
    "twice at the end": ("worker", edited("worker", "    return time", "    average(model)\n    return time"),
                         "once schedule time", "after the last step"),
    "each epoch": ("worker", edited("worker", "steps == last or", "steps % len(batches) == 0 or"), "once schedule", "once, after the last step"),
    "no barrier": ("worker", edited("worker", "    comm.Barrier()\n", ""), "time", "no barrier"),
    "clock before the barrier": (
        "worker", edited("worker", "    comm.Barrier()\n    start = time.process_time()\n", "    start = time.process_time()\n    comm.Barrier()\n"),
        "time", "waiting at the barrier",
    ),
    "averaging in both": ("worker", edited("worker", " - not_mine", ""), "time", "contain those of the averaging"),
    "wall clock": ("worker", edited("worker", "time.process_time()", "time.perf_counter()"), "time", "wall clock"),
    "processor time of waiting": ("worker", edited("worker", "time.perf_counter()", "time.process_time()"), "time", "leaves out waiting"),
    "the last averaging's seconds": ("worker", edited("worker", "averaging += time.perf", "averaging = time.perf"), "time", "are missing"),
    "no seconds": ("worker", edited("worker", "    return time.process_time() - start - not_mine, averaging\n", ""), "time", "pair of numbers"),
    # averaging
    "nothing sent": ("averaging", ALONE, "mean everywhere weights one-buffer", "memory of its own"),
    "a sum": ("averaging", edited("averaging", " / total[-1]", ""), "mean everywhere weights one-buffer", "rank 0"),
    "alike": ("averaging", edited("averaging", "samples * pack(model), np.float32(samples)", "pack(model), np.float32(1)"),
              "weights", "every rank counts alike"),
    "own samples": ("averaging", edited("averaging", "total[:-1] / total[-1]", "total[:-1] / (samples * comm.Get_size())"),
                    "weights", "rank 0's own samples"),
    "eight bytes": ("averaging", edited("averaging", "samples * pack(model)", "samples * pack(model).astype(float)",
                    "total[:-1] / total[-1]", "(total[:-1] / total[-1]).astype(np.float32)"), "one-buffer", "send float32"),
    "rank 0 alone": ("averaging", edited("averaging", ALL, REDUCED.replace("Reduce(", "Reduce("), "    unpack(", "    if comm.Get_rank() == 0:\n        unpack("),
                     "everywhere one-buffer", "not every rank"),
    "silent": ("averaging", edited("averaging", "unpack(model, total[:-1] / total[-1])", "model = total[:-1] / total[-1]"),
               "mean everywhere weights one-buffer", "as it was"),
    "the whole pickled": ("averaging", edited("averaging", ALL, "total = comm.allreduce(mine)"), "one-buffer", "pickled"),
    "each tensor": (
        "averaging",
        """
def average_models(comm, model, samples):
    total = comm.allreduce(samples)
    for tensor in model.state_dict().values():
        mine = tensor.float() * samples
        result = torch.empty_like(mine)
        comm.Allreduce(mine, result)
        tensor.copy_(result / total)
""",
        "one-buffer", "several messages",
    ),
    "other objects": (
        "averaging",
        edited("averaging", "    unpack(", "    for module in list(model.modules()):\n        for name, p in list(module._parameters.items()):\n"
               "            if p is not None: module._parameters[name] = nn.Parameter(p.detach().clone())\n    unpack("),
        "everywhere", "other parameter objects",
    ),
    "both send first": (
        "averaging",
        edited("averaging", f"    {ALL}", "    comm.send(mine, dest=(comm.Get_rank() + 1) % comm.Get_size())\n    comm.recv()\n"
               f"    {ALL}"),
        "mean everywhere weights one-buffer", "deadlock",
    ),
    # reduce
    "mean of the accuracies": (
        "reduce", edited("reduce", "return total[0] / total[2], total[1] / total[2], slowest",
                         "return total[0] / total[2], mean_accuracy / comm.Get_size(), slowest",
                         "    if comm.Get_rank() != 0:", "    mean_accuracy = comm.reduce(correct / images)\n    if comm.Get_rank() != 0:"),
        "accuracy", "mean of the ranks' accuracies",
    ),
    "own time": ("reduce", edited("reduce", "comm.reduce(seconds, op=MPI.MAX, root=0)", "seconds"), "slowest", "rank 0's own time"),
    "added times": ("reduce", edited("reduce", "op=MPI.MAX, ", ""), "slowest", "at the same time"),
    "everywhere": ("reduce", edited("reduce", "    if comm.Get_rank() != 0:\n        return None\n", "", REDUCED, ALL), "root", "another rank"),
    "rank 0 does not call": (
        "reduce", edited("reduce", "    comm.Reduce", "    if comm.Get_rank() == 0:\n        return 0.0, 0.0, 0.0\n    comm.Reduce"),
        "accuracy slowest root", "deadlock",
    ),
    # speedup-table
    "upside down": ("speedup-table", edited("speedup-table", "(seconds, alone / seconds,", "(seconds, seconds / alone,"), "speedup", "upside down"),
    "not per worker": ("speedup-table", edited("speedup-table", "alone / seconds / P)", "alone / seconds)"), "efficiency", "divided by the number"),
    # program
    "no common start": ("program", edited("program", "    broadcast_state(comm, model)\n", ""), "training evaluation report", "start with one model"),
    "the whole share": ("program", edited("program", "[:len(data.train) // size]", ""), "training evaluation report", "make different calls"),
    "never averages": ("program", edited("program", "        average_models(comm, model, len(mine))\n", "        pass\n"),
                       "training evaluation report", "never averaged"),
    "one dropout": ("program", edited("program", "args.seed + rank)", "args.seed)"), "training evaluation report", "same dropout masks"),
    "epoch 0 again": ("program", edited("program", "[epoch]", "[0]"), "training evaluation report", "once for each epoch"),
    "all test images": ("program", edited("program", "rank=rank, world_size=size, ", ""), "evaluation", "all test images"),
    "every rank reports": (
        "program", edited("program", "        if rank == 0:\n            so_far += tested[2]\n", "        tested = tested or trained or (0.0, 0.0, 0.0)\n        trained = trained or tested\n        if True:\n            so_far += tested[2]\n"),
        "report", "another rank than 0 reports",
    ),
    "all images of the shares": ("program", edited("program", "size * len(batches) * args.batch_size", "size * len(mine)"),
                                 "report", "full batches"),
    "the notebook's data": ("program", edited("program", "train_samples=args.train_samples", "train_samples=1000"),
                            "training evaluation report", "load(args.dataset"),
    "not saved": ("program", edited("program", "        run.save_model(model)\n", "        pass\n"), "report", "does not save"),
    "seconds of one epoch": ("program", edited("program", "so_far += ", "so_far = "), "report", "sum of the epochs' seconds"),
    "clock beside the training": (
        "program", edited("program", "        start = time.perf_counter()\n", "", "        seconds = time", "        start = time.perf_counter()\n        seconds = time"),
        "report", "before and after it",
    ),
    "clock around the evaluation": (
        "program", edited("program", "        start = time.perf_counter()\n", "",
                          "        seconds = time.perf_counter() - start\n        trained = reduce_results(comm, *evaluate(model, trained_on, loss_fn), seconds)\n",
                          "        start = time.perf_counter()\n        results = evaluate(model, trained_on, loss_fn)\n        seconds = time.perf_counter() - start\n"
                          "        trained = reduce_results(comm, *results, seconds)\n"),
        "report", "before and after it",
    ),
    "clock around the evaluation, too": (
        "program", edited("program", "        seconds = time.perf_counter() - start\n        trained = reduce_results(comm, *evaluate(model, trained_on, loss_fn), seconds)\n",
                          "        results = evaluate(model, trained_on, loss_fn)\n        seconds = time.perf_counter() - start\n"
                          "        trained = reduce_results(comm, *results, seconds)\n"),
        "report", "contain the evaluation",
    ),
    "clock around the loading, too": (
        "program", edited("program", "        start = time.perf_counter()\n", "        start = start if epoch == 0 else time.perf_counter()\n",
                          "    data = load(", "    start = time.perf_counter()\n    data = load("),
        "report", "contain the loading",
    ),
    "processor time": ("program", edited("program", "time.perf_counter()", "time.process_time()"), "report", "processor time"),
    "a fixed number of seconds": ("program", edited("program", "time.perf_counter() - start", "30.0"), "report", "before and after it"),
    "rank 0's clock": ("program", edited("program", "so_far += tested[2]", "so_far += seconds"), "report", "of the slowest rank"),
    "no state": ("program", edited("program", "    return model.state_dict()\n", ""), "training evaluation report", "state dict"),
    # align
    "outputs only": ("align", edited("align", '            found[f"{outer}.weight"] = inputs.reshape(weight.shape)\n', "            pass\n"),
                     "same match", "another function"),
    "changes its input": ("align", edited("align", "found = dict(second)", "found = second"), "same match", "work on a copy"),
    "nothing": ("align", edited("align", "best_matching(mine @ theirs.T)", "torch.arange(len(mine))"), "same match", "changed its place"),
    "one pass": ("align", edited("align", "range(20)", "range(1)"), "match", "no order changes"),
    "no bias": ("align", edited("align", "bias[:, None], leave]", "leave]"), "match", "no order changes"),
    "least similar": ("align", edited("align", "best_matching(mine @ theirs.T)", "best_matching(-mine @ theirs.T)"), "match", "put in another order"),
}  # fmt: skip
