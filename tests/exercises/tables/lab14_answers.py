"""Lab 14: other right answers, and what each known mistake loses. Answers are sources."""

from answer_sources import Notebook

COSTLY = ("plan",)  # a search among all plans

OURS = Notebook("14_model_parallel")
edited, instead = OURS.edited, OURS.instead

# Of the mistakes in `course_lib.exercises.answers.lab14`: parts that are lost → their names.
LOSES = {
    "orders": {
        "gpipe": "newest first, backwards first",
        "1f1b few": "GPipe again, one after another, one too many, first for last, stages for all",
        "few": "more than there are",
    },
    "plan": {
        "memory choice none": "weights only, not by tensor, not by stage, one matrix, all kept, one kept, all divided, whole batch, ZeRO forgotten, ZeRO for all",
        "time choice none": "no bubble, p slots too many, two all-reduces, every layer, one way, no gradients, states too",
        "choice none": "memory forgotten, least memory, never ZeRO, always ZeRO",
        "none": "something at least",
    },
}
_HOOKS = """
def copy_to_ranks(x, group=None):
    out = x.view_as(x)
    def summed(gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=group)
        return total
    out.register_hook(summed)
    return out

def sum_over_ranks(x, group=None):
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return x + (total - x.detach())
"""
_FIRST = "def gpipe(stage, stages, m): return [('F', n) for n in range(m)] + [('B', n) for n in range(m)]\n"
_MERGED = (
    _FIRST
    + "def one_forward_one_backward(s, p, m):\n"
    + "    slots = [(2 * n + s, 'F', n) for n in range(m)] + [(2 * n + 2 * p - 1 - s, 'B', n) for n in range(m)]\n"
    + "    return [list(each[1:]) for each in sorted(slots)]\n"
)

# Of equally fast plans the one with the most micro-batches.
_MANY = edited("plan", "key=lambda plan: step_seconds(model, plan, link)",
               "key=lambda plan: (float(f'{step_seconds(model, plan, link):.9e}'), plan['zero'], -plan['micro'])")  # fmt: skip

RIGHT = {
    "conjugate": [_HOOKS],
    "orders": [_MERGED],
    "plan": [_MANY, edited("plan", "for zero in (0, 1):", "for zero in (False, True):")],
}

