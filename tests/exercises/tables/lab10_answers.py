"""Lab 10: other right answers, and what each known mistake loses. Answers are sources."""

from answer_sources import Notebook

# Of the mistakes in `course_lib.exercises.answers.lab10`: parts that are lost → their names.
LOSES = {
    "fisher": {
        "order": "by rows",
        "mean": "a sum, product of means",
        "value order mean": "diagonal, classes alike, sign, zero",
    },
    "kron": {
        "times solve size": "not transposed, the slides', both transposed, stacked by rows, unstacked by rows",
        "solve size": "multiplied, G alone, A alone",
    },
    "factors": {
        "bias": "no bias, bias first",
        "a bias": "no mean, divided twice, N − 1, inputs changed",
        "g": "N² too small, N too small, N too large, gradients changed",
        "a bias g": "means first, covariance, rows by rows, swapped, no pair",
    },
    "precondition": {
        "damping": "A damped, G damped, undamped, each γ, no root, no π, π upside down, π², traces, damped after, "
        "damps in place",
        "product damping bias without": "multiplied, the gradient, no pair",
        "product damping bias": "bias apart, bias first",
        "product damping without": "transposed",
        "bias": "bias as it was, two dimensions",
        "without": "needs a bias",
    },
    "kfac": {
        "conv": "no convolutions",
        "linear conv average interval clip evaluation": "not written, bias not written",
        "average interval": "no average, the first for ever, decay swapped, sums",
        "interval": "every step, one late",
        "clip": "no clip, no root, longer too, no lr, weights only, lr not squared",
    },
    "assign": {
        "deal edges": "in turn, as they come, smallest first, squares, sums, one factor, weights, by number",
    },
    "conv-factors": {
        "a": "divided by N, divided by T, pixels first, no stride, no padding, no mean, inputs changed",
        "g": "mean over positions, T too large, mixed, N² too small, N too small, N too large, gradients changed",
        "a g": "added first, no pair",
    },
}

_FISHER = """
def softmax_fisher(weight, inputs):
    total = torch.zeros(weight.numel(), weight.numel())  # in float32
    for x in inputs.float():
        p = torch.softmax(weight.float() @ x, 0)
        for y, e in enumerate(torch.eye(len(p))):
            g = torch.outer(p - e, x).T.flatten()
            total += p[y] * torch.outer(g, g)
    return total / len(inputs)
"""
_LIKELIEST = """
def softmax_fisher(weight, inputs):
    spread = [p - (p == p.max()).double() for p in (inputs @ weight.T).softmax(1)]
    return sum(torch.outer(g, g) for g in map(torch.kron, inputs, spread)) / len(inputs)
"""
_FACTORS = """
def factors(activations, output_gradients):
    N, a = len(activations), nn.functional.pad(activations, (0, 1), value=1.0)
    return [torch.einsum("ni,nj->ij", a, a) / N, N * output_gradients.T.float() @ output_gradients.float()]
"""
_CONV = """
def conv_factors(images, g, kernel_size, stride, padding):
    u, g = nn.functional.unfold(images, kernel_size, padding=padding, stride=stride), g.flatten(2)
    return torch.einsum("nit,njt->ij", u, u) / (u.shape[0] * u.shape[2]), len(u) * torch.einsum("nit,njt->ij", g, g)
"""


def kron(times="torch.einsum('ab,bc,dc->ad', G, X, A)", solve="torch.linalg.inv(G) @ X @ torch.linalg.inv(A.T)"):
    return f"def kron_times(A, G, X): return {times}\ndef kron_solve(A, G, X): return {solve}"


_ITSELF = kron("(torch.kron(A, G) @ X.T.flatten()).view(X.T.shape).T")
_SYSTEM = kron(solve="torch.linalg.solve(torch.kron(A, G), X.T.flatten()).view(X.T.shape).T")
_SYMMETRIC = kron(solve="torch.linalg.inv(G) @ X @ torch.linalg.inv(A)")


def precondition(damping=1, scale=1, nothing=None):
    return f"""
def damped_inverses(A, G, damping):
    pi = math.sqrt(A.diagonal().mean() / G.diagonal().mean())
    A, G = A + pi * damping**0.5 * torch.eye(len(A)), G + {damping} * damping**0.5 / pi * torch.eye(len(G))
    return [torch.cholesky_inverse(torch.linalg.cholesky(each)) for each in (A, G)]

def precondition(w, b, A_inverse, G_inverse):
    V = {scale} * G_inverse @ (w if b is None else torch.column_stack([w, b])) @ A_inverse
    return (V, {nothing}) if b is None else (V[:, :-1], V[:, -1])
"""


OURS = Notebook("10_kfac")
edited, instead = OURS.edited, OURS.instead

