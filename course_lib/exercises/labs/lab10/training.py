"""Lab 10: the optimiser, and what the ranks of a K-FAC training do for each other."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from course_lib.exercises.comparing import equal, plain
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["ASSIGN", "AVERAGE", "KFAC", "STRATEGIES", "near", "pair"]

RANKS = 3


def near(seen, right):
    """Tensors are equal to a part in 10⁵ of the largest entry: so tightly for small factors, and in float32 too."""
    if isinstance(right, list | tuple):
        return (
            isinstance(seen, list | tuple)
            and len(seen) == len(right)
            and all(near(a, b) for a, b in zip(seen, right, strict=True))
        )
    if not isinstance(right, torch.Tensor):
        return equal(seen, right)
    seen, scale = plain(seen), right.abs().max().clamp(min=1e-12)
    return isinstance(seen, torch.Tensor) and seen.is_floating_point() and equal(seen / scale, right / scale, 1e-5)


def pair(found):
    """The two that an answer returned; None for each if it is no pair."""
    return found if isinstance(found, tuple | list) and len(found) == 2 else (None, None)


def _gauss(random, *shape):
    return torch.from_numpy(random.normal(0, 1, shape))


# --- KFAC

_part = partial(Part, same=near)


def network_of(layers):
    """`layers`: (inputs, hidden, classes), or (channels, maps, kernel, stride, padding, side, classes)."""
    if len(layers) == 3:
        return nn.Sequential(nn.Linear(*layers[:2]), nn.Tanh(), nn.Linear(*layers[1:])).double()
    channels, maps, kernel, stride, padding, side, classes = layers
    places = (side + 2 * padding - kernel) // stride + 1
    convolution = nn.Conv2d(channels, maps, kernel, stride, padding, bias=False)
    last = nn.Linear(maps * places**2, classes)
    return nn.Sequential(convolution, nn.BatchNorm2d(maps), nn.ReLU(inplace=True), nn.Flatten(), last).double()


def _draw_trainings(random):
    def case(about, steps=1, factors=1, inverses=1, clip=None, layers=None, evaluates=False):
        layers = layers or tuple(int(n) for n in random.integers((3, 4, 2), (6, 7, 5)))
        shape = layers[:1] if len(layers) == 3 else (layers[0], layers[5], layers[5])
        weights = [0.5 * _gauss(random, *p.shape) for p in network_of(layers).parameters()]
        batches = [
            (_gauss(random, n, *shape), torch.from_numpy(random.integers(0, layers[-1], n)))
            for n in (int(n) for n in random.integers(6, 12, steps + 1))
        ]
        settings = {
            "damping": float(random.uniform(0.05, 0.3)), "decay": float(random.uniform(0.3, 0.6)),
            "factor_interval": factors, "inverse_interval": inverses, "kl_clip": clip,
        }  # fmt: skip
        kind = "two linear layers" if len(layers) == 3 else "a convolution, batch norm and a linear layer"
        return {
            "layers": layers, "weights": weights, "batches": batches[:-1], "others": batches[-1][0],
            "settings": settings, "lr": 0.1, "evaluates": evaluates, "about": f"{kind}, {about}",
        }  # fmt: skip

    def convolution(kernel, stride, padding):
        return (2, 3, kernel, stride, padding, int(random.integers(5, 8)), 3)

    return {
        "linear": [case("1 step"), case("1 step")],
        "conv": [case("1 step", layers=convolution(3, 1, 1)), case("1 step", layers=convolution(2, 2, 0))],
        "average": [case("4 steps", 4)],
        "interval": [
            case("5 steps, inverses at every third", 5, 1, 3),
            case("5 steps, factors at every second, inverses at every fourth", 5, 2, 4),
            case("6 steps, factors at every third, inverses at every second", 6, 3, 2),
        ],
        "clip": [
            case("1 step, clipped", clip=float(random.uniform(1e-4, 3e-4))),
            case("1 step, a bound that is never reached", clip=1e6),
        ],
        "evaluation": [case("1 step, with an evaluation between backward and step", evaluates=True) for _ in range(2)],
    }


def observe_training(case, KFAC):
    """The gradients that the optimiser would see, at every step."""
    model = network_of(case["layers"])
    with torch.no_grad():
        for p, value in zip(model.parameters(), case["weights"], strict=True):
            p.copy_(value)
    kfac, found = KFAC(model, **case["settings"]), {}
    for step, (images, labels) in enumerate(case["batches"], 1):
        model.train()
        model.zero_grad()
        nn.functional.cross_entropy(model(images.clone()), labels).backward()
        if case["evaluates"]:
            model.eval()
            try:
                with torch.no_grad():
                    model(case["others"].clone())
            except Exception as error:  # a hook that needs a graph
                return {"step 1": f"the evaluation raised: {error}"}
            model.train()
        try:
            kfac.step(case["lr"])
        except KeyError as error:
            if not isinstance(error.args[0], nn.Module):
                raise
            return (
                f"step() finds nothing of the layer {error}. The constructor registers the forward hook on every layer "
                "(layer.register_forward_hook(self.watch)), and the hook keeps the activations and the gradient"
            )
        found[f"step {step}"] = [p.grad.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
    return found


def _same_steps(seen, right):
    return isinstance(seen, dict) and seen.keys() == right.keys() and all(near(seen[key], right[key]) for key in right)


_steps = partial(Part, same=_same_steps)

KFAC = Exercise(("KFAC",), _draw_trainings, observe_training, {
    "linear": _steps("Linear layers, in the first step", "after the first step the gradients of linear layers are not those "
        "that your factors, damped_inverses and precondition give"),
    "conv": _steps("Convolutions; other layers keep their gradient", "with a convolution and batch norm the gradients are not right: "
        "conv_factors with the layer's kernel size, stride and padding; batch norm's gradients stay",
        hint="compare with conv_factors and precondition called by hand"),
    "average": _steps("Running averages of the factors", "the first step is right, later ones are not: decay · old + "
        "(1 − decay) · new, from the second update on", needs="linear"),
    "interval": _steps("Both intervals", "with intervals above 1 the steps are not right: factors where steps % factor_interval == 0, "
        "then inverses where steps % inverse_interval == 0", "print in which steps factors and inverses are renewed: the first, number 0, does both",
        needs="average"),
    "clip": _steps("The clip", "with kl_clip the gradients are not right: all preconditioned gradients times "
        "ν = min(1, √(κ / (lr² Σ ⟨preconditioned, gradient⟩)))", "call step with kl_clip=None and with a small one, and divide the gradients",
        needs="linear"),
    "evaluation": _steps("An evaluation changes nothing", "an evaluation in eval mode without gradients, between backward and step, changes the step",
        "what does your forward hook do in model.eval() and torch.no_grad()?", needs="linear"),
}, hint="with one layer, call factors, damped_inverses and precondition by hand, and compare .grad",
    show="{about}; damping {settings[damping]:.2g}, decay {settings[decay]:.2g}")  # fmt: skip

# --- assign_layers


def _draw_layers(random):
    def case(ranks, layers):
        sizes = [tuple(int(n) for n in random.integers(5, 600, 2)) for _ in range(layers)]
        return {"sizes": sizes, "ranks": ranks, "about": f"{layers} layers on {ranks} ranks"}

    equal_sizes = [tuple(int(n) for n in random.integers(50, 100, 2))] * 5
    return {
        "deal": [case(3, 12), case(4, 14), case(2, 11), case(5, 16)],
        "edges": [
            {"sizes": equal_sizes, "ranks": 3, "about": "5 equal layers on 3 ranks"},
            {"sizes": [(30, 10), (200, 10)], "ranks": 4, "about": "2 layers, 30×10 and 200×10, on 4 ranks"},
        ],
    }


def observe_owners(case, assign_layers):
    return assign_layers([tuple(size) for size in case["sizes"]], case["ranks"])


_NOT_GREEDY = "the owners are not those of the greedy rule: the costliest layer first (n³ + m³), each to the rank with the least so far"

ASSIGN = Exercise(("assign_layers",), _draw_layers, observe_owners, {
    "deal": Part("The costliest first, to the rank with the least", _NOT_GREEDY),
    "edges": Part("Equal layers, and more ranks than layers", _NOT_GREEDY + ". Equal ones: the earlier layer first, the lower rank first",
        needs="deal"),
}, hint="write down the loads of two ranks after each of the layers (4, 1), (3, 1), (3, 1), (2, 1)",
    show="{about}, (n, m) = {sizes}")  # fmt: skip

# --- average_factors


def _symmetric(random, n):
    matrix = _gauss(random, n, 2 * n).float()
    return matrix @ matrix.T / (2 * n)


def _draw_factors(random):
    sizes = [tuple(int(n) for n in random.integers(3, 12, 2)) for _ in range(3)]
    return {"ranks": [{
        "pairs": [[tuple(_symmetric(random, n) for n in size) for size in sizes] for _ in range(RANKS)],
        "about": f"{RANKS} ranks, {len(sizes)} layers of sizes {sizes}",
    }]}  # fmt: skip


def _own_pairs(case, rank):
    return case | {"pairs": case["pairs"][rank]}


def observe_average(case, rank, outside, average_factors):
    with collective_group(rank, RANKS, outside):
        found = average_factors([tuple(factor.clone() for factor in each) for each in case["pairs"]])
    return {"pairs": [list(each) for each in found]}


def _all(seen, wanted):
    return all(near(one["pairs"], [list(each) for each in wanted]) for one in seen["ranks"])


def _joined(case, divisor):
    return [[sum(each) / divisor for each in zip(*layers, strict=True)] for layers in zip(*case["pairs"], strict=True)]


def _mean(case, seen, right):
    if _all(seen, _joined(case, RANKS)):
        least = sum(n * (n + 1) // 2 for each in case["pairs"][0] for n in map(len, each)) * 4 * RANKS
        return "" if sum(seen["carried"]) >= least else "the values are right, but too few bytes pass between the ranks"
    if all(
        near(one["pairs"], [list(each) for each in own]) for one, own in zip(seen["ranks"], case["pairs"], strict=True)
    ):
        return "the ranks still have their own factors: nothing was averaged"
    if _all(seen, _joined(case, 1)):
        return "the factors are the ranks' sums; divide by the number of ranks"
    if _all(seen, [[each.triu() for each in layer] for layer in _joined(case, RANKS)]):
        return "only the upper triangles are filled: a factor is symmetric, so write each entry below the diagonal, too"
    if _all(seen, [[each.triu() + each.triu().T for each in layer] for layer in _joined(case, RANKS)]):
        return "the diagonals are twice as large: upper + upperᵀ has the diagonal twice"
    return "the pairs are not the means over the ranks: are the pieces cut and put back at the right places?"


def _one_message(case, seen, right):
    if seen["kinds"] == ["allreduce"] and not seen["messages"]:
        return ""
    if set(seen["kinds"]) - {"allreduce"} or seen["messages"]:
        return "it sends other messages; one dist.all_reduce is enough"
    return f"it calls dist.all_reduce {'more than once' if seen['kinds'] else 'never'}: join all pieces in one vector"


def _triangles(case, seen, right):
    sizes = [n for each in case["pairs"][0] for n in map(len, each)]
    most = 4 * sum(n * (n + 1) // 2 for n in sizes)
    if max(seen["carried"]) <= most:
        return ""
    if max(seen["carried"]) == 4 * sum(n * n for n in sizes):
        return "whole matrices travel; a symmetric n×n matrix has n(n + 1)/2 different entries: torch.triu_indices"
    return "more bytes travel than the upper triangles have"


def _carried(case, seen):
    return f"{case['about']}: you called {len(seen['kinds'])} collective(s) with {max(seen['carried'])} bytes in all per rank"


_NO_PAIRS = "it should return a list with a pair (A, G) for each layer"

AVERAGE = Exercise(("average_factors",), _draw_factors, observe_average, {
    "mean": Part("The mean over the ranks", _NO_PAIRS, cases="ranks", judge=_mean),
    "one-message": Part("One all-reduce", _NO_PAIRS, cases="ranks", needs="mean", judge=_one_message),
    "triangles": Part("Upper triangles travel", _NO_PAIRS, cases="ranks", needs="mean", judge=_triangles),
}, "give rank r matrices full of r, and print what comes back, and the length of the vector that you send", _carried,
    share=_own_pairs, **watched(RANKS, lambda case: CollectiveBroker(RANKS)))  # fmt: skip

# --- comm_opt, mem_opt

CALLED = {}  # rank → the layers for which it called the stand-in


def inverted(A, G, damping):
    """Stands in for `damped_inverses`, marked by the rank; what is wrong there costs nothing here."""
    CALLED.setdefault(dist.get_rank(), []).append(len(A))
    return 2 * A.T + damping * (1 + dist.get_rank()), 3 * G.T - damping * (1 + dist.get_rank())


def directed(weight_grad, bias_grad, A_inverse, G_inverse):
    """Stands in for `precondition`."""
    CALLED.setdefault(dist.get_rank(), []).append(weight_grad.shape[1])
    bias = None if bias_grad is None else 3 * bias_grad + G_inverse.mean()
    return 2 * weight_grad + A_inverse.mean() + dist.get_rank(), bias


def _draw_layouts(random):
    def case(what, owners):
        fan_in = 2 * random.choice(20, len(owners), replace=False) + 4  # all different, with and without a bias
        sizes = [(int(n), int(m)) for n, m in zip(fan_in, random.integers(2, 9, len(owners)), strict=True)]
        biased = [bool(place % 2) for place in range(len(owners))]
        return {
            "what": what, "owners": owners, "damping": float(random.uniform(0.1, 0.9)),
            "pairs": [tuple(_gauss(random, n, n).float() for n in size) for size in sizes],
            "gradients": [
                (_gauss(random, m, n - b).float(), _gauss(random, m).float() if b else None)
                for (n, m), b in zip(sizes, biased, strict=True)
            ],
            "about": f"{RANKS} ranks, owners {owners}",
        }  # fmt: skip

    order = [int(n) for n in random.permutation(RANKS)]
    idle = int(random.integers(1, RANKS))
    deals = [[*order, order[1], order[0]], [rank for rank in (0, 1, 2, 2, 1, 0) if rank != idle]]
    return {what: [case(what, owners) for owners in deals] for what in ("comm_opt", "mem_opt")}


def observe_strategy(case, rank, outside, comm_opt, mem_opt):
    CALLED[rank] = []
    for function in (comm_opt, mem_opt):
        getattr(function, "__globals__", {}).update(damped_inverses=inverted, precondition=directed)
    pairs, owners = case["pairs"], list(case["owners"])
    with collective_group(rank, RANKS, outside):
        if case["what"] == "comm_opt":
            found = comm_opt([tuple(factor.clone() for factor in each) for each in pairs], owners, case["damping"])
        else:
            gradients = [tuple(None if g is None else g.clone() for g in each) for each in case["gradients"]]
            mine = [each if owner == rank else None for each, owner in zip(pairs, owners, strict=True)]
            found = mem_opt(gradients, mine, owners)
    return {"found": [list(each) for each in found], "called": sorted(CALLED[rank])}


def _by_owner(case, rank_of):
    """What each layer's pair should be, from the stand-ins, as marked by `rank_of(layer)`."""
    wanted = []
    for layer, (A, G) in enumerate(case["pairs"]):
        mark, (weight, bias) = rank_of(layer), case["gradients"][layer]
        if case["what"] == "comm_opt":
            shift = case["damping"] * (1 + mark)
            wanted.append([2 * A.T + shift, 3 * G.T - shift])
        else:
            wanted.append([2 * weight + A.mean() + mark, None if bias is None else 3 * bias + G.mean()])
    return wanted