_F_BACK, _G_BACK = "return _summed(gradient, ctx.group), None", "return gradient, None"
_ISEND = "requests.append((dist.isend(message, rank + 1, group=groups[0]), message))"
_ISEND_BACK = "requests.append((dist.isend(x.grad, rank - 1, group=groups[1]), x.grad))"

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "earlier gradients divided": ("pipeline", edited("pipeline", " / len(inputs)", "", "    return total", "    for p in stage.parameters():\n        p.grad /= len(inputs)\n    return total / len(inputs)"),
        "gradients order messages deadlock", ""),
    "earlier gradients cleared": ("pipeline", edited("pipeline", "    rank, last =", "    stage.zero_grad()\n    rank, last ="), "gradients order messages deadlock", ""),
    "no loss elsewhere": ("pipeline", edited("pipeline", "return total", "return total if rank == last else None"), "loss", "do not return 0.0"),
    "inputs with gradients": ("pipeline", edited("pipeline", "                x.requires_grad_()\n", "            x.requires_grad_()\n"), "gradients loss order messages deadlock", "floating point"),
    "the caller's bias": ("layers", edited("layers", "nn.Parameter(linear.bias.detach().clone())", "linear.bias"), "own", "parameters of its own"),
    "f without backward": ("conjugate", edited("conjugate", _F_BACK, "return gradient, None"), "f kept group", "passes the gradient on"),
    "g sums twice": (
        "conjugate", edited("conjugate", "    def backward(ctx, gradient):\n        return gradient, None",
                            "    def backward(ctx, gradient):\n        return _summed(gradient, None), None"),
        "g kept group", "sums the gradients",
    ),
    "f sums in forward": ("conjugate", edited("conjugate", "return x.view_as(x)", "return _summed(x, group)"), "f kept group", "sums in forward"),
    "in place": ("conjugate", edited("conjugate", "tensor.clone().contiguous()", "tensor.detach()"), "kept", "clone it first"),
    "no group": ("conjugate", edited("conjugate", "dist.all_reduce(total, group=group)", "dist.all_reduce(total)"), "group", "group=group"),
    "no f": ("layers", edited("layers", "copy_to_ranks(x, self.group)", "x"), "column-input group", "this rank's part only"),
    "no g": ("layers", edited("layers", "sum_over_ranks(F.linear(x, self.weight), self.group)", "F.linear(x, self.weight)"), "row row-bias own group", "sum_over_ranks is missing"),
    "bias on each rank": (
        "layers", edited("layers", "sum_over_ranks(F.linear(x, self.weight), self.group)\n        return total if self.bias is None else total + self.bias",
                         "sum_over_ranks(F.linear(x, self.weight, self.bias), self.group)\n        return total"),
        "row-bias group", "once by each rank",
    ),
    "a view": ("layers", edited("layers", "part.clone(memory_format=torch.contiguous_format)", "part"), "own", "views of the whole"),
    "world's place": ("layers", edited("layers", "dist.get_rank(group)", "dist.get_rank()"), "group", "raised"),
    "columns for rows": ("layers", edited("layers", "own_part(linear.weight, 0, group)", "own_part(linear.weight.T, 0, group).data.T"), "column column-input row row-bias own group", ""),
    "heads mixed": ("blocks", edited("blocks", "qkv.weight.data[rows], qkv.bias.data[rows]", "qkv.weight.data, qkv.bias.data"), "attention divided messages group", "same whole heads"),
    "the whole MLP": (
        "blocks", edited("blocks", "self.up = ColumnParallelLinear(mlp.up, group)", "self.up = mlp.up", "self.down = RowParallelLinear(mlp.down, group)", "self.down = mlp.down"),
        "mlp divided messages group", "parts of the whole gradient",
    ),
    "three layers for one": (
        "blocks", edited("blocks", "F.gelu(self.up(x))", "F.gelu(F.linear(copy_to_ranks(copy_to_ranks(x, self.up.group) / dist.get_world_size(self.up.group), self.up.group), self.up.weight, self.up.bias))"), "mlp divided messages group", "",
    ),
    "summed once more": (
        "blocks", edited("blocks", "return self.down(F.gelu(self.up(x)))", "out = self.down(F.gelu(self.up(x)))\n        again = out.detach().clone()\n        dist.all_reduce(again, group=self.up.group)\n        return out"),
        "messages", "one all-reduce in forward",
    ),
    "blocks without a group": ("blocks", edited("blocks", "(mlp.up, group)", "(mlp.up)", "(mlp.down, group)", "(mlp.down)"), "group", "give `group`"),
    "never back": ("orders", _FIRST + "def one_forward_one_backward(s, p, m): return [('F', n) for n in range(m)]", "1f1b few", "1F1B"),
    "one after another": (
        "pipeline", edited("pipeline", "for kind, n in order:", "for kind, n in [(kind, n) for n in range(len(inputs)) for kind in 'FB']:"), "order", "only one stage works",
    ),
    "GPipe always": (
        "pipeline", edited("pipeline", "for kind, n in order:", "for kind, n in [(kind, n) for kind in 'FB' for n in range(len(inputs))]:"), "order", "not in the order",
    ),
    "a sum": ("pipeline", edited("pipeline", " / len(inputs)", ""), "gradients loss order messages deadlock", "divide each loss"),
    "no loss": ("pipeline", edited("pipeline", "return total", "return 0.0"), "loss", "does not return"),
    "blocking sends": (
        "pipeline", edited("pipeline", _ISEND, "dist.send(message, rank + 1)", _ISEND_BACK, "dist.send(x.grad, rank - 1)"), "deadlock", "deadlock",
    ),
    "shapes in messages": (
        "pipeline", edited("pipeline", "                dist.recv(x, rank - 1", "                dist.recv(torch.zeros(2), rank - 1)\n                dist.recv(x, rank - 1",
                           "                " + _ISEND, "                shape = torch.tensor(message.shape).float()\n                requests.append((dist.isend(shape, rank + 1), shape))\n                " + _ISEND),
        "messages", "one gradient back",
    ),
    "free memory": ("plan", instead("plan", "def rank_bytes(model, plan): return 16 * rank_parameters(model, plan)"), "memory choice none", "the bytes are not"),
    "a step without computing": ("plan", edited("plan", "tokens * model[\"seconds_per_token\"] / (t * p)", "0.0"), "one-time time choice none", "on one device"),
}  # fmt: skip

SAYS = {}
