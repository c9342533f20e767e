"""Lab 07: other right answers, and what each mistake loses. The judges of what ranks do together name their mistakes."""

from answer_sources import edited

COSTLY = ("worker", "server", "backup")  # processes that wait for each other

# Of the mistakes in `course_lib.exercises.answers.lab07`: parts that are lost → their names.
LOSES = {
    "worker": {
        "message": "goodbye, sends parameters, another version", "parameters": "read too early, not unpacked",
        "version": "a float, one more, nothing",
    },
    "server": {
        "parameters": "older parameters, added",
        "parameters staleness": "no step",
        "parameters versions staleness": "first goodbye",
        "versions": "goodbye, one version behind",
        "staleness": "one too many, never stale, the version, its own step, from 0, nothing",
    },
    "stale-step": {
        "rate groups restored": "plain, by the staleness, multiplied, many steps", "groups": "first group",
        "restored": "not restored",
    },
    "backup": {"together late dropped": "the sum, a step each, no version"},
}  # fmt: skip

BEGINNING = """
def synchronise(model):
    for tensor in {tensors}:
        {send}
"""
AVERAGE = """
def average_gradients(model, samples):
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    vector = torch.cat([samples * g.flatten() for g in gradients] + [torch.tensor([float(samples)])])
    dist.all_reduce(vector)
    pieces = (vector[:-1] / vector[-1]).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces):
        p.grad = torch.empty_like(p).copy_(piece.view_as(p))
"""
SLIDES = """
def average_gradients(model, samples):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""
STATISTICS = """
def average_statistics(model):
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
"""
THROUGH = """
def step_through_server(model, optimizer):
    parameters, ranks = list(model.parameters()), dist.get_world_size()
    sizes = [p.numel() for p in parameters]
    vector = torch.cat([p.grad.flatten() for p in parameters])
    if dist.get_rank() != 0:
        dist.isend(vector, dst=0).wait()
        arriving = torch.empty_like(vector)
        dist.irecv(arriving, src=0).wait()
        nn.utils.vector_to_parameters(arriving, parameters)
        return
    total, arriving = vector.clone(), torch.empty_like(vector)
    for rank in range(1, ranks):
        dist.recv(arriving)
        total += arriving
    for p, piece in zip(parameters, (total / ranks).split(sizes)):
        p.grad = piece.view_as(p).clone()
    optimizer.step()
    for rank in range(1, ranks):
        dist.send(nn.utils.parameters_to_vector(parameters).detach(), dst=rank)
"""
SERVE = """
def serve(model, optimizer, workers, step=None):
    request, answer = message_for(model), message_for(model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    version, working, updates = 0, workers, []
    while working:
        worker = dist.recv(request)
        if request[0] == GOODBYE:
            working -= 1
            continue
        unpack(request, [p.grad for p in model.parameters()])
        step(optimizer, version - int(request[1]))
        updates.append((worker, version - int(request[1])))
        version += 1
        pack(answer, GRADIENT, version, list(model.parameters()))
        dist.send(answer, dst=worker)
    return updates
"""
IN_TURNS = """
def serve(model, optimizer, workers, step=None):
    request, answer, updates = message_for(model), message_for(model), []
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    while True:
        for worker in range(1, workers + 1):
            dist.recv(request, src=worker)
            if request[0] == GOODBYE:
                return updates
            unpack(request, [p.grad for p in model.parameters()])
            step(optimizer, 0)
            updates.append((worker, 0))
            pack(answer, GRADIENT, len(updates), list(model.parameters()))
            dist.send(answer, dst=worker)
"""
THREADS = """
import queue
import threading

def serve(model, optimizer, workers, step=None):
    arrived, updates, version, left = queue.Queue(), [], 0, set(range(1, workers + 1))
    def listen(rank):
        while True:
            message = message_for(model)
            dist.irecv(message, src=rank).wait()
            arrived.put((rank, message))
            if message[0] == GOODBYE:
                return
    for rank in left:
        threading.Thread(target=listen, args=(rank,), daemon=True).start()
    while left:
        rank, message = arrived.get()
        if message[0] == GOODBYE:
            left.discard(rank)
            continue
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        unpack(message, [p.grad for p in model.parameters()])
        step(optimizer, int(version - message[1]))
        updates.append([rank, float(version - message[1])])
        version += 1
        answer = message_for(model)
        pack(answer, GRADIENT, version, model.parameters())
        dist.send(answer, dst=rank)
    return tuple(updates)
"""
BACKUP = """
def serve_first(model, optimizer, workers, needed):
    message, answer, kept, version, gone, dropped = message_for(model), message_for(model), [], 0, 0, []
    while gone < workers:
        rank = dist.recv(message)
        if message[0] == GOODBYE:
            gone += 1
            continue
        late = int(message[1]) != version
        if late:
            dropped.append(rank)
        else:
            kept.append((rank, message[2:].clone()))
            if len(kept) < needed:
                continue
            mean = torch.stack([gradient for _, gradient in kept]).mean(0)
            for p, piece in zip(model.parameters(), mean.split([p.numel() for p in model.parameters()])):
                p.grad = piece.view_as(p)
            optimizer.step()
            version += 1
        pack(answer, GRADIENT, version, list(model.parameters()))
        for each in [rank] if late else [worker for worker, _ in kept]:
            dist.send(answer, dst=each)
        kept = kept if late else []
    return dropped
"""


def beginning(tensors="model.state_dict().values()", send="dist.broadcast(tensor, src=0)"):
    return BEGINNING.format(tensors=tensors, send=send)


RIGHT = {
    "initial": [
        """
def synchronise(model):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, tensor.detach())
            tensor.copy_(everyones[0])
