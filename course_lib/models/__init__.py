"""Networks."""

from course_lib.models.small_cnn import SmallCNN
from course_lib.models.sparse_dropout import SparseDropout
from course_lib.models.wide_resnet import WideResNet

__all__ = ["SmallCNN", "SparseDropout", "WideResNet"]
