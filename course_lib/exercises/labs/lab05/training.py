"""Lab 05: crops and flips, TinyImageNet's validation folder, the recipe, a new head, the training loop."""

from __future__ import annotations

import pathlib
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]

# --- crop_and_flip

IMAGES = 800


def _draw_crops(random):
    paddings = [int(n) for n in random.choice([1, 2, 3], 2, replace=False)]
    cases = []
    for padding in paddings:
        height, width = (int(n) for n in random.integers(4, 8, 2))
        seeds = {name: int(random.integers(1, 10**6)) for name in ("images", "seed", "other")}
        about = f"{IMAGES} images of {height}×{width} pixels, padding {padding}"
        cases.append({"padding": padding, "size": (height, width), **seeds, "about": about})
    return {"crops": cases}


def many_images(case):
    generator = torch.Generator().manual_seed(case["images"])
    return torch.randint(1, 250, (IMAGES, 2, *case["size"]), generator=generator) / 255


def observe_crops(case, crop_and_flip):
    """Two batches by one generator; a batch by an equal generator, with another global seed; the batch given."""
    images = many_images(case)
    own = images.clone()
    torch.manual_seed(case["seed"])
    generator = torch.Generator().manual_seed(case["seed"])
    first, second = (crop_and_flip(own, case["padding"], generator) for _ in range(2))
    torch.manual_seed(case["other"])
    again = crop_and_flip(own, case["padding"], torch.Generator().manual_seed(case["seed"]))
    return {"first": first, "second": second, "again": again, "kept": bool((own == images).all())}


def origins(images, out, padding, border="constant"):
    """Whether each output is the crop at that offset, mirrored or not: (B, 2·padding + 1, 2·padding + 1, 2), bool."""
    side, (height, width) = 2 * padding + 1, images.shape[2:]
    padded = F.pad(images, (padding,) * 4, mode=border)
    found = torch.zeros(len(images), side, side, 2, dtype=torch.bool)
    for top in range(side):
        for left in range(side):
            crop = padded[:, :, top : top + height, left : left + width]
            found[:, top, left, 0] = (crop == out).flatten(1).all(1)
            found[:, top, left, 1] = (crop.flip(3) == out).flatten(1).all(1)
    return found


