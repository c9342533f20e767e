"""Lab 05: other right answers, and what each known mistake loses."""

_SLIPS = "plain, no last ReLU, ReLU before the addition too, ReLU before the addition, no inner ReLU, norm after the addition, "
_SLIPS += "no padding, shortcut alone"

COSTLY = ("network", "crop-flip")  # a network of 30 convolutions, many times; thousands of crops

# Of the mistakes in `course_lib.exercises.answers.lab05`: parts that are lost → their names.
LOSES = {
    "basic-block": {
        "shortcut identity channels stride layers": "nothing",
        "shortcut identity layers": "always projects",
        "shortcut channels stride layers": "never projects, 3×3, no norm",
        "shortcut stride": "no stride",
        "layers": "bias in the shortcut, bias",
        "stride": "both strided",
        "identity channels stride": _SLIPS,
    },
    "bottleneck": {
        "identity channels stride layers": "nothing, no expansion, 3×3 everywhere",
        "stride": "stride in the first",
        "layers": "bias",
        "identity channels stride": _SLIPS,
    },
    "network": {
        "shapes identity values": "no stride",
        "parameters values": "2 blocks each, one block repeated",
        "parameters": "bias in the stem",
        "parameters identity values": "plain blocks",
        "shapes": "pooling of a fixed size",
        "shapes parameters pooling": "no pooling",
        "pooling": "softmax",
        "dropout": "no dropout, fixed dropout, dropout in evaluation",
    },
    "val-folder": {
        "classes untouched errors": "nothing",
        "classes untouched": "numbers, no empty class, once alone",
        "untouched": "moved",
        "errors": "unnoticed, unnamed, another error",
    },
    "recipe": {
        "groups rise fall without": "nothing",
        "groups": "everything decays, others left out, swapped",
        "rise": "from 0, a step ahead, a cosine rise",
        "fall without": "a line, quarter",
        "fall": "whole cosine",
        "without": "divides by zero",
    },
    "transfer": {
        "head": "old head, of zeros, body reset",
        "rates frozen": "no groups, body alone, groups too early",
        "rates": "one rate",
        "frozen": "not frozen, frozen but in a group, all frozen",
    },
    "training-loop": {
        "counts evaluation untouched": "nothing",
        "steps counts evaluation untouched": "no train(), gradients pile up, no step, schedule first",
        "steps schedule counts evaluation untouched": "once per epoch, no schedule",
        "counts": "mean of means, a count, turned",
        "evaluation untouched": "no eval(), evaluates means of means",
        "untouched": "a graph",
    },
}

