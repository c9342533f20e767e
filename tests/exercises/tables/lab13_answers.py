"""Lab 13: other right answers, and what each known mistake loses. Answers are sources."""

from answer_sources import Notebook

# Of the mistakes in `course_lib.exercises.answers.lab13`: parts that are lost → their names.
LOSES = {
    "ledger": {
        "storages": "tensors",
        "weights state storages frozen": "float32, numbers",
        "frozen": "as large as weights",
        "state": "without counters, twice the weights",
    },
    "reshard": {
        "padding": "padding stays, no padding",
        "whole padding": "everything, the first",
    },
}

OURS = Notebook("13_sharding")
edited, instead = OURS.edited, OURS.instead

_SCATTER = """
def reduce_scatter(vector):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, other = vector.view(ranks, -1), torch.empty(len(vector) // ranks, dtype=vector.dtype)
    total = mine[rank].clone()
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        work = dist.isend(mine[to].contiguous(), to)
        dist.recv(other, source)
        work.wait()
        total += other
    return total
"""
_ALTERNATE = "sorted(range(len(sizes)), key=lambda place: -sizes[place])"

RIGHT = {
    "reduce-scatter": [_SCATTER],
    "zero1": [edited("zero1", "dist.broadcast(p.data, src=owner)", "dist.broadcast(p.detach(), owner)")],
    "zero2": [edited("zero2", "            p.data = view\n", "            pass\n", "        self.vector.copy_(whole)\n",
        "        for p, new in zip(self.parameters, unflatten(whole, [p.shape for p in self.parameters])):\n            p.data.copy_(new)\n")],
}  # fmt: skip

