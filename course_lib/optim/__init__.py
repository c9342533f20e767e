"""Optimisers for large batches and many ranks: layer-wise steps, scaling rules, the gradient noise scale."""

from course_lib.optim.kfac import KFAC
from course_lib.optim.layerwise import LAMB, LARS, no_decay_groups
from course_lib.optim.muon import Muon, MuonWithAdamW, muon_groups
from course_lib.optim.noise_scale import GradientNoise, gradient_noise_scale, steps_needed
from course_lib.optim.novograd import NovoGrad
from course_lib.optim.scaling import linear_scaling, sqrt_scaling

__all__ = [
    "KFAC",
    "LAMB",
    "LARS",
    "GradientNoise",
    "Muon",
    "MuonWithAdamW",
    "NovoGrad",
    "gradient_noise_scale",
    "linear_scaling",
    "muon_groups",
    "no_decay_groups",
    "sqrt_scaling",
    "steps_needed",
]