""",
        beginning("[*model.parameters(), *model.buffers()]", "dist.broadcast(tensor.data, 0)"),
    ],
    "average": [
        AVERAGE,
        edited(
            AVERAGE,
            "g.flatten()",
            "g.reshape(-1)",
            "torch.empty_like(p).copy_(piece.view_as(p))",
            "piece.view_as(p).clone()",
        ),
        edited(AVERAGE, "g.flatten()", "g.contiguous().view(-1)"),
    ],
    "statistics": [
        """
def average_statistics(model):
    for name, tensor in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
"""
    ],
    "sync-server": [THROUGH],
    "worker": [
        """
def push_and_pull(model, version):
    gradients = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.send(torch.cat([torch.tensor([GRADIENT, version]), gradients]), 0)
    answer = torch.empty(len(gradients) + 2)
    dist.recv(answer, 0)
    torch.nn.utils.vector_to_parameters(answer[2:], model.parameters())
    return int(answer[1].item())
"""
    ],
    "server": [SERVE, THREADS],
    "backup": [BACKUP],
}

_GRADIENT = """
def staleness_aware_step(optimizer, staleness):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad /= staleness + 1
    optimizer.step()
"""
_MEAN = "even uneven edges one-message"
_ALL = "one-step values bytes"
_OF = {
    "initial": {
        "parameters only": (beginning("[p.data for p in model.parameters()]"), "buffers", "state_dict() has both"),
        "from rank 1": (beginning(send="dist.broadcast(tensor, src=1)"), "parameters buffers", "another rank's"),
        "the mean": (beginning(send="""if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()"""), "parameters buffers", "are the mean"),
        "nothing is sent": (beginning(send="pass"), "parameters buffers", "still have their own"),
    },
    "average": {
        "the sum": (edited(AVERAGE, "vector[:-1] / vector[-1]", "vector[:-1]", "samples * g", "g"), _MEAN, "the ranks' sum"),
        "the plain mean": (edited(AVERAGE, "/ vector[-1]", "/ dist.get_world_size()", "samples * g", "g"), "uneven edges",
                           "counts as much as another"),
        "the slides'": (SLIDES, "uneven edges one-message", "counts as much as another"),
        "not divided": (edited(AVERAGE, "vector[:-1] / vector[-1]", "vector[:-1]"), _MEAN, "weighted sum; divide"),
        "by the ranks": (edited(AVERAGE, "/ vector[-1]", "/ dist.get_world_size()"), _MEAN, "not by their images"),
        "nothing summed": (edited(AVERAGE, "    dist.all_reduce(vector)\n", ""), _MEAN, "nothing was summed"),
        "frozen, too": (edited(AVERAGE, " if p.requires_grad]", "]"), "edges", "a frozen parameter"),
        "a view": (edited(AVERAGE, "g.flatten()", "g.view(-1)"), "edges", "view size is not compatible"),
        "by memory": (edited(AVERAGE, "g.flatten()", "g.as_strided((g.numel(),), (1,))"), "edges", "channels-last"),
        "joined backwards": (edited(AVERAGE, "for g in gradients]", "for g in gradients[::-1]]"), _MEAN, "cut at the right"),
        "two messages": (edited(AVERAGE, "    dist.all_reduce(vector)\n", "    dist.all_reduce(vector[:9])\n    dist.all_reduce(vector[9:])\n"),
                         "one-message", "several collectives"),
        "twice as long": (edited(AVERAGE, "    dist.all_reduce(vector)\n", "    vector = vector.double()\n    dist.all_reduce(vector)\n    vector = vector.float()\n"),
                          "one-message", "is longer than"),
        "gathered": (edited(AVERAGE, "    dist.all_reduce(vector)\n", """    each = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(each, vector)
    vector = sum(each)
