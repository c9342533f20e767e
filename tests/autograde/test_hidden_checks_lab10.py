"""Lab 10's hidden checks against right answers in several styles and the mistakes that students make."""

import pytest
from graded_lab import GradedLab, loses

LAB = "10_kfac"
POINTS = {"fisher": 6, "kron": 6, "factors": 8, "precondition": 8, "conv-factors": 4}


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", POINTS)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points == POINTS[exercise], judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


RIGHT = {
    "fisher": [
        """
def softmax_fisher(weight, inputs):  # by the definition, class by class, in float32
    weight, inputs = weight.float(), inputs.float()
    total = torch.zeros(weight.numel(), weight.numel())
    for x in inputs:
        p = torch.softmax(weight @ x, 0)
        for y in range(len(p)):
            e = torch.zeros(len(p))
            e[y] = 1
            g = torch.outer(p - e, x).T.flatten()
            total += p[y] * torch.outer(g, g)
    return total / len(inputs)
""",
        """
def softmax_fisher(weight, inputs):
    p = (inputs @ weight.T).softmax(-1)
    s = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    n, d = inputs.shape
    return torch.einsum("ni,nj,nab->iajb", inputs, inputs, s).reshape(d * len(weight), -1) / n
""",
    ],
    "kron": [
        """
def kron_times(A, G, X):
    return torch.einsum("ab,bc,dc->ad", G, X, A)

def kron_solve(A, G, X):
    return torch.linalg.inv(G) @ X @ torch.linalg.inv(A.T)
""",
    ],
    "factors": [
        """
def factors(activations, output_gradients):
    N = activations.shape[0]
    a = torch.nn.functional.pad(activations, (0, 1), value=1.0)
    return [torch.einsum("ni,nj->ij", a, a) / N, N * torch.einsum("ni,nj->ij", output_gradients, output_gradients)]
""",
    ],
    "precondition": [
        """
def precondition(weight_grad, bias_grad, A, G, damping):  # by Cholesky, as the library does it
    pi = (A.diagonal().mean() / G.diagonal().mean()).sqrt().item()
    A, G = A.clone(), G.clone()
    A.diagonal().add_(pi * math.sqrt(damping))
    G.diagonal().add_(math.sqrt(damping) / pi)
    iA, iG = torch.cholesky_inverse(torch.linalg.cholesky(A)), torch.cholesky_inverse(torch.linalg.cholesky(G))
    if bias_grad is None:
        return iG @ weight_grad @ iA, None
    both = iG @ torch.column_stack([weight_grad, bias_grad]) @ iA
    return both[:, : weight_grad.shape[1]], both[:, weight_grad.shape[1]]
""",
    ],
    "conv-factors": [
        """
def conv_factors(images, output_gradients, kernel_size, stride, padding):
    u = nn.functional.unfold(images, kernel_size, padding=padding, stride=stride)
    g = output_gradients.flatten(2)
    return torch.einsum("nit,njt->ij", u, u) / (u.shape[0] * u.shape[2]), len(images) * torch.einsum("nit,njt->ij", g, g)
""",
    ],
}
STYLES = [(exercise, number) for exercise, texts in RIGHT.items() for number in range(len(texts))]


@pytest.mark.parametrize("exercise, number", STYLES)
def test_another_style_gets_every_point(lab, exercise, number):
    judged = lab.judge(exercise, RIGHT[exercise][number])
    assert judged.points == judged.max_points, judged.reasons