# Name → exercise, source, parts that are lost, words of the reason.
WRONG = {
    "views counted": ("ledger", edited("ledger", "nbytes([p.grad for p in parameters if p.grad is not None])", "sum(p.grad.nbytes for p in parameters if p.grad is not None)",
        "nbytes([each for each in entries if isinstance(each, torch.Tensor)])", "sum(each.nbytes for each in entries if isinstance(each, torch.Tensor))"), "storages", ""),
    "gradient cleared": ("zero2", edited("zero2", "        self.vector.copy_(whole)\n", "        self.vector.copy_(whole)\n        self.optimizer.zero_grad()\n"), "gradients", "is not the mean gradient"),
    "another name": ("zero2", edited("zero2", "self.shard", "self.mine"), "gradients", "is not the mean gradient"),
    "one gradient": ("ledger", edited("ledger", "p.grad for p in parameters if", "p.grad for p in parameters[:1] if"), "weights storages frozen", ""),
    "not cut anew": ("reshard", "def reshard(shards, numbers, ranks, rank):\n    return shards[rank % len(shards)]\n", "whole padding", "join the shards"),
    "state everywhere": ("zero1", edited("zero1", "if owner == rank]", "]"), "state balance frozen", "keeps the state of all"),
    "nothing sent": ("zero1", edited("zero1", "            dist.broadcast(p.data, src=owner)\n", "            pass\n"),
        "values bytes frozen few", "each owner broadcasts"),
    "from rank 0": ("zero1", edited("zero1", "src=owner", "src=0"), "values bytes frozen few", ""),
    "in turn": ("zero1", edited("zero1", "loads.index(min(loads))\n", "place % len(loads)\n"), "balance", "the largest first"),
    "as they come": ("zero1", edited("zero1", _ALTERNATE, "range(len(sizes))"), "balance", "the largest first"),
    "sent as sums": ("zero1", edited("zero1", "            dist.broadcast(p.data, src=owner)\n",
        "            p.data.mul_(owner == dist.get_rank())\n            dist.all_reduce(p.data)\n"), "bytes frozen", "something else than broadcasts"),
    "sent twice": ("zero1", edited("zero1", "            dist.broadcast(p.data, src=owner)\n", 2 * "            dist.broadcast(p.data, src=owner)\n"),
        "bytes frozen", "once per step"),
    "frozen ones are sent": ("zero1", edited("zero1", "[p for p in parameters if p.requires_grad]", "list(parameters)"), "frozen", ""),
    "an empty optimiser": ("zero1", edited("zero1", "make(own) if own else None", "make(own)"), "few", "empty parameter list"),
    "all reduce": ("reduce-scatter", "def reduce_scatter(vector):\n    total = vector.clone()\n    dist.all_reduce(total)\n"
        "    return total.chunk(dist.get_world_size())[dist.get_rank()]\n", "bytes", "as much as an all-reduce"),
    "whole vectors": ("reduce-scatter", edited("reduce-scatter", "torch.empty_like(parts[rank])", "torch.empty_like(vector)",
        "dist.isend, parts[other]", "dist.isend, vector", "total += part", "total += part.chunk(ranks)[rank]"), "bytes", "(N − 1)/N"),
    "own part": ("reduce-scatter", "def reduce_scatter(vector):\n    return vector.chunk(dist.get_world_size())[dist.get_rank()].clone()\n",
        "values kept bytes", "nothing is added up"),
    "changed": ("reduce-scatter", edited("reduce-scatter", "parts[rank].clone()", "parts[rank]"), "kept", "was changed"),
    "the mean": ("reduce-scatter", edited("reduce-scatter", "return total", "return total / ranks"), "values kept bytes", "it is the mean"),
    "all reduce in stage 2": ("zero2", edited("zero2", "self.shard.grad = reduce_scatter(gradient) / ranks",
        "dist.all_reduce(gradient)\n        self.shard.grad = gradient.chunk(ranks)[dist.get_rank()] / ranks"), "bytes", "it calls all_reduce"),
    "the sum": ("zero2", edited("zero2", "reduce_scatter(gradient) / ranks", "reduce_scatter(gradient)"),
        "values gradients bytes padding frozen", ""),
    "gradients are kept": ("zero2", edited("zero2", "            p.grad = None\n", "            pass\n"), "gradients", "p.grad = None"),
    "no all-gather": ("zero2", edited("zero2", "        whole, work = start_all_gather(self.shard)\n        work.wait()\n        self.vector.copy_(whole)\n", ""),
        "values gradients bytes padding frozen", "all-gather"),
    "state of everything": ("zero2", edited("zero2", "self.optimizer = make([self.shard])", "self.optimizer, self.whole = make([self.shard]), nn.Parameter(self.vector.clone())\n"
        "        self.whole.grad = torch.zeros_like(self.whole)\n        self.more = make([self.whole])",
        "        self.optimizer.step()\n", "        self.optimizer.step()\n        self.more.step()\n"), "state padding frozen", "more than its shard"),
    "never frees": ("zero3", edited("zero3", "        self.started = None\n        if self.after", "        if self.after", "            return tensor.shape,",
        "            return tensor\n            return tensor.shape,"), "free bytes prefetch", ""),
    "autograd keeps it": ("zero3", edited("zero3", "!= address", "!= 1"), "free prefetch", ""),
    "no prefetch": ("zero3", edited("zero3", "            self.after.start()\n", "            pass\n"), "prefetch", "in forward"),
    "no prefetch in backward": ("zero3", edited("zero3", "                self.before.start()\n", "                pass\n"), "prefetch", ""),
    "no reduction": ("zero3", edited("zero3", "reduce_scatter(gradient.contiguous()) / dist.get_world_size()",
        "gradient.chunk(dist.get_world_size())[dist.get_rank()]"), "values free bytes prefetch awkward", ""),
    "sum of gradients": ("zero3", edited("zero3", " / dist.get_world_size(), None", ", None"), "values free bytes prefetch awkward", ""),
    "keeps its own": ("zero3", edited("zero3", "            p.data = p.new_empty(0)\n", "            pass\n"), "shard awkward", "still in memory"),
    "all reduce in stage 3": ("zero3", edited("zero3", "        return reduce_scatter(gradient.contiguous()) / dist.get_world_size(), None",
        "        gradient = gradient.contiguous()\n        dist.all_reduce(gradient)\n"
        "        return gradient.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size(), None"), "bytes prefetch", "something else"),
}  # fmt: skip

SAYS = {}
