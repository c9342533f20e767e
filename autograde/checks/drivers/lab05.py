# Drivers of lab 05. Layers are described as plain data, whatever the student calls them.
import pathlib
import tempfile


def layers_of(module):
    convs = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    known = {id(p) for m in (*convs, *norms) for p in m.parameters(recurse=False)}

    def plain(tensor):
        return None if tensor is None else tensor.detach().clone()

    return {
        "convs": [(plain(m.weight), plain(m.bias)) for m in convs],
        "norms": [(plain(m.weight), plain(m.bias)) for m in norms],
        "others": [tuple(p.shape) for p in module.parameters() if id(p) not in known],
    }


def blocks(student, given, outside):
    make = {"shortcut": "make_shortcut", "basic": "BasicBlock", "bottleneck": "Bottleneck"}[given["kind"]]
    results = []
    for (in_channels, channels, stride), x, seed in zip(given["cases"], given["inputs"], given["seeds"], strict=True):
        torch.manual_seed(seed)
        result = {"output": None, "layers": None, "kept": False}
        results.append(result)
        block = student(make)(in_channels, channels, stride)
        if not isinstance(block, nn.Module):
            continue
        block = block.double().train()
        for norm in block.modules():
            if isinstance(norm, nn.BatchNorm2d) and norm.weight is not None:
                nn.init.uniform_(norm.weight, 0.5, 1.5)
                nn.init.uniform_(norm.bias, -0.5, 0.5)
        result["layers"] = layers_of(block)
        own = x.clone()
        try:
            out = block(own)
        except RuntimeError as error:  # of shapes that do not fit; the other cases have nothing to do with it
            if isinstance(error, NotImplementedError):
                raise
            continue
        result["output"] = out.detach() if isinstance(out, torch.Tensor) else out
        result["kept"] = bool((own == x).all())
    return results


def network(student, given, outside):
    torch.manual_seed(given["seed"])
    make = student("HomeworkResNet")
    classes, stages = given["classes"], given["stages"]
    model = make(classes)
    answer = {"maps": {}, "counts": {}, "total": None, "computed": None, "dead": None, "dropout": None}
    if not isinstance(model, nn.Module):
        return answer
    answer["total"] = sum(p.numel() for p in model.parameters())
    parts = {name: getattr(model, name, None) for name in ["stem", *stages, "classifier"]}
    answer["counts"] = {
        name: sum(p.numel() for p in part.parameters()) for name, part in parts.items() if isinstance(part, nn.Module)
    }
    for size in (32, 64):
        answer["maps"][size] = maps_of(model.eval(), parts, given["images"][size])
    answer["dead"] = no_gradient(make(classes), given["images"][32])
    answer["dropout"] = dropped(make, given["images"][32])
    answer["computed"] = computed(make(classes, dropout=0.0), list(parts), given)
    return answer


def maps_of(model, parts, images):
    maps = {}
    handles = [
        part.register_forward_hook(lambda module, args, out, name=name: maps.update({name: tuple(out.shape)}))
        for name, part in parts.items()
        if isinstance(part, nn.Module)
    ]
    try:
        with torch.no_grad():
            maps["out"] = tuple(model(images).shape)
    except (RuntimeError, AttributeError) as error:
        if isinstance(error, NotImplementedError):
            raise
    finally:
        for handle in handles:
            handle.remove()
    return maps


def no_gradient(model, images):
    model.train()
    model(images).square().sum().backward()
    found = [p.grad is None or not bool(p.grad.abs().sum() > 0) for p in model.parameters()]
    model.zero_grad()
    return sum(found)


def dropped(make, images):
    """Share of zeros after the stem in training, for dropout 0 and 0.5, and whether two calls are equal in evaluation."""
    shares = []
    for share in (0.0, 0.5):
        stem = make(10, dropout=share).stem
        with torch.no_grad():
            shares.append((stem.train()(images) == 0).double().mean().item())
            stem.eval()
            same = bool((stem(images) == stem(images)).all())
    return (*shares, same)


UNIT_PARTS = ("stem", "conv2_x", "conv3_x", "conv4_x", "conv5_x")
WAY = 900  # index of a stage's projection, among its other convolutions


def drawn_unit(seed, part, index, shape):
    """Weights of a convolution, and weight, bias, mean and variance of the batch norm behind it."""
    generator = torch.Generator().manual_seed(seed + 1000 * UNIT_PARTS.index(part) + index)

    def uniform():
        return torch.rand(shape[0], generator=generator, dtype=torch.float64)

    weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64) * (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
    )
    return weight, uniform() + 0.5, uniform() - 0.5, uniform() - 0.5, uniform() + 0.5


