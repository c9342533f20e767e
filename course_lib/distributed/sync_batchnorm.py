"""Batch norm over the batches of all ranks, on CPUs too.

`torch.nn.SyncBatchNorm` refuses CPU tensors (PyTorch 2.13). Where each rank has a GPU the stock layer is used; the
one here does the same in plain PyTorch, slower, so that the lesson runs on any machine.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["GlooSyncBatchNorm2d", "convert_sync_batchnorm"]

AXES = (0, 2, 3)  # all but the channels


class _Normalise(torch.autograd.Function):
    """x̂ = (x − μ)·σ⁻¹ with μ and σ over all ranks' batches.

    Forward: one all-gather of each rank's mean, variance and count, combined by Chan's formula (sums of
    squares would cancel). Backward (Ioffe and Szegedy 2015, section 3): one all-reduce of Σ∂x̂ and Σ∂x̂·x̂.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        variance, mean = torch.var_mean(x, dim=AXES, correction=0)
        mine = torch.stack([mean, variance, torch.full_like(mean, x.numel() / x.shape[1])])
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, mine)
        means, variances, counts = torch.stack(everyones, dim=1)  # each (ranks, C)
        count = counts.sum(0)
        mean = (means * counts).sum(0) / count
        variance = ((variances + (means - mean).square()) * counts).sum(0) / count
        inverse = torch.rsqrt(variance + eps)
        normalised = (x - _per_channel(mean)) * _per_channel(inverse)
        ctx.save_for_backward(normalised, inverse, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return normalised, mean, variance, count

    @staticmethod
    def backward(ctx, gradient: torch.Tensor, *unused: torch.Tensor) -> tuple[torch.Tensor, None]:
        normalised, inverse, count = ctx.saved_tensors
        sums = torch.stack([gradient.sum(AXES), (gradient * normalised).sum(AXES)])
        dist.all_reduce(sums)
        mean_gradient, mean_projection = sums / count
        centred = gradient - _per_channel(mean_gradient) - normalised * _per_channel(mean_projection)
        return centred * _per_channel(inverse), None


def _per_channel(values: torch.Tensor) -> torch.Tensor:
    return values.view(1, -1, 1, 1)


class GlooSyncBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose mean and variance are taken over the batches of all ranks while training.

    Ranks may hold batches of different sizes. In evaluation, and without a process group, it is `nn.BatchNorm2d`.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        normalised, mean, variance, count = _Normalise.apply(wide, self.eps)
        if self.track_running_stats:
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                unbiased = variance * count / (count - 1).clamp_min(1)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        if self.affine:
            normalised = torch.addcmul(_per_channel(self.bias), normalised, _per_channel(self.weight))
        return normalised.to(x.dtype)


def convert_sync_batchnorm(model: nn.Module, device: torch.device | str) -> nn.Module:
    """Replace every `nn.BatchNorm2d` by a synchronised one, keeping parameters and statistics.

    On a GPU this is ``torch.nn.SyncBatchNorm.convert_sync_batchnorm``, as in document 001. Call it before
    wrapping the model in DistributedDataParallel, and use what it returns.
    """
    if torch.device(device).type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if type(model) is nn.BatchNorm2d:
        synced = GlooSyncBatchNorm2d(
            model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
        )
        for kept in (model.weight, model.running_mean):
            if kept is not None:
                synced = synced.to(kept.dtype)
        synced.load_state_dict(model.state_dict())
        return synced.train(model.training)
    for name, child in model.named_children():
        setattr(model, name, convert_sync_batchnorm(child, device))
    return model