_KFAC = """
class KFAC:
    def __init__(self, model, damping, decay, factor_interval, inverse_interval, kl_clip):
        self.options, self.steps, self.caught, self.kept = (damping, decay, factor_interval, inverse_interval, kl_clip), 0, {}, {}
        for layer in model.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                layer.register_forward_pre_hook(self.before)
                layer.register_full_backward_hook(self.behind)
                self.kept[layer] = {}

    def before(self, layer, inputs):
        if torch.is_grad_enabled():
            self.caught[layer] = [inputs[0].detach()]

    def behind(self, layer, _, gradients):
        self.caught[layer].append(gradients[0].detach())

    def step(self, lr):
        damping, decay, every, seldom, bound = self.options
        total, steps = 0.0, []
        for layer, kept in self.kept.items():
            rest = [] if isinstance(layer, nn.Linear) else [layer.kernel_size[0], layer.stride[0], layer.padding[0]]
            if self.steps % every == 0:
                new = (conv_factors if rest else factors)(*self.caught[layer], *rest)
                kept["factors"] = [a + (1 - decay) * (b - a) for a, b in zip(kept.get("factors", new), new)]
            if self.steps % seldom == 0:
                kept["inverses"] = damped_inverses(*kept["factors"], damping)
            bias = layer.bias.grad if layer.bias is not None else None
            w, b = precondition(layer.weight.grad.flatten(1), bias, *kept["inverses"])
            w = w.reshape(layer.weight.shape)
            total += (w * layer.weight.grad).sum() + (0 if b is None else (b * bias).sum())
            steps.append((layer, w, b))
        ratio = 1.0 if bound is None else min(1.0, math.sqrt(bound / (lr * lr * float(total))))
        for layer, w, b in steps:
            layer.weight.grad = ratio * w
            if b is not None:
                layer.bias.grad = ratio * b
        self.steps += 1
"""
_ASSIGN = """
import heapq

def assign_layers(sizes, world_size):
    heap, owners = [(0, rank) for rank in range(world_size)], {}
    for cost, layer in sorted((-(n**3) - m**3, layer) for layer, (n, m) in enumerate(sizes)):
        load, owners[layer] = heapq.heappop(heap)
        heapq.heappush(heap, (load - cost, owners[layer]))
    return [owners[layer] for layer in range(len(sizes))]
"""
_AVERAGE = """
def average_factors(pairs):
    flat = [each for pair in pairs for each in pair]
    vector = torch.cat([torch.cat([each[k, k:] for k in range(len(each))]) for each in flat])
    dist.all_reduce(vector, op=dist.ReduceOp.AVG)
    result, place = [], 0
    for each in flat:
        full = torch.zeros_like(each)
        for k in range(len(each)):
            full[k, k:] = full[k:, k] = vector[place : place + len(each) - k]
            place += len(each) - k
        result.append(full)
    return list(zip(result[::2], result[1::2]))
"""
_WHOLE = """
def average_factors(pairs):
    {prepare}
    result = [tuple(each.clone() for each in pair) for pair in pairs]
    for pair in result:
        for each in pair:
            dist.all_reduce(each)
            each /= dist.get_world_size()
    return result
"""
_STRATEGIES = """
def comm_opt(averages, owners, damping):
    everything = []
    for (A, G), owner in zip(averages, owners):
        vector = torch.empty(A.numel() + G.numel())
        if dist.get_rank() == owner:
            vector = torch.cat([each.flatten() for each in damped_inverses(A, G, damping)])
        dist.broadcast(vector, src=owner)
        parts = vector.split([A.numel(), G.numel()])
        everything.append((parts[0].view_as(A), parts[1].view_as(G)))
    return everything

def mem_opt(gradients, inverses, owners):
    found = []
    for (w, b), inverse, owner in zip(gradients, inverses, owners):
        columns = [w] if b is None else [w, b[:, None]]
        step = torch.cat(columns, 1)
        if inverse is not None:
            pair = precondition(w, b, *inverse)
            step = torch.cat([pair[0]] if b is None else [pair[0], pair[1][:, None]], 1)
        dist.broadcast(step, src=owner)
        found.append((step, None) if b is None else (step[:, :-1], step[:, -1]))
    return found
"""


