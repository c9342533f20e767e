"""Find pre-trained weights for ResNet-18 where torchvision or a cluster's staff put them; nothing is downloaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from course_lib.system.torchvision_import import import_torchvision
from data_prep.root import data_root

__all__ = ["WeightsError", "find_imagenet_weights", "load_body"]


class WeightsError(ValueError):
    """A weights file that cannot be used; one line."""


def find_imagenet_weights(root: str | None = None) -> Path | None:
    """torchvision's ResNet-18 weights (``IMAGENET1K_V1``), or None.

    The function looks in torch hub's cache (``$TORCH_HOME/hub/checkpoints``), where torchvision stores its downloads,
    and in ``weights/`` of the data root.

    Raises
    ------
    WeightsError
        The file's SHA-256 is not the one in its name, by which torchvision marks the original.
    """
    import_torchvision()
    from torchvision.models import ResNet18_Weights

    name = ResNet18_Weights.IMAGENET1K_V1.url.rsplit("/", 1)[1]  # resnet18-f37072fd.pth: the hash's first digits
    for folder in (Path(torch.hub.get_dir()) / "checkpoints", Path(data_root(root)) / "weights"):
        path = folder / name
        if path.is_file():
            if not _sha256(path).startswith(name.removesuffix(".pth").rsplit("-", 1)[1]):
                raise WeightsError(f"{path} is damaged: its SHA-256 is not that in its name; fetch it again")
            return path
    return None


def load_body(model: nn.Module, path: Path) -> None:
    """Load weights into all layers of a ResNet but its head, ``fc``, which is for other classes.

    Parameters
    ----------
    path : Path
        ``.safetensors``, or ``.pth`` as torchvision has it (tensors only: nothing else is unpickled).

    Raises
    ------
    WeightsError
        The file cannot be read, or does not fit.
    """
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise WeightsError(f"{path} holds no weights ({' '.join(str(error).split())[:120]}); fetch it again") from None
    except Exception as error:  # pickle's own, of many kinds
        raise WeightsError(f"{path} holds no weights ({type(error).__name__}); fetch it again") from None
    state = {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (RuntimeError, AttributeError) as error:
        raise WeightsError(f"{path} does not fit ResNet-18 ({str(error).splitlines()[-1].strip()})") from None
    missing = [name for name in missing if not name.startswith("fc.")]
    if missing or unexpected:
        what = f"lacks {missing[0]}" if missing else f"has {unexpected[0]}, which ResNet-18 has not"
        raise WeightsError(f"{path} does not fit ResNet-18: it {what}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
