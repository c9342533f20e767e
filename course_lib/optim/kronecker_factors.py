"""The two Kronecker factors of a layer's Fisher block, and the layer's gradient as the matrix that they act on.

For a layer s = W ā, with ā the input and a 1 for the bias, a sample's gradient is the outer product of ∂ℓ/∂s and ā. Its
second moment is the layer's block of the Fisher matrix, and K-FAC takes the two parts for independent (Martens and Grosse
2015, arXiv 1503.05671, section 3)::

    F ≈ A ⊗ G        A = E[ā āᵀ]        G = E[g gᵀ],  g = ∂ℓ/∂s

A convolution applies the same weights at T places of the image, and ā is the patch under the kernel (Grosse and Martens
2016, arXiv 1602.01407, theorem 1): A is the mean over samples and places, G the mean over samples of the sum over places.
The paper has the factor T in A instead; the product is the same, and so is everything here that is computed from it.
A linear layer on ``(samples, …, features)`` is the same thing, the dimensions between being its places, and so is a layer
that one forward uses several times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["KroneckerFactors", "find_layers"]


def _unsupported(module: nn.Module) -> str | None:
    """Why K-FAC leaves this layer's gradient alone, in a few words; None where it does not.

    Supported are ``nn.Linear``, and ``nn.Conv2d`` with any stride, padding, padding mode and dilation and one group.
    """
    if not isinstance(module, (nn.Linear, nn.Conv2d)):
        return f"{type(module).__name__} is neither Linear nor Conv2d"
    if "weight" not in module._parameters:
        return "its weight is computed (a parametrisation)"
    if not module.weight.requires_grad:
        return "its weight is frozen"
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        return f"it is a Conv2d with {module.groups} groups"
    return None


def _input_rows(module: nn.Linear | nn.Conv2d, inputs: Tensor) -> Tensor:
    """What the weights are multiplied with.

    Returns
    -------
    Tensor ``(samples, fan_in, places)``
        Columns ā without the 1 for the bias; of a convolution in the order of ``weight.flatten(1)``.
    """
    if isinstance(module, nn.Linear):
        inputs = inputs.reshape(1 if inputs.dim() == 1 else inputs.shape[0], -1, module.in_features)
        return inputs.transpose(1, 2)
    if inputs.dim() == 3:
        inputs = inputs[None]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = nn.functional.pad(inputs, _pads(module), mode=mode)
    return nn.functional.unfold(padded, module.kernel_size, dilation=module.dilation, stride=module.stride)


def _gradient_rows(module: nn.Linear | nn.Conv2d, gradients: Tensor) -> Tensor:
    """The gradients at the layer's outputs as ``(samples, fan_out, places)``, the places in the order of `_input_rows`."""
    if isinstance(module, nn.Linear):
        gradients = gradients.reshape(1 if gradients.dim() == 1 else gradients.shape[0], -1, module.out_features)
        return gradients.transpose(1, 2)
    return (gradients if gradients.dim() == 4 else gradients[None]).flatten(2)


def _pads(conv: nn.Conv2d) -> list[int]:
    """Left, right, top, bottom."""
    if conv.padding == "valid":
        return [0] * 4
    if conv.padding == "same":
        totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return [side for side in reversed(conv.padding) for _ in range(2)]