def _from_owners(case, seen, right):
    owners, what = case["owners"], "inverses" if case["what"] == "comm_opt" else "preconditioned gradients"
    ends = [one["found"] for one in seen["ranks"]]
    wanted = _by_owner(case, owners.__getitem__)
    if all(near(end, wanted) for end in ends):
        return "" if sum(seen["carried"]) else f"no message was sent: the {what} come from the owners"
    if all(near(end, _by_owner(case, lambda layer, rank=rank: rank)) for rank, end in enumerate(ends)):
        return "every rank computes all layers by itself; a layer's owner computes it, and the others receive it"
    mine = [[end[layer] for layer, owner in enumerate(owners) if owner == rank] for rank, end in enumerate(ends)]
    theirs = [[wanted[layer] for layer, owner in enumerate(owners) if owner == rank] for rank in range(RANKS)]
    if near(mine, theirs):
        return f"the owners have the {what} of their layers, other ranks do not: dist.broadcast(tensor, src=owner)"
    return f"some rank does not end with the owner's {what} for every layer"


def _own_work(case, seen, right):
    owners = case["owners"]
    for rank, one in enumerate(seen["ranks"]):
        # A layer is known by its size: the factor A's, or the gradient's columns.
        known = case["pairs"] if case["what"] == "comm_opt" else case["gradients"]
        own = sorted(each[0].shape[1] for each, owner in zip(known, owners, strict=True) if owner == rank)
        if one["called"] != own:
            return "a rank computes other layers than its own, or one of its own twice: all others come by message"
    return ""