RIGHT = {
    "fisher": [_FISHER],
    "kron": [kron()],
    "factors": [_FACTORS],
    "precondition": [precondition()],
    "conv-factors": [_CONV],
    "kfac": [_KFAC],
    "assign": [_ASSIGN],
    "average": [_AVERAGE],
    "strategies": [_STRATEGIES],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "inverses with the factors": (
        "kfac", Notebook("10_kfac").edited("kfac", "        if self.steps % self.inverse_interval == 0:\n            self.invert()\n", "            if self.steps % self.inverse_interval == 0:\n                self.invert()\n"),
        "interval", "",
    ),
    "likeliest class": ("fisher", _LIKELIEST, "value order mean", "it is not the Fisher"),
    "a corner": ("fisher", "def softmax_fisher(w, x): return x.T @ x", "value order mean", "another shape"),
    "the product itself": ("kron", _ITSELF, "size", "itself made?"),
    "the system itself": ("kron", _SYSTEM, "size", "itself made?"),
    "times not transposed": ("kron", kron("G @ X @ A"), "times size", "second factor is transposed"),
    "solve not transposed": ("kron", _SYMMETRIC, "solve size", "second factor is transposed"),
    "scaled": ("factors", "def factors(a, g): return a.T @ a / 3, 0.3 * g.T @ g", "a bias g", "mean of a aᵀ"),
    "nothing for the bias": (
        "factors", "def factors(a, g): return nn.functional.pad(a.T @ a / len(a), (0, 1, 0, 1)), 0.3 * g.T @ g",
        "bias g", "lacks the row and column",
    ),
    "twice the damping": ("precondition", precondition(damping=2), "damping", "π√γ on A"),
    "half the step": ("precondition", precondition(scale=0.5), "product damping bias without", "not that of G⁻¹"),
    "out of nothing": ("precondition", precondition(nothing="V[:, -1]"), "without", "the pair (weight, None)"),
    "pixels": (
        "conv-factors", "def conv_factors(x, g, *_): return [t.transpose(0, 1).flatten(1).cov() for t in (x, g)]",
        "a g", "a whole patch",
    ),
    "no hooks": (
        "kfac", edited("kfac", "            layer.register_forward_hook(self.watch)\n", "            pass\n"),
        "linear conv average interval clip evaluation", "not those that your factors",
    ),
    "hooks in every pass": (
        "kfac", edited("kfac", "        if layer.training and torch.is_grad_enabled():\n", "        if True:\n"), "evaluation", "an evaluation in eval mode",
    ),
    "the last input": (
        "kfac", edited("kfac", "        if layer.training and torch.is_grad_enabled():\n", "        self.last[layer] = inputs[0].detach()\n        if torch.is_grad_enabled():\n",
                       "self.seen[layer] = activations, gradient", "self.seen[layer] = None, gradient",
                       "            activations, gradients = self.seen[layer]\n", "            activations, gradients = self.last[layer], self.seen[layer][1]\n",
                       "self.seen = {}", "self.seen, self.last = {}, {}"),
        "evaluation", "",
    ),
    "no bias": (
        "kfac", edited("kfac", "precondition(*gradient, *inverses)",
                       "precondition(gradient[0], None if gradient[1] is None else 0 * gradient[1], *inverses)"),
        "linear conv average interval clip evaluation", "not those that your factors",
    ),
    "nothing is done": ("kfac", instead("kfac", "class KFAC:\n    def __init__(self, *args, **options):\n        pass\n\n    def step(self, lr):\n        pass\n"),
                        "linear conv average interval clip evaluation", "as backward left it"),
    "one rank": ("assign", "def assign_layers(sizes, world_size): return [0] * len(sizes)", "deal edges", "greedy rule"),
    "later first": (
        "assign", edited("assign", "sorted(range(len(sizes)), key", "sorted(reversed(range(len(sizes))), key"), "edges", "earlier layer",
    ),
    "own": ("average", "def average_factors(pairs): return pairs", "mean one-message triangles", "nothing was averaged"),
    "sum": ("average", edited("average", " / dist.get_world_size()", ""), "mean one-message triangles", "sums"),
    "whole, one by one": ("average", _WHOLE.format(prepare="pass"), "one-message triangles", "more than once"),
    "whole": ("average", """
def average_factors(pairs):
    flat = [each for pair in pairs for each in pair]
    vector = torch.cat([each.flatten() for each in flat])
    dist.all_reduce(vector)
    parts = (vector / dist.get_world_size()).split([each.numel() for each in flat])
    whole = [part.view_as(each) for part, each in zip(parts, flat)]
    return list(zip(whole[::2], whole[1::2]))
""", "triangles", "whole matrices travel"),
    "upper only": (
        "average", edited("average", "matrix[rows, columns] = matrix[columns, rows] = part", "matrix.zero_()[rows, columns] = part"),
        "mean one-message triangles", "only the upper triangles",
    ),
    "everybody everything": ("strategies", """
def comm_opt(averages, owners, damping):
    return [damped_inverses(A, G, damping) for A, G in averages]

def mem_opt(gradients, inverses, owners):
    return gradients
""", "comm mem own bytes", "every rank computes all"),
    "computed everywhere": (
        "strategies", edited("strategies", "        if dist.get_rank() == owner:\n            inverses = ", "        if True:\n            inverses = "),
        "own", "other layers than its own",
    ),
    "kept by the owner": ("strategies", edited("strategies", "            dist.broadcast(part, src=owner)\n", "            pass\n"), "comm mem own bytes", "other ranks do not"),
    "sums for broadcasts": ("strategies", edited("strategies", "            dist.broadcast(part, src=owner)\n", "            part.copy_(part if dist.get_rank() == owner else torch.zeros_like(part))\n            dist.all_reduce(part)\n"), "bytes", "formula"),
    "bias forgotten": ("strategies", edited("strategies", "[each for each in step if each is not None]", "step[:1]"), "mem own bytes", ""),
}  # fmt: skip

SAYS = {}