def drawn_classifier(seed, classes):
    generator = torch.Generator().manual_seed(seed + 999_999)
    return [torch.randn(size, generator=generator, dtype=torch.float64) / 16 for size in ((classes, 256), (classes,))]


def units_of(model, parts, images):
    """Convolutions and the batch norm that each feeds, by part and place; found by execution, whatever their names."""
    outputs, pairs = [], []

    def convolved(module, args, out):
        outputs.append((module, out))

    def normed(module, args):
        pairs.extend((conv, module) for conv, out in outputs if out is args[0])

    handles = [m.register_forward_hook(convolved) for m in model.modules() if isinstance(m, nn.Conv2d)]
    handles += [m.register_forward_pre_hook(normed) for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    units = {}
    for part in UNIT_PARTS:
        inside = {id(m) for m in parts[part].modules()} if isinstance(parts[part], nn.Module) else set()
        own = [pair for pair in pairs if id(pair[0]) in inside]
        branch = [pair for pair in own if pair[0].kernel_size == (3, 3)]
        units |= {(part, index): pair for index, pair in enumerate(branch)}
        units |= {(part, WAY + n): pair for n, pair in enumerate(pair for pair in own if pair not in branch)}
    return units


def computed(model, names, given):
    """What the network makes of drawn weights: with all of them, and with nothing in the residual branches."""
    model, images = model.double(), given["images"][32].double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # the statistics are then the batch's, whatever momentum a student chose
    parts = {name: getattr(model, name, None) for name in names}
    units = units_of(model.eval(), parts, images)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    answer = {"units": list(units), "acting": acting(model.train(), parts, images), "stem": None, "cases": []}
    for closed in (False, True):
        with torch.no_grad():
            for (part, index), (conv, norm) in units.items():
                drawn = drawn_unit(given["seed"], part, index, tuple(conv.weight.shape))
                fill([conv.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var], drawn)
                fill([conv.bias], [torch.zeros(len(conv.weight))])
                if closed and part != "stem" and index % 2 and index < WAY:
                    fill([norm.weight, norm.bias], [torch.zeros(len(norm.weight))] * 2)
            for module in linear:
                if tuple(module.weight.shape) == (given["classes"], 256):
                    fill([module.weight, module.bias], drawn_classifier(given["seed"], given["classes"]))
            if isinstance(parts["stem"], nn.Module):
                answer["stem"] = parts["stem"].eval()(images)
        found = {}
        for mode in ("eval", "train"):
            own = images.clone().requires_grad_(True)
            model.train(mode == "train").zero_grad()
            logits = model(own)
            logits.square().sum().backward()
            found[mode] = {"logits": logits.detach(), "gradient": own.grad}
        found["slopes"] = [
            torch.zeros(1) if c.weight.grad is None else c.weight.grad.sum((1, 2, 3)) for c, _ in units.values()
        ]
        found["statistics"] = [
            t.clone() for _, n in units.values() for t in (n.running_mean, n.running_var) if t is not None
        ]
        answer["cases"].append(found)
    return answer


def fill(places, values):
    for place, value in zip(places, values, strict=True):
        if place is not None:
            place.copy_(value)


def acting(model, parts, images):
    """Of each part's 3×3 weights: how many there are, and how many act on the logits by a convolution.

    Such a weight's whole gradient is the one that comes through the convolution's output. A shortcut that is left out
    is the identity path's mistake, so projections do not count here.
    """
    calls = {}

    def convolved(module, args, out):
        if out.requires_grad:
            out.retain_grad()
        calls[id(module.weight)] = (module, args[0].detach().clone(), out)

    handles = [m.register_forward_hook(convolved) for m in model.modules() if isinstance(m, nn.Conv2d)]
    model.zero_grad()
    loss = model(images).square().sum()
    loss.backward()
    least = 1e-6 * loss.item()
    for handle in handles:
        handle.remove()

    def acts(weight):
        if id(weight) not in calls or weight.grad is None:
            return False
        conv, x, out = calls[id(weight)]
        if out.grad is None or (weight.grad.norm() * weight.norm()).item() < least:
            return False
        own = weight.detach().clone().requires_grad_(True)
        nn.Conv2d._conv_forward(conv, x, own, None).backward(out.grad)  # also of padding="same"
        return bool((own.grad - weight.grad).norm() < 1e-6 * weight.grad.norm())

    counts = {}
    for part in UNIT_PARTS:
        module = parts[part]
        weights = (
            [p for p in module.parameters() if p.dim() == 4 and p.shape[3] == 3]
            if isinstance(module, nn.Module)
            else []
        )
        counts[part] = (len(weights), sum(acts(weight) for weight in weights))
    return counts


def crop_flip(student, given, outside):
    crop_and_flip, results = student("crop_and_flip"), []
    for images, padding, seed, other in given:
        torch.manual_seed(other)
        own = images.clone()
        generator = torch.Generator().manual_seed(seed)
        out = crop_and_flip(own, padding, generator)
        again = crop_and_flip(own, padding, generator)
        third = crop_and_flip(own, padding, generator)
        results.append({"out": out, "again": again, "third": third, "kept": bool((own == images).all())})
    return results


def write_tree(root, tree):
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in tree["wnids"]))
    lines = (f"{name}\t{wnid}\t0\t0\t63\t63\n" for name, wnid in tree["lines"])
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    for wnid in tree["wnids"]:
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / "images" / f"{wnid}_0.JPEG").write_text(wnid)
    for name in tree["images"]:
        (folder / "val" / "images" / name).write_text(name)
    return folder