def _exact_bytes(case, seen, right):
    numbers = (
        sum(factor.numel() for each in case["pairs"] for factor in each)
        if case["what"] == "comm_opt"
        else sum(g.numel() for each in case["gradients"] for g in each if g is not None)
    )
    total = sum(seen["carried"]) + 4 * seen["messages"]
    if total == 4 * numbers and not seen["messages"]:
        return ""
    formula = "comm_opt: Σ (n² + m²)" if case["what"] == "comm_opt" else "mem_opt: Σ n·m"
    return f"the broadcasts do not carry the formula's bytes ({formula} numbers of 4 bytes, each once)"


def _strategy(case, seen):
    calls = len(seen["kinds"])
    return (
        f"{case['what']} on {case['about']}: you called {calls} collective(s) with {sum(seen['carried'])} bytes in all"
    )


_NO_LIST = "it should return a list with a pair for each layer"

STRATEGIES = Exercise(("comm_opt", "mem_opt"), _draw_layouts, observe_strategy, {
    "comm": Part("comm_opt: every rank has all inverses", _NO_LIST, cases="comm_opt", judge=_from_owners),
    "mem": Part("mem_opt: every rank has all preconditioned gradients", _NO_LIST, cases="mem_opt", judge=_from_owners),
    "own": Part("Each rank computes its own layers only", _NO_LIST, cases="comm_opt mem_opt", needs="comm mem", judge=_own_work),
    "bytes": Part("The formula's bytes", _NO_LIST, cases="comm_opt mem_opt", needs="comm mem", judge=_exact_bytes),
}, "on two ranks, with owners [0, 1], print the rank and the number of the layer before each computation and each broadcast",
    _strategy, guarded="comm_opt mem_opt", **watched(RANKS, lambda case: CollectiveBroker(RANKS)))  # fmt: skip
