"""A ResNet-18 that was trained on ImageNet, fine-tuned on CIFAR-100. The homework asks for 70 % test accuracy.

The ImageNet weights are torchvision's: torchvision.models.ResNet18_Weights.IMAGENET1K_V1, a file of 45 MB. Without it in
torch hub's cache, torchvision downloads it. Run it by `python pretrained_cifar100.py`, by torchrun, or by the job scripts.
"""

from collections import OrderedDict

from resnet_cifar100 import Normalise, highest_rate, train_network
from torch import nn
from torch.nn import functional as F

from course_lib.system.torchvision_import import import_torchvision
from course_lib.training.homework import HomeworkRun

NAME = "pretrained_cifar100"
MEAN = (0.485, 0.456, 0.406)  # ImageNet: the weights' own preprocessing
STD = (0.229, 0.224, 0.225)


class Upsampled(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return F.interpolate(x, size=(self.size, self.size), mode="bilinear")


def build_network(num_classes, image_size=224):
    """torchvision's resnet18 with a new head, on images scaled up and normalised as ImageNet's."""
    network = import_torchvision().models.resnet18(weights=None)
    network.fc = nn.Linear(network.fc.in_features, num_classes)
    return nn.Sequential(OrderedDict(large=Upsampled(image_size), normalised=Normalise(MEAN, STD), network=network))


def load_imagenet(network):
    """The ImageNet weights into all layers but the head."""
    weights = import_torchvision().models.ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}
    network.load_state_dict(body, strict=False)


def parameter_groups(network, lr_head, lr_body, weight_decay):
    groups = []
    for is_head, lr in ((True, lr_head), (False, lr_body)):
        own = [p for name, p in network.named_parameters() if name.startswith("fc.") is is_head]
        groups.append({"params": [p for p in own if p.dim() > 1], "lr": lr, "weight_decay": weight_decay})
        groups.append({"params": [p for p in own if p.dim() <= 1], "lr": lr, "weight_decay": 0.0})
    return groups


def train(run):
    given = run.options
    model = build_network(len(run.data.classes), given.image_size)
    load_imagenet(model.network)
    highest = highest_rate(run, given.batch_size * run.world_size)
    groups = parameter_groups(model.network, highest, given.body_lr_factor * highest, given.weight_decay)
    train_network(run, model, groups)


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__,
        dataset="cifar100", epochs=5, batch_size=128, base_lr=0.1, body_lr_factor=0.2, momentum=0.9,
        weight_decay=5e-4, label_smoothing=0.1, warmup_epochs=1.0, padding=4, image_size=224,
    )  # fmt: skip