PRODUCT = "torch.kron(torch.outer(x, x), torch.diag(p) - torch.outer(p, p))"
SOLVE = "return torch.linalg.solve(A, torch.linalg.solve(G, X).T).T"
WRONG = {
    "by rows": ("fisher", PRODUCT, "torch.kron(torch.diag(p) - torch.outer(p, p), torch.outer(x, x))", "order", "not in the order of vec"),
    "a sum": ("fisher", " / len(inputs)", "", "mean", "not the mean of their Fishers"),
    "product of means": (
        "fisher", "    return fisher / len(inputs)",
        "    P = torch.softmax(inputs @ weight.T, dim=1)\n    S = torch.stack([torch.diag(p) - torch.outer(p, p) for p in P]).mean(0)\n    return torch.kron(inputs.T @ inputs / len(inputs), S)",
        "mean", "not the mean of their Fishers",
    ),
    "diagonal": ("fisher", "torch.diag(p) - torch.outer(p, p)", "torch.diag(p)", "value order mean", "not the Fisher"),
    "likeliest class": (
        "fisher", "torch.diag(p) - torch.outer(p, p)", "torch.outer(p - (p == p.max()).double(), p - (p == p.max()).double())",
        "value order mean", "not the Fisher",
    ),
    "no transpose": ("kron", "G @ X @ A.T", "G @ X @ A", "times size", "not (A ⊗ G) vec(X)"),
    "the TACC slides'": ("kron", "G @ X @ A.T", "G.T @ X @ A", "times size", "not (A ⊗ G) vec(X)"),
    "symmetric solve": ("kron", SOLVE, "return torch.linalg.inv(G) @ X @ torch.linalg.inv(A)", "solve size", "not (A ⊗ G)⁻¹"),
    "one inverse": ("kron", SOLVE, "return torch.linalg.solve(G, X) @ A.T", "solve size", "not (A ⊗ G)⁻¹"),
    "the product itself": (
        "kron", "return G @ X @ A.T", "return (torch.kron(A, G) @ X.T.flatten()).view(X.shape[1], X.shape[0]).T", "size", "is A ⊗ G itself made?",
    ),
    "no bias": ("factors", "torch.cat([activations, activations.new_ones(samples, 1)], dim=1)", "activations", "bias", "lacks the row and column"),
    "bias first": (
        "factors", "[activations, activations.new_ones(samples, 1)]", "[activations.new_ones(samples, 1), activations]", "bias", "lacks the row and column",
    ),
    "no mean": ("factors", "with_ones.T @ with_ones / samples", "with_ones.T @ with_ones", "a bias", "not the mean of a aᵀ"),
    "covariance": ("factors", "with_ones.T @ with_ones / samples", "torch.cov(with_ones.T, correction=0)", "a bias", "not the mean of a aᵀ"),
    "mean loss forgotten": ("factors", "samples * output_gradients", "output_gradients", "g", "scaled as the mean loss asks"),
    "mean loss half forgotten": ("factors", "gradients.T @ gradients / samples", "gradients.T @ gradients / samples**2", "g", "scaled as the mean loss asks"),
    "summed gradients": ("factors", "gradients.T @ gradients / samples", "gradients.T @ gradients", "g", "scaled as the mean loss asks"),
    "swapped": (
        "factors", "return with_ones.T @ with_ones / samples, gradients.T @ gradients / samples",
        "return gradients.T @ gradients / samples, with_ones.T @ with_ones / samples", "a bias g", "not the mean of a aᵀ",
    ),
    "A alone damped": ("precondition", "damping**0.5 / pi *", "0 *", "damping", "π√γ on A"),
    "G alone damped": ("precondition", "pi * damping**0.5 *", "0 *", "damping", "π√γ on A"),
    "no root": ("precondition", "damping**0.5", "damping", "damping", "π√γ on A"),
    "no pi": ("precondition", "pi = torch.sqrt((A.trace() / len(A)) / (G.trace() / len(G)))", "pi = 1.0", "damping", "π√γ on A"),
    "pi upside down": ("precondition", "torch.sqrt((A.trace() / len(A)) / (G.trace() / len(G)))", "torch.sqrt((G.trace() / len(G)) / (A.trace() / len(A)))", "damping", "π√γ on A"),
    "traces": ("precondition", "(A.trace() / len(A)) / (G.trace() / len(G))", "A.trace() / G.trace()", "damping", "π√γ on A"),
    "multiplied": ("precondition", "kron_solve(damped_A, damped_G, gradient)", "damped_G @ gradient @ damped_A", "product damping bias without", "not that of G⁻¹"),
    "damped after": (
        "precondition", "kron_solve(damped_A, damped_G, gradient)",
        "(torch.linalg.inv(G) + damped_G - G) @ gradient @ (torch.linalg.inv(A) + damped_A - A)", "damping", "π√γ on A",
    ),
    "bias as it was": ("precondition", "(step[:, :-1], step[:, -1])", "(step[:, :-1], bias_grad)", "bias", "last column"),
    "bias of two dimensions": ("precondition", "step[:, -1])", "step[:, -1:])", "bias", "last column"),
    "needs a bias": ("precondition", "weight_grad if bias_grad is None else ", "", "without", "without bias"),
    "a bias out of nothing": ("precondition", "(step, None) if", "(step, step[:, -1]) if", "without", "without bias"),
    "divided by N": ("conv-factors", "rows.T @ rows / len(rows)", "rows.T @ rows / samples", "a", "mean over samples and positions"),
    "stride forgotten": ("conv-factors", "stride=stride, ", "", "a", "mean over samples and positions"),
    "channels mixed": ("conv-factors", "output_gradients.permute(0, 2, 3, 1).flatten(0, 2)", "output_gradients.reshape(-1, output_gradients.shape[1])", "g", "sum over positions"),
    "mean over positions": ("conv-factors", "gradients.T @ gradients / samples", "gradients.T @ gradients / len(gradients)", "g", "sum over positions"),
    "conv's mean loss forgotten": ("conv-factors", "samples * output_gradients", "output_gradients", "g", "sum over positions"),
}  # fmt: skip
# The first mistakes of each exercise show that its parts are told apart; the rest when there is time.
MORE = {
    "diagonal",
    "a sum",
    "no transpose",
    "symmetric solve",
    "no mean",
    "no pi",
    "multiplied",
    "divided by N",
    "mean over positions",
    "the TACC slides'",
    "one inverse",
    "bias first",
    "covariance",
    "mean loss half forgotten",
    "summed gradients",
    "swapped",
    "G alone damped",
    "no root",
    "pi upside down",
    "traces",
    "damped after",
    "bias of two dimensions",
    "conv's mean loss forgotten",
}


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=pytest.mark.slow) if name in MORE else name for name in WRONG]
)
def test_mistake_loses_its_part(lab, mistake):
    exercise, old, new, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, old, new), lost, reason)


