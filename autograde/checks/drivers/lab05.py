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
    answer = {"maps": {}, "counts": {}, "total": None, "identity": None, "stem": None, "dead": None, "dropout": None}
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
    answer["identity"] = identity_path(model.eval(), parts, given)
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


def identity_path(model, parts, given):
    """Logits and the input's gradient when no 3×3 convolution of a block adds anything, and the weights that are left."""
    stem = {id(m) for m in parts["stem"].modules()} if isinstance(parts["stem"], nn.Module) else set()
    last = [None]

    def after(module, args, out):
        if isinstance(module, nn.BatchNorm2d) and last[0] == (3, 3) and id(module) not in stem:
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Conv2d):
            last[0] = tuple(module.kernel_size)

    handles = [m.register_forward_hook(after) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d))]
    with torch.no_grad():
        model(given["images"][32])
    for handle in handles:
        handle.remove()
    images = given["images"][32].clone().requires_grad_(True)
    logits = model(images)
    logits.square().sum().backward()
    wide = {tuple(m.weight.shape): m.weight.detach().clone() for m in model.modules() if isinstance(m, nn.Conv2d)}
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return {
        "logits": logits.detach(),
        "gradient": images.grad,
        "projections": [wide.get((2 * c, c, 1, 1)) for c in (32, 64, 128)],
        "stem": wide.get((32, 3, 3, 3)),
        "linear": [(m.weight.detach().clone(), m.bias.detach().clone()) for m in linear if m.bias is not None],
    }


def crop_flip(student, given, outside):
    crop_and_flip, results = student("crop_and_flip"), []
    for images, padding, seed, other in given:
        torch.manual_seed(other)
        own = images.clone()
        generator = torch.Generator().manual_seed(seed)
        out = crop_and_flip(own, padding, generator)
        again = crop_and_flip(own, padding, generator)
        results.append({"out": out, "again": again, "kept": bool((own == images).all())})
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
