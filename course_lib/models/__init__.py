"""Networks."""

from course_lib.models.character_transformer import CharacterTransformer
from course_lib.models.cifar_resnet import cifar_resnet
from course_lib.models.homework_resnet import HomeworkResNet
from course_lib.models.parallel_sgd_net import ParallelSGDNet
from course_lib.models.residual_blocks import BasicBlock, Bottleneck
from course_lib.models.resnet_v2 import ResNetV2, keras_parameter_count, resnet50v2, resnet152v2
from course_lib.models.small_cnn import SmallCNN
from course_lib.models.sparse_dropout import SparseDropout
from course_lib.models.wide_resnet import WideResNet

__all__ = [
    "BasicBlock",
    "Bottleneck",
    "CharacterTransformer",
    "HomeworkResNet",
    "ParallelSGDNet",
    "ResNetV2",
    "SmallCNN",
    "SparseDropout",
    "WideResNet",
    "cifar_resnet",
    "keras_parameter_count",
    "resnet50v2",
    "resnet152v2",
]