BLOCK = """
class BasicBlock(nn.Module):
    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        self.way = make_shortcut(in_channels, channels, stride)
        self.last = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding="same", bias=False)
        self.first = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))

    def forward(self, x):
        way = self.way(x)
        return (way + self.last(self.second(self.first(x)))).clamp(min=0)
"""
SHORTCUT = """
def make_shortcut(in_channels, channels, stride):
    layers = [nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)]
    return nn.Sequential(*layers) if (in_channels, stride) != (channels, 1) else nn.Sequential()
"""
BOTTLENECK = """
class Bottleneck(nn.Module):
    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        def unit(a, b, size, stride=1):
            return [nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b)]
        self.branch = nn.Sequential(*unit(in_channels, channels, 1), nn.ReLU(), *unit(channels, channels, 3, stride), nn.ReLU(),
                                    *unit(channels, 4 * channels, 1))
        self.way = nn.Identity() if stride == 1 and in_channels == 4 * channels else nn.Sequential(
            *unit(in_channels, 4 * channels, 1, stride))

    def forward(self, x):
        return F.relu(self.way(x) + self.branch(x))
"""
NETWORK = """
class Stem(nn.Module):
    def __init__(self, channels, share):
        super().__init__()
        self.share, self.norm = share, nn.BatchNorm2d(32, momentum=0.01)
        self.conv = nn.Conv2d(channels, 32, 3, padding="same", bias=False)

    def forward(self, x):
        return F.dropout(F.relu(self.norm(self.conv(x)), inplace=True), self.share, self.training)

class Stage(nn.Module):
    def __init__(self, before, channels, blocks, stride):
        super().__init__()
        self.rest = nn.ModuleList(BasicBlock(channels, channels) for _ in range(blocks - 1))
        self.entry = BasicBlock(before, channels, stride)

    def forward(self, x):
        x = self.entry(x)
        for block in self.rest:
            x = block(x)
        return x

class HomeworkResNet(nn.Module):
    def __init__(self, num_classes=100, in_channels=3, dropout=0.1):
        super().__init__()
        self.classifier = nn.Linear(256, num_classes)
        self.conv5_x, self.conv4_x = Stage(128, 256, 2, 2), Stage(64, 128, 4, 2)
        self.conv3_x, self.conv2_x = Stage(32, 64, 4, 2), Stage(32, 32, 2, 1)
        self.stem = Stem(in_channels, dropout)

    def forward(self, x):
        for part in (self.stem, self.conv2_x, self.conv3_x, self.conv4_x, self.conv5_x):
            x = part(x)
        return self.classifier({pooled})
"""
LOOPED_CROPS = """
def crop_and_flip(images, padding, generator):
    wide, out = F.pad(images, [padding] * 4), []
    for i in range(len(images)):
        top, left = torch.randint(0, 2 * padding + 1, (2,), generator=generator).tolist()
        crop = wide[i, :, top:top + images.shape[2], left:left + images.shape[3]]
        out.append(crop.flip(-1) if torch.rand((), generator=generator) < 0.5 else crop)
    return torch.stack(out)
"""
LINKS = """
import csv

def create_val_folder(tree, target):
    wnids = [line.strip() for line in open(tree / "wnids.txt")]
    images = {path.name: path for path in (tree / "val" / "images").iterdir()}
    rows = []
    with open(tree / "val" / "val_annotations.txt", newline="") as file:
        for row in csv.reader(file, delimiter="\\t"):
            if row[0] not in images or row[1] not in wnids:
                raise ValueError("missing " + row[0])
            rows.append((images.pop(row[0]), row[1]))
    if images:
        raise ValueError(f"no line for {list(images)}")
    for wnid in wnids:
        (target / wnid).mkdir(parents=True, exist_ok=True)
    for path, wnid in rows:
        link = target / wnid / path.name
        link.unlink(missing_ok=True)
        link.LINK
    return target
"""
RECIPE = """
import numpy as np

def parameter_groups(model, weight_decay):
    return [dict(params=[p], weight_decay=weight_decay * (p.ndim > 1)) for p in model.parameters()]

def warmup_cosine(step, total, warm):
    return float(np.interp(step, [0, warm], [0.04, 1])) if step < warm else np.cos((step - warm) / (total - warm) * np.pi / 2).item() ** 2
"""
TRANSFER = """
def transfer(network, classes, lr_head, lr_body):
    head = nn.Linear(network.classifier.weight.shape[1], classes)
    network.classifier = head
    mine = {id(parameter) for parameter in head.parameters()}
    body = [parameter for parameter in network.parameters() if id(parameter) not in mine]
    for parameter in body:
        parameter.requires_grad = lr_body > 0
    groups = [dict(params=[parameter], lr=lr_body) for parameter in body if lr_body]
    return groups + [dict(params=head.parameters(), lr=lr_head)]
"""
LOOP = """
def train_one_epoch(model, batches, optimizer, scheduler, loss_fn):
    model.train()
    losses, hits = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        logits = model(images)
        loss = loss_fn(logits, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses += [loss.detach()] * len(labels)
        hits.append(logits.argmax(1) == labels)
    return torch.stack(losses).mean(), torch.cat(hits).double().mean()

@torch.inference_mode()
def evaluate(model, batches, loss_fn):
    model.eval()
    found = [(model(images), labels) for images, labels in batches]
    logits, labels = (torch.cat(parts) for parts in zip(*found))
    return loss_fn(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()
"""

