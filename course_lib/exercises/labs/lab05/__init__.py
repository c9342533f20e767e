"""Lab 05: residual blocks and the homework's network; `training.py` has the exercises of data and training."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab05.training import EXERCISES as OTHERS

__all__ = ["EXERCISES"]

# --- what is done to a module, whatever the student called its layers


def executed(module, x):
    """The convolutions and batch norms that a forward calls, in its order: (module, output), (module, input)."""
    convs, norms = [], []

    def convolved(conv, args, out):
        convs.append((conv, out))

    def normed(norm, args):
        norms.append((norm, args[0]))

    handles = [m.register_forward_hook(convolved) for m in module.modules() if isinstance(m, nn.Conv2d)]
    handles += [m.register_forward_pre_hook(normed) for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        module(x)
    for handle in handles:
        handle.remove()
    return convs, norms


def fill(convs, norms, seed):
    """Weights by the convolution's shape and its turn among those of that shape; a norm's by the convolution before it."""
    turns, filled = {}, set()

    def drawn(size, *numbers):
        mixed = sum((place + 1) * 1009 * number for place, number in enumerate(numbers))
        generator = torch.Generator().manual_seed(seed + mixed)
        return torch.randn(size, generator=generator, dtype=torch.float64), generator

    def fill_norm(norm, *numbers):
        filled.add(id(norm))
        _, generator = drawn(1, *numbers)
        for tensor, shift in zip(
            (norm.weight, norm.bias, norm.running_mean, norm.running_var), (0.5, -0.5, -0.5, 0.5), strict=True
        ):
            if tensor is not None:
                tensor.copy_(torch.rand(len(tensor), generator=generator, dtype=torch.float64) + shift)

    with torch.no_grad():
        for conv, out in convs:
            shape = tuple(conv.weight.shape)
            turns[shape] = turns.get(shape, 0) + 1
            weight, _ = drawn(shape, turns[shape], *shape)
            conv.weight.copy_(weight * (2 / weight[0].numel()) ** 0.5)
            if conv.bias is not None:
                conv.bias.zero_()
            for norm, given in norms:
                if given is out:
                    fill_norm(norm, turns[shape], *shape, 77)
        for norm, _ in norms:
            if id(norm) not in filled:
                turns[norm.num_features] = turns.get(norm.num_features, 0) + 1
                fill_norm(norm, turns[norm.num_features], norm.num_features)


def layers_of(module):
    """Every layer with parameters in words, sorted."""
    found = []
    for m in module.modules():
        kind = "conv" if isinstance(m, nn.Conv2d) else "norm" if isinstance(m, nn.BatchNorm2d) else "other"
        for name, parameter in m.named_parameters(recurse=False):
            found.append(f"{kind} {name} {'×'.join(map(str, parameter.shape))}")
    return sorted(found)


def noise(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- make_shortcut, BasicBlock; Bottleneck


def _draw_blocks(expansion, shortcut):
    def draw(random):
        c, d = (int(n) for n in random.choice([3, 4, 5, 6, 7], 2, replace=False))
        same, other = (expansion * c, c), (d + 8, c + 16 if expansion == 1 else c)

        def case(which, channels, stride):
            name = f"in_channels={channels[0]}, channels={channels[1]}, stride={stride}"
            return {"which": which, "channels": channels, "stride": stride, "seed": int(random.integers(1, 10**6)),
                    "about": f"{name}, an input of 6×4 pixels, drawn weights"}  # fmt: skip

        block = int(shortcut)
        cases = {"identity": [case(block, same, 1)], "channels": [case(block, other, 1)],
                 "stride": [case(block, same, 2), case(block, other, 2)]}  # fmt: skip
        if shortcut:
            some = [(same, 1), (other, 1), (same, 2), (other, 2)]
            cases = {"shortcut": [case(0, *each) for each in some], **cases}
        return cases

    return draw


def observe_block(case, *makers):
    """Output with drawn weights, layers in words, and whether the input stayed."""
    torch.manual_seed(case["seed"])
    block = makers[case["which"]](*case["channels"], case["stride"])
    if not isinstance(block, nn.Module):
        return f"no module: {type(block).__name__}"
    block = block.double().train()
    x = noise((2, case["channels"][0], 6, 4), case["seed"])
    own, seen = x.clone(), {"layers": layers_of(block), "kept": True}
    try:
        fill(*executed(block, x.clone()), case["seed"])
        out = block(own)
    except RuntimeError as error:  # of shapes that do not fit; the other cases have nothing to do with it
        if isinstance(error, NotImplementedError):
            raise
        return seen | {"output": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return seen | {"output": out.detach() if isinstance(out, torch.Tensor) else out, "kept": bool((own == x).all())}


_LOOK = "print the block, put ones into x, and follow the shapes line by line; compare with the picture"
_LIST = "list the shapes of parameters(), and count them beside the picture; the identity has none"


def _block_parts(layers):
    return {
        "identity": Part("Where channels and size stay",
            "where nothing changes, the output is not ReLU(F(x) + x) with the block's own weights, or x was changed",
            keys="output kept"),
        "channels": Part("Where the channels change",
            "where the channels change, the output is not ReLU(F(x) + shortcut(x)) with the block's own weights",
            keys="output kept"),
        "stride": Part("Where the size changes",
            "where the stride is 2, the output is not ReLU(F(x) + shortcut(x)) with the block's own weights",
            keys="output kept"),
        "layers": Part("The layers, and no others",
            "there are other layers than those of the picture: more, fewer, of another size, or with a bias", _LIST,
            cases=layers, keys="layers"),
    }  # fmt: skip


basic = Exercise(("make_shortcut", "BasicBlock"), _draw_blocks(1, True), observe_block, {
    "shortcut": Part("The shortcut alone", "make_shortcut is not the identity where nothing changes, and BN(conv 1×1) "
        "with the stride elsewhere", keys="output kept"),
    **_block_parts("shortcut identity channels stride"),
}, _LOOK)  # fmt: skip

bottleneck = Exercise(("Bottleneck",), _draw_blocks(4, False), observe_block,
                      _block_parts("identity channels stride"), _LOOK)  # fmt: skip

# --- HomeworkResNet

STAGES = ("conv2_x", "conv3_x", "conv4_x", "conv5_x")


def _draw_networks(random):
    classes, seed = int(random.integers(20, 150)), int(random.integers(1, 10**6))
    case = {"classes": classes, "seed": seed}
    return {
        "maps": [case | {"look": "maps", "about": f"{classes} classes, images of 32×32 and of 64×64"}],
        "drawn": [case | {"look": "drawn", "about": "drawn weights, images of 32×32"}],
        "dropout": [case | {"look": "dropout", "about": "dropout = 0 and 0.5"}],
    }


def observe_network(case, HomeworkResNet):
    torch.manual_seed(case["seed"])
    if case["look"] == "dropout":
        return dropped(HomeworkResNet, noise((2, 3, 32, 32), case["seed"]).float())
    model = HomeworkResNet(case["classes"], dropout=0.0)
    if not isinstance(model, nn.Module):
        return f"no module: {type(model).__name__}"
    lacking = [
        name for name in ("stem", *STAGES, "classifier") if not isinstance(getattr(model, name, None), nn.Module)
    ]
    if lacking:
        return f"no part named {lacking[0]}: set self.{lacking[0]} in __init__"
    return sizes(model, case, HomeworkResNet) if case["look"] == "maps" else values(model, case)


def sizes(model, case, make):
    """Shapes of the maps for two sizes of images, parameters of each part, and parts that get no gradient."""
    parts, seen = {name: getattr(model, name) for name in ("stem", *STAGES)}, {}
    for size in (32, 64):
        maps = {}
        handles = [
            part.register_forward_hook(lambda m, args, out, name=name, maps=maps: maps.update({name: tuple(out.shape)}))
            for name, part in parts.items()
        ]
        try:
            with torch.no_grad():
                maps["logits"] = tuple(model.eval()(noise((2, 3, size, size), case["seed"]).float()).shape)
        except RuntimeError as error:
            if isinstance(error, NotImplementedError):
                raise
            maps["logits"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        for handle in handles:
            handle.remove()
        seen |= {f"{name}, {size}×{size}": shape for name, shape in maps.items()}
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    gray = make(case["classes"], in_channels=1)
    counts["stem, in_channels=1"] = sum(p.numel() for p in gray.stem.parameters())
    counts["classifier"] = sum(p.numel() for p in model.classifier.parameters())
    counts["all"] = sum(p.numel() for p in model.parameters())
    model.train()(noise((4, 3, 32, 32), case["seed"]).float()).square().sum().backward()

    def idle(p):
        return p.grad is None or not bool(p.grad.abs().sum() > 0)

    without = [name for name, p in model.named_parameters() if idle(p)]
    acting = {name: any(not idle(p) for p in part.parameters() if p.dim() == 4) for name, part in parts.items()}
    return {"maps": seen, "counts": counts, "without_a_gradient": len(without), "acting": acting}


def values(model, case):
    """The last stage's map with drawn weights, with the residual branches at 0, and how it is pooled."""
    model, images = model.double().eval(), noise((2, 3, 32, 32), case["seed"])
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # a fixed share is the dropout's own part
    convs, norms = executed(model, images)
    maps, inputs, closed = [], [], []
    for place, part in enumerate(("stem", *STAGES)):
        inside = {id(m) for m in getattr(model, part).modules()}
        own = [each for each in convs if id(each[0]) in inside]
        fill(own, [each for each in norms if id(each[0]) in inside], case["seed"] + place)
        branch = [each for each in own if each[0].kernel_size == (3, 3)] if place else []
        second = [out for _, out in branch[1::2]]
        closed += [norm for norm, given in norms if any(given is out for out in second)]
    with torch.no_grad():
        for turn, parameter in enumerate(model.classifier.parameters()):
            parameter.copy_(noise(parameter.shape, case["seed"] + turn) / 16)
    model.conv5_x.register_forward_hook(lambda m, args, out: maps.append(out))
    model.classifier.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        logits = model(images)
        model.train()(images)
        model.load_state_dict(state)
        for norm in closed:
            norm.weight.zero_()
            norm.bias.zero_()
    own = images.clone().requires_grad_(True)
    model.eval()(own)
    (maps[2] * noise(maps[2].shape, 3)).sum().backward()
    pooled, last = inputs[0], maps[0]
    within = pooled.shape == last.shape[:2] and bool(
        ((pooled >= last.amin((2, 3)) - 1e-9) & (pooled <= last.amax((2, 3)) + 1e-9)).all()
    )
    linear = isinstance(model.classifier, nn.Linear) and torch.allclose(model.classifier(pooled), logits)

    def some(tensor):
        return tensor.detach().flatten()[:: max(tensor.numel() // 60, 1)]

    return {"open": some(maps[0]), "trained": some(maps[1]), "closed": some(maps[2]), "slope": some(own.grad),
            "pooled": within, "linear": linear}  # fmt: skip


def dropped(make, images):
    """Share of zeros after the stem in training, for dropout 0 and 0.5; whether two calls are equal in evaluation."""
    shares, same = [], True
    for share in (0.0, 0.5):
        model = make(10, dropout=share)
        if not isinstance(getattr(model, "stem", None), nn.Module):
            return "no part named stem"
        stem = model.stem
        with torch.no_grad():
            shares.append(float((stem.train()(images) == 0).double().mean()))
            stem.eval()
            same = same and bool((stem(images) == stem(images)).all())
    return {"zeros": shares, "same": same}


def _dropout(case, seen, right):
    if seen["same"] is not True:
        return "in evaluation two calls of the stem differ: use nn.Dropout, which eval() switches off"
    none, half = seen["zeros"]
    if not 0 < none < 0.65:
        return "with dropout = 0 about half of the stem's outputs are 0, by its ReLU; yours has another share"
    if not 0.47 < (1 - half) / (1 - none) < 0.53:
        return "the stem ends with nn.Dropout(dropout), after the ReLU: with 0.5 half of what was left becomes 0"
    return ""


network = Exercise(("HomeworkResNet",), _draw_networks, observe_network, {
    "shapes": Part("The maps, for images of 32×32 and of 64×64",
        "a stage is missing or computes nothing, or its map has another shape, for images of 32×32 or of 64×64",
        "register a forward hook on each stage and print the shapes, for both sizes", cases="maps",
        keys="maps acting"),
    "parameters": Part("The parameters, each in use", "a part has another number of parameters, or some get no gradient",
        "count by hand, stage by stage", cases="maps", keys="counts without_a_gradient"),
    "identity": Part("The identity path", "with the residual branches at 0, the last map or the input's gradient is not "
        "what the shortcuts alone give", "set the weight of every block's last batch norm to 0: each block must then pass "
        "ReLU(shortcut(x)) on", cases="drawn", keys="closed slope"),
    "values": Part("The last map with drawn weights", "with drawn weights the map after conv5_x is another",
        "replace the weights of one block at a time, and compare with the block by itself", cases="drawn",
        keys="open trained"),
    "pooling": Part("One number per channel for the classifier", "the classifier, a linear layer, gets one number per "
        "channel of the last map, between its least and its largest value, and its output is the network's",
        "print the shape and the values of what the classifier is given", cases="drawn", keys="pooled linear"),
    "dropout": Part("Dropout after the stem", judge=_dropout,
        hint="count the zeros after the stem for dropout = 0 and 0.5, in train() and in eval()"),
}, "compare the printed network with the table, part by part")  # fmt: skip

EXERCISES = {"basic-block": basic, "bottleneck": bottleneck, "network": network, **OTHERS}