"""), "one-message", "other collectives"),
    },
    "statistics": {
        "the sum": (edited(STATISTICS, "            buffer /= dist.get_world_size()\n", ""), "mean kept", "are the ranks' sums"),
        "rank 0's": (edited(STATISTICS, "dist.all_reduce(buffer)\n            buffer /= dist.get_world_size()", "dist.broadcast(buffer, 0)"),
                     "mean kept", "what DDP does"),
        "counters, too": (edited(STATISTICS, "buffer.is_floating_point()", "True", "buffer /= ", "buffer[...] = buffer / "),
                          "kept", "num_batches_tracked changed"),
        "parameters, too": (edited(STATISTICS, "model.buffers():", "[*model.buffers(), *(p.data for p in model.parameters())]:",
                                   "buffer /= dist.get_world_size()", "buffer /= dist.get_world_size() - 1e-3 * (buffer.dim() > 1)"),
                            "kept", "parameters changed"),
        "nothing": (edited(STATISTICS, "dist.all_reduce(buffer)\n            buffer /= dist.get_world_size()", "pass"), "mean kept", "still have their own"),
    },
    "sync-server": {
        "the sum": (edited(THROUGH, "(total / ranks)", "(total / 1)"), _ALL, "divide it by the number of ranks"),
        "others' mean": (edited(THROUGH, "(total / ranks)", "(total / (ranks - 1))"), _ALL, "rank 0 has a gradient, too"),
        "its own": (edited(THROUGH, "(total / ranks)", "vector"), _ALL, "its own gradient alone"),
        "a mean of optimiser states": (edited(THROUGH, "    for p, piece in zip(parameters, (total", "    optimizer.step()\n    for p, piece in zip(parameters, (total",
                                              "p.grad = piece.view_as(p).clone()\n    optimizer.step()\n",
                                              "optimizer.state[p]['momentum_buffer'] = piece.view_as(p).clone()\n"), _ALL, ""),
        "not taken over": (edited(THROUGH, "        nn.utils.vector_to_parameters(arriving, parameters)\n", ""), "values bytes", "does not have rank 0's"),
        "a step each": ("""
def step_through_server(model, optimizer):
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    vector = torch.cat([p.grad.flatten() for p in parameters])
    if dist.get_rank() != 0:
        dist.send(vector, dst=0)
        dist.recv(vector, src=0)
        nn.utils.vector_to_parameters(vector, parameters)
        return
    for rank in range(dist.get_world_size()):
        if rank:
            dist.recv(vector, src=rank)
        for p, piece in zip(parameters, (vector / dist.get_world_size()).split(sizes)):
            p.grad = piece.view_as(p).clone()
        optimizer.step()
    for rank in range(1, dist.get_world_size()):
        dist.send(nn.utils.parameters_to_vector(parameters).detach(), dst=rank)
""", _ALL, "steps once per gradient"),
        "one by one, twice": (edited(THROUGH, "        dist.recv(arriving)\n", "        dist.recv(arriving, src=rank)\n" * 2,
                                     "        dist.isend(vector, dst=0).wait()\n", "        dist.isend(vector, dst=0).wait()\n" * 2), "bytes", "rank 0's link"),
        "an all-reduce": ("""
def step_through_server(model, optimizer):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    (optimizer or torch.optim.SGD(model.parameters(), lr=0.1)).step()
""", _ALL, "build it from send, recv"),
    },
    "worker": {
        "nothing is returned": ("\ndef push_and_pull(model, version):\n    return version\n", "message parameters version", "not [GRADIENT"),
        "asks for nothing": ("""
def push_and_pull(model, version):
    answer = message_for(model)
    dist.recv(answer, src=0)
    return int(answer[1])
""", "message parameters version", "deadlock"),
    },
    "server": {
        "late pairs": (edited(SERVE, "updates.append((worker, version - int(request[1])))", "updates.append(worker)"), "staleness", "should call step"),
        "in turns": (IN_TURNS, "parameters versions staleness", "deadlock"),
    },
    "stale-step": {
        "the gradient divided": (_GRADIENT, "rate groups restored", "is not one step"),
        "half": (edited(_GRADIENT, "staleness + 1", "2"), "rate groups restored", "is not one step"),
    },
    "backup": {
        "waits for all": (edited(BACKUP, "len(kept) < needed", "len(kept) < workers - gone", "int(message[1]) != version", "False"), "late dropped", "deadlock"),
        "applies late ones": (edited(BACKUP, "int(message[1]) != version", "False"), "late dropped", ""),
        "drops without an answer": (edited(BACKUP, "            dropped.append(rank)\n", "            dropped.append(rank)\n            continue\n"), "late dropped", "deadlock"),
        "counts nobody": (edited(BACKUP, "return dropped", "return []"), "dropped", "the workers whose gradients"),
        "waits for a while": ("""
import time

def serve_first(model, optimizer, workers, needed):
    gone, version, answer, sizes = 0, 0, message_for(model), [p.numel() for p in model.parameters()]
    while gone < workers:
        kept, end = {}, time.monotonic() + 0.2
        while time.monotonic() < end or not kept:
            message = message_for(model)
            rank = dist.recv(message)
            if message[0] == GOODBYE:
                gone += 1
                if gone == workers:
                    return []
            else:
                kept[rank] = message[2:]
            if len(kept) == workers - gone:
                break
        mean = sum(kept.values()) / len(kept)
        for p, piece in zip(model.parameters(), mean.split(sizes)):
            p.grad = piece.view_as(p)
        optimizer.step()
        version += 1
        pack(answer, GRADIENT, version, list(model.parameters()))
        for rank in kept:
            dist.send(answer, dst=rank)
""", "late dropped", "deadlock"),
    },
}  # fmt: skip
WRONG = {f"{exercise}: {name}": (exercise, *rest) for exercise, some in _OF.items() for name, rest in some.items()}

SAYS = {}
