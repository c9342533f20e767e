"""Batch norm over the batches of all ranks, on CPUs too.

`torch.nn.SyncBatchNorm` refuses CPU tensors (PyTorch 2.13). Where each rank has a GPU the stock layer is used; the
one here does the same in plain PyTorch, slower, so that the lesson runs on any machine.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["GlooSyncBatchNorm2d", "convert_sync_batchnorm"]


class _SumOverRanks(torch.autograd.Function):
    """y = Σ_ranks x. Every rank's loss depends on every rank's x, so the gradient is summed too."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class GlooSyncBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose mean and variance are taken over the batches of all ranks while training.

    The sums Σx, Σx² and the count are all-reduced in one message of 2C + 1 numbers, differentiably; ranks may
    hold batches of different sizes. In evaluation, and without a process group, it is `nn.BatchNorm2d`.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(x)
        wide = x.float()
        count = wide.new_tensor([x.numel() / x.shape[1]])
        sums = torch.cat([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3)), count])
        sums = _SumOverRanks.apply(sums)
        channels = x.shape[1]
        count = sums[-1].detach()
        mean = sums[:channels] / count
        variance = (sums[channels:-1] / count - mean.square()).clamp_min(0)
        if self.track_running_stats:
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
                unbiased = variance * (count / (count - 1).clamp_min(1))
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(unbiased, momentum)
        scale = torch.rsqrt(variance + self.eps)
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        return (wide * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)).to(x.dtype)


def convert_sync_batchnorm(model: nn.Module, device: torch.device | str) -> nn.Module:
    """Replace every `nn.BatchNorm2d` by a synchronised one, keeping parameters and statistics.

    On a GPU this is ``torch.nn.SyncBatchNorm.convert_sync_batchnorm``, as in document 001. Call it before
    wrapping the model in DistributedDataParallel.
    """
    if torch.device(device).type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, child in model.named_children():
        if type(child) is nn.BatchNorm2d:
            replacement = GlooSyncBatchNorm2d(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            replacement.load_state_dict(child.state_dict())
            setattr(model, name, replacement.train(child.training))
        else:
            convert_sync_batchnorm(child, device)
    return model
