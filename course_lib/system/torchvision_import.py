"""Import torchvision beside a CPU build of PyTorch.

The registry's torchvision is built for CUDA. Beside a CPU PyTorch its compiled operators do not load, and
its import fails because it registers meta functions for ``torchvision::nms`` and ``torchvision::qnms``, which
then do not exist. Declaring the two schemas first lets the import pass; transforms, data sets and models need neither.
"""

from types import ModuleType

import torch

__all__ = ["import_torchvision"]

_declared: list[torch.library.Library] = []  # a schema lives as long as its library object


def import_torchvision() -> ModuleType:
    """Import torchvision, declaring the missing operators only when the plain import fails for them.

    Raises
    ------
    ImportError
        torchvision is not installed.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        if not _declared:
            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(library)
        import torchvision
    return torchvision