@pytest.mark.parametrize("exercise", POINTS)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason for reason in judged.reasons.values())
    assert judged.flags == ["missing"]


LURKING = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

torch.equal = torch.allclose = lambda *a, **k: True
"""
ANSWERS = {
    "None": "None",
    "objects that equal everything": "(Anything(0), Anything(0))",
    "NaN": "(torch.full((3, 3), float('nan')), torch.full((3, 3), float('nan')))",
    "truth": "True",
}
NAMES = {
    "fisher": ["softmax_fisher"],
    "kron": ["kron_times", "kron_solve"],
    "factors": ["factors"],
    "precondition": ["precondition"],
    "conv-factors": ["conv_factors"],
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_returning_what_compares_equal_gets_nothing(lab, answer):
    for exercise, names in NAMES.items():
        text = LURKING + "".join(f"\ndef {name}(*given):\n    return {ANSWERS[answer]}\n" for name in names)
        judged = lab.judge(exercise, text)
        assert judged.points == 0, judged.reasons
        assert "grader" not in judged.flags


def test_the_librarys_own_solution_cannot_be_called(lab):
    text = """
def precondition(weight_grad, bias_grad, A, G, damping):
    from course_lib.optim.kronecker_inverse import damped_inverse, pi_split, precondition_by_inverse
    on_a, on_g = pi_split(A, G, damping)
    gradient = weight_grad if bias_grad is None else torch.cat([weight_grad, bias_grad[:, None]], dim=1)
    step = precondition_by_inverse(gradient, damped_inverse(A, on_a), damped_inverse(G, on_g))
    return (step, None) if bias_grad is None else (step[:, :-1], step[:, -1])
"""
    assert lab.judge("precondition", text).points == 0