class KroneckerFactors:
    """One layer's factors: the running averages, and what the batch at hand has added so far.

    Parameters
    ----------
    name : str
    module : nn.Linear or nn.Conv2d
        One for which `_unsupported` is None. A frozen bias is no variable, and A has no column for it.

    Attributes
    ----------
    A, G : Tensor or None
        ``(fan_in + 1, fan_in + 1)``, or without the 1, and ``(fan_out, fan_out)``; None until the first update. In the
        weight's dtype, at least float32.
    updates : int
        Batches that the averages hold.
    shape : (int, int)
        Sizes of A and of G.
    """

    def __init__(self, name: str, module: nn.Linear | nn.Conv2d) -> None:
        self.name, self.module = name, module
        self.has_bias = module.bias is not None and module.bias.requires_grad
        self.dtype = torch.promote_types(module.weight.dtype, torch.float32)
        self.shape = (module.weight[0].numel() + self.has_bias, module.weight.shape[0])
        self.A: Tensor | None = None
        self.G: Tensor | None = None
        self.updates = 0
        self.forget_batch()

    def forget_batch(self) -> None:
        """Drop what the batch has added."""
        self._inputs = self._gradients = None
        self._columns = self._samples = 0
        self._passes: set[Any] = set()

    @torch.no_grad()
    def input_moment(self, inputs: Tensor) -> tuple[Tensor, int, int]:
        """Σ ā āᵀ over a call's samples and places, the number of these columns, and the samples."""
        with torch.autocast(inputs.device.type, enabled=False):
            columns = _input_rows(self.module, inputs.to(self.dtype))
            samples, fan_in, places = columns.shape
            moment = columns.new_zeros(self.shape[0], self.shape[0])
            moment[:fan_in, :fan_in] = _second_moment(columns)
            if self.has_bias:
                moment[fan_in, :fan_in] = moment[:fan_in, fan_in] = columns.sum((0, 2))
                moment[fan_in, fan_in] = samples * places
        return moment, samples * places, samples

    @torch.no_grad()
    def add(self, inputs: tuple[Tensor, int, int], gradients: Tensor, forward_pass: Any) -> None:
        """Add one call of the layer: `input_moment` of what went in, and the gradient at what came out.

        A call that belongs to the same `forward_pass` as an earlier one is another use by the same samples.
        """
        moment, columns, samples = inputs
        with torch.autocast(gradients.device.type, enabled=False):
            gradient_moment = _second_moment(_gradient_rows(self.module, gradients.to(self.dtype)))
        self._inputs = moment if self._inputs is None else self._inputs + moment
        self._gradients = gradient_moment if self._gradients is None else self._gradients + gradient_moment
        self._columns += columns
        if forward_pass not in self._passes:
            self._passes.add(forward_pass)
            self._samples += samples

    def batch_factors(self) -> tuple[Tensor, Tensor] | None:
        """A and G of the batch, or None where it did not use the layer.

        With a loss that is the mean over n samples, backward delivers g/n. So G = (1/n) Σ g gᵀ is n times the sum of
        what came. n counts all samples since the last step: with accumulation over k micro-batches and the loss divided
        by k, each of them delivers g/n too.
        """
        if self._inputs is None:
            return None
        return self._inputs / self._columns, self._gradients * self._samples

    def update(self, A: Tensor, G: Tensor, decay: float) -> None:
        """Move the running averages: decay · old + (1 − decay) · new, the k-th time with min(decay, 1 − 1/k).

        The first is taken as it is, and the first few weigh the same (Martens and Grosse 2015, section 5).
        """
        self.updates += 1
        weight = max(1 - decay, 1 / self.updates)
        self.A = A if self.A is None else self.A.lerp(A, weight)
        self.G = G if self.G is None else self.G.lerp(G, weight)

    def gradient(self) -> Tensor | None:
        """The layer's ``.grad`` as a matrix ``(fan_out, fan_in + 1)``, the bias last; None where backward left none."""
        weight, bias = self.module.weight.grad, self.module.bias.grad if self.has_bias else None
        if weight is None or (self.has_bias and bias is None):
            return None
        matrix = weight.detach().flatten(1).to(self.dtype)
        return torch.cat([matrix, bias.detach()[:, None].to(self.dtype)], 1) if self.has_bias else matrix

    def write_gradient(self, matrix: Tensor) -> None:
        """Overwrite ``.grad`` in its own memory and layout: DDP's buckets and fused optimisers rely on both."""
        weight = self.module.weight.grad
        if self.has_bias:
            self.module.bias.grad.copy_(matrix[:, -1])
            matrix = matrix[:, :-1]
        weight.copy_(matrix.reshape(weight.shape))


def find_layers(model: nn.Module) -> tuple[dict[str, KroneckerFactors], dict[str, str]]:
    """The layers of a model by name, and for each other module with parameters of its own the reason why it is left alone.

    Raises
    ------
    ValueError
        No layer remains.
    """
    modules = dict(model.named_modules())
    users: dict[nn.Parameter, list[str]] = {}
    for name, module in modules.items():
        for parameter in module._parameters.values():
            if parameter is not None:
                users.setdefault(parameter, []).append(name)
    layers, skipped = {}, {}
    for name, module in modules.items():
        parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
        others = [other for parameter in parameters for other in users[parameter] if other != name]
        reason = _unsupported(module)
        if not any(parameter.requires_grad for parameter in parameters):
            continue
        if reason is None and others:
            reason = f"it shares a parameter with {others[0]}"
        if reason is None:
            layers[name] = KroneckerFactors(name, module)
        else:
            skipped[name] = reason
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layer that K-FAC can work on (Linear, or Conv2d with one group)"
        )
    return layers, skipped


def _second_moment(columns: Tensor) -> Tensor:
    """Σ c cᵀ over samples and places of ``(samples, n, places)``, as ``(n, n)``."""
    if columns.shape[2] == 1:
        return columns[:, :, 0].T @ columns[:, :, 0]
    # One sample after the other: the product of all at once would need samples times the memory of the result.
    return torch.addbmm(columns.new_zeros(()), columns, columns.mT, beta=0)
