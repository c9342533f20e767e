"""Lab 10: other right answers, and what each known mistake loses. Answers are sources."""

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
        "product damping bias": "bias first",
        "product damping": "bias apart",
        "product damping without": "transposed",
        "bias": "bias as it was, two dimensions",
        "without": "needs a bias",
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
def precondition(w, b, A, G, damping):
    pi = math.sqrt(A.diagonal().mean() / G.diagonal().mean())
    A, G = A + pi * damping**0.5 * torch.eye(len(A)), G + {damping} * damping**0.5 / pi * torch.eye(len(G))
    V = torch.cholesky_solve(w if b is None else torch.column_stack([w, b]), torch.linalg.cholesky(G))
    V = {scale} * V @ torch.cholesky_inverse(torch.linalg.cholesky(A))
    return (V, {nothing}) if b is None else (V[:, :-1], V[:, -1])
"""


RIGHT = {
    "fisher": [_FISHER],
    "kron": [kron()],
    "factors": [_FACTORS],
    "precondition": [precondition()],
    "conv-factors": [_CONV],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
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
}  # fmt: skip

SAYS = {}