def validation_set(student, given, outside):
    results = []
    for tree in given:
        with tempfile.TemporaryDirectory() as folder:
            folder = write_tree(pathlib.Path(folder), tree)
            before = {str(p): p.read_text() for p in folder.rglob("*") if p.is_file()}
            answers, error = [], None
            for _ in range(tree["calls"]):
                try:
                    found = student("validation_set")(folder)
                except ValueError as raised:
                    error = str(raised)[:500]
                    break
                except (OSError, LookupError):
                    break
                pairs = found if isinstance(found, list) else []
                pairs = [pair for pair in pairs if isinstance(pair, (tuple, list)) and len(pair) == 2]
                answers.append([(str(path), label, pathlib.Path(path).is_file()) for path, label in pairs])
            untouched = all(
                pathlib.Path(p).is_file() and pathlib.Path(p).read_text() == text for p, text in before.items()
            )
            root = str(folder) + "/"
            answers = [[(path.removeprefix(root), label, there) for path, label, there in one] for one in answers]
            results.append({"answers": answers, "error": error, "untouched": untouched})
    return results


def recipe(student, given, outside):
    model = make_model(given["spec"])
    groups = student("parameter_groups")(model, given["weight_decay"])
    decays = {}
    for group in torch.optim.SGD(groups, lr=1.0, weight_decay=given["fallback"]).param_groups:
        for parameter in group["params"]:
            decays.setdefault(id(parameter), []).append(group["weight_decay"])

    def factors(total, warm):
        try:
            return [student("one_cycle")(step, total, warm) for step in range(total)]
        except ArithmeticError:  # of a division by no warm-up at all
            return None

    return {
        "decays": [decays.get(id(parameter), []) for parameter in model.parameters()],
        "factors": [factors(total, warm) for total, warm in given["schedules"]],
    }


class Pretrained(nn.Module):
    def __init__(self, body, features, classes):
        super().__init__()
        self.body = body
        self.classifier = nn.Linear(features, classes)

    def forward(self, x):
        return self.classifier(self.body(x).flatten(1))


def transfer(student, given, outside):
    results = []
    for lr_body in given["lr_body"]:
        torch.manual_seed(given["seed"])
        network = Pretrained(make_model(given["spec"]), given["features"], given["old"])
        old, body = network.classifier, tensors(network.body)
        groups = student("transfer")(network, given["classes"], given["lr_head"], lr_body)
        rates = {}
        for group in torch.optim.SGD(groups, lr=given["fallback"]).param_groups:
            for parameter in group["params"]:
                rates.setdefault(id(parameter), []).append(group["lr"])
        head = network.classifier

        def told(parameters, rates=rates):
            return [(rates.get(id(p), []), bool(p.requires_grad)) for p in parameters]

        results.append(
            {
                "new": head is not old,
                "head": [p.detach().clone() for p in head.parameters()],
                "old": [p.detach().clone() for p in old.parameters()],
                "logits": network.eval()(given["images"]).detach(),
                "features": network.body(given["images"]).flatten(1).detach(),
                "kept": all(bool((a == b).all()) for a, b in zip(tensors(network.body), body, strict=True)),
                "in body": told(network.body.parameters()),
                "in head": told(head.parameters()),
            }
        )
    return results