def _traced(case, out):
    """Offset from above, from the left, and mirrored, of each image (B, 3)."""
    found, side = origins(many_images(case), out, case["padding"]), 2 * case["padding"] + 1
    if not bool(found.flatten(1).any(1).all()):
        return None
    place = found.float().flatten(1).argmax(1)
    return torch.stack([place // (2 * side), place // 2 % side, place % 2], 1)


def _are_crops(case, seen, right):
    images = many_images(case)
    if not all(isinstance(seen[name], torch.Tensor) for name in ("first", "second", "again")):
        return "return the batch, a tensor: is there a return?"
    if any(seen[name].shape != images.shape for name in ("first", "second")):
        return "the shape of the batch stays (B, C, H, W): yours is another"
    if seen["kept"] is not True:
        return "the batch that was given is changed; return a new tensor"
    if _traced(case, seen["first"]) is not None and _traced(case, seen["second"]) is not None:
        return ""
    for border in ("reflect", "replicate", "circular"):
        if bool(origins(images, seen["first"], case["padding"], border).flatten(1).any(1).all()):
            return f"the border should be black (0); yours is padded by {border}"
    if bool(origins(images, seen["first"].flip(2), case["padding"]).flatten(1).any(1).any()):
        return "a flip is from left to right (the last dimension); yours turns upside down"
    return "an output is no crop of its own image with a black border: pad, cut H × W at the offset, then mirror"


def _offsets(case, seen, right):
    one, number = _traced(case, seen["first"]), 2 * case["padding"] + 1
    if len(one[:, 0].unique()) == len(one[:, 1].unique()) == 1:
        return "all images are shifted alike: draw an offset for every image, not one for the batch"
    for values in (one[:, 0], one[:, 1]):
        counts = torch.bincount(values, minlength=number)
        if counts.min() == 0:
            return "an offset never occurs: torch.randint(high) stops before high, and there are 2·padding + 1 offsets"
        if counts.min() < 0.6 * IMAGES / number:
            return "the offsets are not equally frequent"
    two = _traced(case, seen["second"])
    if any(torch.equal(one[:, way], two[:, way]) for way in (0, 1)) and not torch.equal(one, two):
        return "the offsets are the same in every batch: draw them for every image of every batch, from the generator"
    return "" if _apart(one[:, 0], one[:, 1]) else "the offsets from above and from the left are not drawn separately"


def _apart(a, b):
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    return bool((a * b).sum().abs() < 0.2 * a.norm() * b.norm() + 1e-9)


def _flips(case, seen, right):
    one = _traced(case, seen["first"])
    share = float(one[:, 2].double().mean())
    if share in (0.0, 1.0):
        return "all images of the batch are mirrored, or none: draw for every image"
    if not 0.42 < share < 0.58:
        return "half of the images should be mirrored"
    two = _traced(case, seen["second"])
    if torch.equal(one[:, 2], two[:, 2]) and not torch.equal(one, two):
        return "the same images are mirrored in every batch: draw it for every image of every batch"
    apart = _apart(one[:, 2], one[:, 0]) and _apart(one[:, 2], one[:, 1])
    return "" if apart else "whether an image is mirrored follows from its offset: draw it separately"


def _generator(case, seen, right):
    if not torch.equal(seen["first"], seen["again"]):
        return "equal generators give different batches: pass generator=generator to every torch.rand… call"
    if torch.equal(seen["first"], seen["second"]):
        return "two calls in a row give the same crops: do not seed anything, draw from the generator"
    return ""


crops = Exercise(("crop_and_flip",), _draw_crops, observe_crops, {
    "crops": Part("Crops of their own images, with a black border", judge=_are_crops,
        hint="pad one small image by hand and look for the output in it"),
    "offsets": Part("An offset for each image, all equally often", judge=_offsets, needs="crops",
        hint="give it 1,000 images and count the offsets"),
    "flips": Part("Half of the images mirrored", judge=_flips, needs="crops",
        hint="give it 1,000 images and count the mirrored ones"),
    "generator": Part("The generator alone decides", judge=_generator, needs="crops",
        hint="call it twice with a generator of a fixed seed, with another torch.manual_seed before each"),
}, "pad one small image by hand and look for the output in it")  # fmt: skip

# --- create_val_folder


def _draw_trees(random):
    def tree(broken=""):
        wnids = [f"n{n:08d}" for n in random.choice(10**8, int(random.integers(4, 8)), replace=False)]
        names = [f"val_{n}.JPEG" for n in random.choice(10**4, int(random.integers(8, 16)), replace=False)]
        lines = [(name, wnids[int(random.integers(len(wnids) - 1))]) for name in names]  # the last class has no image
        odd = names[int(random.integers(len(names)))]
        if broken == "no line":
            lines = [line for line in lines if line[0] != odd]
        elif broken == "no image":
            names = [name for name in names if name != odd]
        elif broken == "no class":
            lines = [(name, "n99999999x" if name == odd else wnid) for name, wnid in lines]
        about = f"{len(wnids)} classes, {len(names)} validation images" + (f"; {odd}: {broken}" if broken else "")
        return {"wnids": wnids, "lines": lines, "images": names, "odd": odd, "broken": broken, "about": about}

    return {"whole": [tree(), tree()], "broken": [tree("no line"), tree("no image"), tree("no class")]}


def observe_val_folder(case, create_val_folder):
    """What is in the new folder after two calls, whether the originals are still there, and the error."""
    with tempfile.TemporaryDirectory() as folder:
        tree, target = pathlib.Path(folder) / "tiny-imagenet-200", pathlib.Path(folder) / "sorted" / "val"
        target.parent.mkdir()
        (tree / "val" / "images").mkdir(parents=True)
        (tree / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in case["wnids"]))
        lines = "".join(f"{name}\t{wnid}\t0\t0\t63\t63\n" for name, wnid in case["lines"])
        (tree / "val" / "val_annotations.txt").write_text(lines)
        for name in case["images"]:
            (tree / "val" / "images" / name).write_text(name)
        before = files_in(tree)
        seen = {"error": "", "again": "fine"}
        try:
            create_val_folder(tree, target)
        except Exception as error:
            if not case["broken"] or isinstance(error, NotImplementedError):
                raise
            return {"error": f"{type(error).__name__}: {error}"}
        try:
            create_val_folder(tree, target)
        except FileExistsError as error:
            seen["again"] = type(error).__name__
        folders = sorted(path.name for path in target.iterdir()) if target.is_dir() else "no folder"
        return seen | {"folders": folders, "files": files_in(target), "untouched": files_in(tree) == before}


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def _named(case, seen, right):
    error = seen["error"]
    if not error:
        return "an image without a line, a line without an image, or an unknown class raises no error"
    if not error.startswith("ValueError"):
        return "raise a ValueError for an image or a line that does not fit; yours is another error"
    return "" if case["odd"] in error else "the ValueError does not name the image"


val_folder = Exercise(("create_val_folder",), _draw_trees, observe_val_folder, {
    "classes": Part("A folder for each class, with its images", "an image is missing or in another class's folder, or a "
        "class of wnids.txt has no folder", cases="whole", keys="folders files again"),
    "untouched": Part("The originals stay", "the original files were moved or changed", cases="whole", keys="untouched",
        needs="classes"),
    "errors": Part("What does not fit is named", judge=_named, cases="broken"),
}, "make a tree of three images by hand, call it twice, and list both folders")  # fmt: skip

# --- parameter_groups, warmup_cosine


def _draw_recipes(random):
    a, b, classes = (int(n) for n in random.integers(3, 9, 3))
    decay = round(float(random.uniform(0.01, 0.1)), 3)

    def schedule(warm):
        total = int(random.integers(30, 60))
        return {"total": total, "warm": warm, "about": f"{total} steps, {warm} of them warm-up"}

    sizes = (a, b, classes)
    return {
        "groups": [{"sizes": sizes, "decay": decay, "about": f"a small network, weight_decay = {decay}"}],
        "warm": [schedule(int(random.integers(3, 20))) for _ in range(2)],
        "without": [schedule(0)],
    }


def observe_recipe(case, parameter_groups, warmup_cosine):
    if "total" in case:
        total, warm = case["total"], case["warm"]
        try:
            factors = {f"step {step}": warmup_cosine(step, total, warm) for step in range(total)}
        except ZeroDivisionError:
            if warm:
                raise
            return "divided by zero"
        return {"rise": dict(list(factors.items())[:warm]), "fall": dict(list(factors.items())[warm:])}
    a, b, classes = case["sizes"]
    model = nn.Sequential(nn.Conv2d(3, a, 3), nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, 1, bias=False),
                          nn.Flatten(), nn.Linear(b, classes))  # fmt: skip
    try:
        optimizer = torch.optim.SGD(parameter_groups(model, case["decay"]), lr=1.0, weight_decay=0.3)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return f"torch.optim.SGD does not take it: {type(error).__name__}"
    decays = {name: [] for name, _ in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = next((name for name, p in model.named_parameters() if p is parameter), "another")
            decays.setdefault(name, []).append(float(group["weight_decay"]))
    return decays


recipe = Exercise(("parameter_groups", "warmup_cosine"), _draw_recipes, observe_recipe, {
    "groups": Part("Weight decay for weights alone", "a parameter is in no group, in two, or has the wrong weight decay",
        "print name, shape and weight_decay of every parameter of a small network"),
    "rise": Part("The linear warm-up", "the factor is wrong during the warm-up: linear from 1/25 at step 0 to 1 at step "
        "warm", cases="warm", keys="rise"),
    "fall": Part("The cosine decay", "the factor is wrong after the warm-up: half a period of a cosine, from 1 at step "
        "warm to 0 at step total", cases="warm", keys="fall"),
    "without": Part("No warm-up", "without warm-up the factor is wrong, or divides by zero", "call it with warm = 0"),
}, "plot the factor for 100 steps with 20 of warm-up: at which steps is it 1/25, 1 and 1/2?")  # fmt: skip

# --- transfer


def _draw_heads(random):
    features, old, classes = (int(n) for n in random.integers([4, 5, 11], [9, 10, 30]))
    lr_head, lr_body = round(float(random.uniform(0.1, 0.5)), 3), round(float(random.uniform(0.001, 0.05)), 4)

    def case(rate):
        about = f"{features} features, {classes} classes, lr_head={lr_head}, lr_body={rate:g}"
        return {"sizes": (features, old, classes), "rates": (lr_head, rate), "seed": int(random.integers(10**6)),
                "about": about}  # fmt: skip

    return {"tuned": [case(lr_body)], "frozen": [case(0.0)]}


class Pretrained(nn.Module):
    """A body with a batch norm, and a head."""

    def __init__(self, features, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, features, 3), nn.BatchNorm2d(features), nn.ReLU(),
                                  nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip
        self.classifier = nn.Linear(features, classes)

    def forward(self, x):
        return self.classifier(self.body(x))


def observe_transfer(case, transfer):
    features, old, classes = case["sizes"]
    torch.manual_seed(case["seed"])
    network = Pretrained(features, old)
    before, head = {name: t.clone() for name, t in network.body.state_dict().items()}, network.classifier
    groups = transfer(network, classes, *case["rates"])
    now = network.classifier
    size = tuple(now.weight.shape) if isinstance(now, nn.Linear) and now.bias is not None else type(now).__name__
    seen = {"size": size, "new": now is not head,
            "kept": all(bool((t == before[name]).all()) for name, t in network.body.state_dict().items())}  # fmt: skip
    seen["random"] = isinstance(now, nn.Linear) and float(now.weight.detach().std()) > 0
    try:
        optimizer = torch.optim.SGD(groups, lr=99.0)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return seen | {"groups": f"torch.optim.SGD does not take them: {type(error).__name__}"}
    rates = {}
    for name, parameter in network.named_parameters():
        own = [float(g["lr"]) for g in optimizer.param_groups if any(p is parameter for p in g["params"])]
        rates[name] = {"learning rates": own, "trained": parameter.requires_grad}
    return seen | {"groups": rates}


transfer = Exercise(("transfer",), _draw_heads, observe_transfer, {
    "head": Part("A new head, on the body as it was", "the head is the old one, or has another size than (classes, "
        "features), or the body's weights changed", "print network.classifier before and after", cases="tuned frozen",
        keys="size new kept random"),
    "rates": Part("Two learning rates", "a parameter is in no group, in two, or has the wrong learning rate",
        cases="tuned", keys="groups"),
    "frozen": Part("A frozen body", "with lr_body = 0 some of the body asks for a gradient or is in a group, or the head "
        "is not", "look at requires_grad of every parameter with lr_body = 0", cases="frozen", keys="groups"),
}, "print name and learning rate of every parameter, from the groups")  # fmt: skip

# --- train_one_epoch, evaluate


def _draw_loops(random):
    def case():
        features, classes = int(random.integers(4, 8)), int(random.integers(3, 6))
        sizes = [6, 6, int(random.integers(2, 5))]
        images = [torch.from_numpy(random.normal(0, 1, (size, features))) for size in sizes]
        labels = [torch.from_numpy(random.integers(0, classes, size)) for size in sizes]
        return {"classes": classes, "batches": list(zip(images, labels, strict=True)), "seed": int(random.integers(10**6)),
                "lr": round(float(random.uniform(0.2, 0.5)), 3),
                "about": f"batches of {', '.join(map(str, sizes))} samples, a model in evaluation mode with old gradients"}  # fmt: skip

    return {"loop": [case(), case()]}


def observe_loop(case, train_one_epoch, evaluate):
    """One epoch of training and one evaluation: what they return, and what every forward found and left."""
    torch.manual_seed(case["seed"])
    features = case["batches"][0][0].shape[1]
    model = nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, case["classes"])).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    modes, rates, graphs = [], [], []

    def forward(module, args, out):
        modes.append(module.training)
        rates.append(optimizer.param_groups[0]["lr"])
        graphs.append(out.requires_grad)

    handle = model.register_forward_hook(forward)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.eval()
    trained = train_one_epoch(model, list(case["batches"]), optimizer, scheduler, F.cross_entropy)
    weights = [t.detach().clone() for t in model.state_dict().values()]
    rates.append(optimizer.param_groups[0]["lr"])
    seen = {"trained": named(trained), "weights": weights, "rates": list(rates), "modes": list(modes)}
    for seen_list in (modes, rates, graphs):
        seen_list.clear()
    evaluated = evaluate(model, list(case["batches"]), F.cross_entropy)
    handle.remove()
    after = list(model.state_dict().values())
    kept = all(bool((a == b).all()) for a, b in zip(after, weights, strict=True))
    return seen | {
        "evaluated": named(evaluated),
        "evaluation_modes": list(modes),
        "untouched": kept,
        "graphs": any(graphs),
    }


