"""What `nn.SyncBatchNorm` asks of CUDA and no CPU kernel does, by PyTorch's documented formulas; channels are dimension 1."""

import torch

__all__ = ["KERNELS"]
aten = torch.ops.aten


def _across(values, like):
    """(C,) beside (B, C, …)"""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _other_dimensions(x):
    return [dimension for dimension in range(x.dim()) if dimension != 1]


def stats(x, eps):
    variance, mean = torch.var_mean(x, _other_dimensions(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def gather_stats(x, means, inverse_stds, running_mean, running_var, momentum, eps, counts):
    counts = counts.view(-1, 1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    variance = ((inverse_stds**-2 - eps + (means - mean) ** 2) * counts).sum(0) / count
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * count / (count - 1), momentum)
    return mean, torch.rsqrt(variance + eps)


def normalise(x, weight, bias, mean, inverse_std, eps):
    y = (x - _across(mean, x)) * _across(inverse_std, x)
    return y if weight is None else y * _across(weight, x) + _across(bias, x)


def backward_reduce(gradient, x, mean, inverse_std, weight, *wanted):
    total = gradient.sum(_other_dimensions(x))
    projection = (gradient * (x - _across(mean, x))).sum(_other_dimensions(x))
    return total, projection, projection * inverse_std, total.clone()


def backward_elementwise(gradient, x, mean, inverse_std, weight, total, projection, counts):
    count = counts.sum()
    along = (x - _across(mean, x)) * _across(inverse_std**2 * projection / count, x)
    slope = inverse_std if weight is None else inverse_std * weight
    return (gradient - _across(total / count, x) - along) * _across(slope, x)


KERNELS = {
    aten.batch_norm_stats.default: stats,
    aten.batch_norm_gather_stats_with_counts.default: gather_stats,
    aten.batch_norm_elemt.default: normalise,
    aten.batch_norm_backward_reduce.default: backward_reduce,
    aten.batch_norm_backward_elemt.default: backward_elementwise,
}
