"""Normalised capsules, where they lie with the positions last in memory."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from arcaps.kernels.mixing import sum_as_it_lies, sum_over_elements
from arcaps.kernels.twice import plain_gradients

EPSILON = 1e-5
"""Added to the variance, as torch does."""


def plain_layer_norm(capsules: Float[Tensor, "*where dim"]) -> Float[Tensor, "*where dim"]:
    """Each capsule with mean 0 and variance 1."""
    return F.layer_norm(capsules, capsules.shape[-1:], eps=EPSILON)


def mean(capsules: Tensor) -> Tensor:
    """The mean over the elements, with the axis kept."""
    return sum_as_it_lies(capsules, -1).unsqueeze(-1) / capsules.shape[-1]


def mean_product(left: Tensor, right: Tensor) -> Tensor:
    """The mean over the elements of the product of two capsules, with the axis kept."""
    return sum_over_elements(left.unsqueeze(-2), right) / left.shape[-1]


class LayerNorm(torch.autograd.Function):
    """The faster twin of `plain_layer_norm`: torch's own copies what does not lie with the elements last."""

    @staticmethod
    def forward(ctx: Any, capsules: Tensor) -> Tensor:
        centred = capsules - mean(capsules)
        factor = (mean_product(centred, centred) + EPSILON).rsqrt()  # (..., 1)
        normal = centred.mul_(factor)
        ctx.save_for_backward(capsules, normal, factor)
        return normal

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        capsules, normal, factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_layer_norm, (capsules,), (gradient,))
        of_capsules = gradient - mean(gradient)
        return (of_capsules.addcmul_(normal, mean_product(gradient, normal), value=-1).mul_(factor),)