RIGHT = {
    "basic-block": [SHORTCUT + BLOCK],
    "bottleneck": [BOTTLENECK],
    "network": [NETWORK.format(pooled="x.amax((2, 3))"), NETWORK.format(pooled="x.mean((2, 3))")],
    "crop-flip": [LOOPED_CROPS],
    "val-folder": [LINKS.replace("LINK", "symlink_to(path)"), LINKS.replace("LINK", "hardlink_to(path)")],
    "recipe": [RECIPE],
    "transfer": [TRANSFER],
    "training-loop": [LOOP],
}

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "always 3 channels": ("network", NETWORK.format(pooled="x.amax((2, 3))").replace("nn.Conv2d(channels, 32", "nn.Conv2d(3, 32"), "parameters", "another number of parameters"),
    "x is changed": ("basic-block", SHORTCUT + BLOCK.replace("way = self.way(x)", "x = x.mul_(2); way = self.way(x)"), "identity channels stride", "x was changed"),
    "a layer in vain": ("basic-block", SHORTCUT + BLOCK.replace("self.last =", "self.more = nn.Linear(3, 3)\n        self.last ="), "layers", "other layers"),
    "half of it": ("bottleneck", BOTTLENECK.replace("self.way(x) + ", "0.5 * self.way(x) + "), "identity channels stride", "not ReLU(F(x) + x)"),
    "narrower stages": ("network", NETWORK.format(pooled="x.amax((2, 3))").replace("128, 256", "128, 250").replace("Linear(256", "Linear(250"), "shapes parameters identity values", "another shape"),
    "a sum in the pool": ("network", NETWORK.format(pooled="x.sum((2, 3))"), "pooling", "one number"),
    "maps that nothing computes": ("network", NETWORK.format(pooled="x.amax((2, 3))").replace("return x\n", "return x * 0 + 1\n"), "shapes parameters identity values", "computes nothing"),
    "neighbour's crop": ("crop-flip", LOOPED_CROPS.replace("wide[i,", "wide[i - 1,"), "crops offsets flips generator", "its own image"),
    "flips by offset": ("crop-flip", LOOPED_CROPS.replace("torch.rand((), generator=generator) < 0.5", "left % 2"), "flips", "mirrored"),
    "no broken line": ("val-folder", LINKS.replace("LINK", "symlink_to(path)").replace("if row[0]", "if False and row[0]"), "errors", "another error"),
    "in percent": ("recipe", RECIPE.replace("[0.04, 1]", "[4, 100]"), "rise", "during the warm-up"),
    "each twice": ("recipe", RECIPE.replace("model.parameters()]", "model.parameters()] * 2"), "groups", "in two"),
    "a head too wide": ("transfer", TRANSFER.replace("shape[1], classes", "shape[1], classes + 1"), "head", "another size"),
    "half the rate": ("transfer", TRANSFER.replace("lr=lr_head", "lr=lr_head / 2"), "rates frozen", "learning rate"),
    "the last batch alone": ("training-loop", LOOP.replace("losses += ", "losses = "), "counts", "smaller"),
}  # fmt: skip

_CROPS = "crops offsets flips generator"
for _name, _options, _lost, _words in (
    ("nothing cropped", None, _CROPS, "return the batch"),
    ("one for all", "each=False", "offsets", "shifted alike"),
    ("an offset short", "high=0", "offsets", "never occurs"),
    ("reflected", "border='reflect'", _CROPS, "padded by reflect"),
    ("upside down", "dim=2", _CROPS, "upside down"),
    ("same offsets", "shared=True", "offsets", "not drawn separately"),
    ("global generator", "seeded=False", "generator", "equal generators give different"),
    ("own seed", "again=True", "generator", "two calls in a row"),
    ("in place", "inplace=True", _CROPS, "batch that was given is changed"),
    (
        "one flip for all",
        "flipped=lambda n, draw, top: (torch.rand(1, generator=draw) < 0.5).expand(n)",
        "flips",
        "or none",
    ),
    ("every fifth", "flipped=lambda n, draw, top: torch.rand(n, generator=draw) < 0.2", "flips", "half of the images"),
    ("every second", "flipped=lambda n, draw, top: torch.arange(n) % 2 == 1", "flips", "in every batch"),
):
    _source = f"crop_and_flip = crops_with({_options})" if _options else "crop_and_flip = lambda *_: None"
    _import = "from course_lib.exercises.answers.lab05.training import crops_with"
    WRONG[_name] = ("crop-flip", f"{_import}\n{_source}", _lost, _words)

SAYS = {
    "one block repeated": "4 blocks", "groups too early": "in no group", "no schedule": "scheduler.step() after each",
}  # fmt: skip