def named(found):
    if not isinstance(found, tuple | list) or len(found) != 2:
        return "no pair"
    values = [value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value for value in found]
    return {"loss": values[0], "accuracy": values[1]}


loop = Exercise(("train_one_epoch", "evaluate"), _draw_loops, observe_loop, {
    "steps": Part("One step of the optimiser for each batch", "the weights after the epoch are not those of one step per "
        "batch: train(), clear the gradients, forward, loss, backward, step", keys="weights modes"),
    "schedule": Part("One step of the schedule for each batch", "the learning rate at some batch is not the schedule's: "
        "scheduler.step() once per batch, after optimizer.step()", "print the learning rate before every batch",
        keys="rates"),
    "counts": Part("Mean loss and accuracy of the epoch", "the pair is not (mean loss of an image, share of right "
        "predictions): the last batch is smaller", "do it by hand for two batches, of 6 images and of 2", keys="trained",
        needs="steps"),
    "evaluation": Part("The evaluation's numbers", "evaluate does not return (mean loss of an image, accuracy) in "
        "evaluation mode", "call it twice: it must return the same numbers", keys="evaluated evaluation_modes",
        needs="steps"),
    "untouched": Part("An evaluation that changes nothing", "evaluate changes weights or running averages, or builds a "
        "graph for gradients that nobody needs", "compare state_dict() before and after, and look for requires_grad",
        keys="untouched graphs", needs="evaluation"),
}, "train a linear layer on two batches by hand, and compare")  # fmt: skip

EXERCISES = {
    "crop-flip": crops, "val-folder": val_folder, "recipe": recipe, "transfer": transfer, "training-loop": loop,
}  # fmt: skip
