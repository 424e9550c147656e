"""The votes of patches, with the positions last in memory."""

from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from arcaps.kernels.twice import plain_gradients


def plain_patch_votes(
    patches: Float[Tensor, "inp row patch"],
    kernels: Float[Tensor, "inp patch outputs"],
    bias: Float[Tensor, "inp outputs"],
) -> Float[Tensor, "inp outputs row"]:
    """The product of each patch and each kernel, and the bias."""
    return einsum(patches, kernels, "inp row patch, inp patch outputs -> inp outputs row") + bias.unsqueeze(-1)


class PatchVotes(torch.autograd.Function):
    """The faster twin of `plain_patch_votes`: its result is contiguous, and so is the gradient of the patches."""

    @staticmethod
    def forward(ctx: Any, patches: Tensor, kernels: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(patches, kernels, bias)
        return torch.baddbmm(bias.unsqueeze(-1), kernels.mT, patches.mT)  # (inp, outputs, row)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        patches, kernels, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_patch_votes, (patches, kernels, bias), (gradient,))
        of_patches = torch.bmm(gradient.mT, kernels.mT)  # (inp, row, patch)
        of_kernels = torch.bmm(gradient, patches).mT  # (inp, patch, outputs)
        return of_patches, of_kernels, gradient.sum(-1)  # the last one: (inp, outputs)
