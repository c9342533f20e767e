"""Lab 14: other right answers, and what each known mistake loses. Answers are sources."""

from answer_sources import Notebook

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
        "memory choice none": "weights only, not by tensor, not by stage, one matrix, all kept, one kept, all divided, whole batch",
        "time choice none": "no bubble, p slots too many, two all-reduces, every layer, one way, no gradients, states too",
        "choice none": "memory forgotten, least memory",
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

RIGHT = {"conjugate": [_HOOKS], "orders": [_MERGED]}

_F_BACK, _G_BACK = "return _summed(gradient, ctx.group), None", "return gradient, None"
_ISEND = "requests.append((dist.isend(message, rank + 1, group=groups[0]), message))"
_ISEND_BACK = "requests.append((dist.isend(x.grad, rank - 1, group=groups[1]), x.grad))"

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "f without backward": ("conjugate", edited(OURS["conjugate"], _F_BACK, "return gradient, None"), "f kept group", "passes the gradient on"),
    "g sums twice": (
        "conjugate", edited(OURS["conjugate"], "    def backward(ctx, gradient):\n        return gradient, None",
                            "    def backward(ctx, gradient):\n        return _summed(gradient, None), None"),
        "g kept group", "sums the gradients",
    ),
    "f sums in forward": ("conjugate", edited(OURS["conjugate"], "return x.view_as(x)", "return _summed(x, group)"), "f kept group", "sums in forward"),
    "in place": ("conjugate", edited(OURS["conjugate"], "tensor.clone().contiguous()", "tensor.detach()"), "kept", "clone it first"),
    "no group": ("conjugate", edited(OURS["conjugate"], "dist.all_reduce(total, group=group)", "dist.all_reduce(total)"), "group", "group=group"),
    "no f": ("layers", edited(OURS["layers"], "copy_to_ranks(x, self.group)", "x"), "column-input group", "this rank's part only"),
    "no g": ("layers", edited(OURS["layers"], "sum_over_ranks(F.linear(x, self.weight), self.group)", "F.linear(x, self.weight)"), "row row-bias own group", "sum_over_ranks is missing"),
    "bias on each rank": (
        "layers", edited(OURS["layers"], "sum_over_ranks(F.linear(x, self.weight), self.group)\n        return total if self.bias is None else total + self.bias",
                         "sum_over_ranks(F.linear(x, self.weight, self.bias), self.group)\n        return total"),
        "row-bias group", "once by each rank",
    ),
    "a view": ("layers", edited(OURS["layers"], "part.clone(memory_format=torch.contiguous_format)", "part"), "own", "views of the whole"),
    "world's place": (
        "layers", edited(OURS["layers"], "dist.get_world_size(group)", "dist.get_world_size()", "dist.get_rank(group)", "dist.get_rank()"), "group", "dist.get_rank(group)",
    ),
    "columns for rows": ("layers", edited(OURS["layers"], "own_part(linear.weight, 0, group)", "own_part(linear.weight.T, 0, group).data.T"), "column column-input row row-bias own group", ""),
    "heads mixed": ("blocks", edited(OURS["blocks"], "qkv.weight.data[rows], qkv.bias.data[rows]", "qkv.weight.data, qkv.bias.data"), "attention divided messages group", "same whole heads"),
    "the whole MLP": (
        "blocks", edited(OURS["blocks"], "self.up = ColumnParallelLinear(mlp.up, group)", "self.up = mlp.up", "self.down = RowParallelLinear(mlp.down, group)", "self.down = mlp.down"),
        "mlp divided messages group", "parts of the whole gradient",
    ),
    "three layers for one": (
        "blocks", edited(OURS["blocks"], "F.gelu(self.up(x))", "F.gelu(F.linear(copy_to_ranks(copy_to_ranks(x, self.up.group) / dist.get_world_size(self.up.group), self.up.group), self.up.weight, self.up.bias))"), "mlp divided messages group", "",
    ),
    "summed once more": (
        "blocks", edited(OURS["blocks"], "return self.down(F.gelu(self.up(x)))", "out = self.down(F.gelu(self.up(x)))\n        again = out.detach().clone()\n        dist.all_reduce(again, group=self.up.group)\n        return out"),
        "messages", "one all-reduce in forward",
    ),
    "blocks without a group": ("blocks", edited(OURS["blocks"], "(mlp.up, group)", "(mlp.up)", "(mlp.down, group)", "(mlp.down)"), "group", "give `group`"),
    "never back": ("orders", _FIRST + "def one_forward_one_backward(s, p, m): return [('F', n) for n in range(m)]", "1f1b few", "1F1B"),
    "one after another": (
        "pipeline", edited(OURS["pipeline"], "for kind, n in order:", "for kind, n in [(kind, n) for n in range(len(inputs)) for kind in 'FB']:"), "order", "only one stage works",
    ),
    "GPipe always": (
        "pipeline", edited(OURS["pipeline"], "for kind, n in order:", "for kind, n in [(kind, n) for kind in 'FB' for n in range(len(inputs))]:"), "order", "not in the order",
    ),
    "a sum": ("pipeline", edited(OURS["pipeline"], " / len(inputs)", ""), "gradients loss order messages deadlock", "divide each loss"),
    "no loss": ("pipeline", edited(OURS["pipeline"], "return total", "return 0.0"), "loss", "does not return"),
    "blocking sends": (
        "pipeline", edited(OURS["pipeline"], _ISEND, "dist.send(message, rank + 1)", _ISEND_BACK, "dist.send(x.grad, rank - 1)"), "deadlock", "deadlock",
    ),
    "each gradient twice": ("pipeline", edited(OURS["pipeline"], _ISEND_BACK, _ISEND_BACK + "\n                " + "requests.append((dist.isend(x.grad, rank - 1, tag=1), x.grad))"), "messages", "one gradient back"),
    "free memory": ("plan", instead("plan", "def rank_bytes(model, plan): return 16 * rank_parameters(model, plan)"), "memory choice none", "the bytes are not"),
    "a step without computing": ("plan", edited(OURS["plan"], "tokens * model[\"seconds_per_token\"] / (t * p)", "0.0"), "one-time time choice none", "on one device"),
}  # fmt: skip

SAYS = {}
