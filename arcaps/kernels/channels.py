"""One affine map per capsule channel."""

from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from arcaps.kernels.twice import plain_gradients


def plain_channel_product(
    capsules: Float[Tensor, "*where caps in_dim"],
    weight: Float[Tensor, "caps in_dim out_dim"],
    bias: Float[Tensor, "caps out_dim"],
) -> Float[Tensor, "*where caps out_dim"]:
    """`capsules[..., n, :] @ weight[n] + bias[n]` for every channel n."""
    return einsum(capsules, weight, "... caps d, caps d e -> ... caps e") + bias


class ChannelProduct(torch.autograd.Function):
    """The faster twin of `plain_channel_product`, for capsules `(row, caps, in_dim)`.

    The products lie channel by channel in memory, as the next layer reads them; the gradient of the capsules lies as
    the capsules do.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(capsules, weight, bias)
        channels = capsules.transpose(0, 1)  # (caps, row, in_dim)
        products = torch.baddbmm(bias.unsqueeze(1), channels, weight)  # (caps, row, out_dim)
        return products.transpose(0, 1)  # (row, caps, out_dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        capsules, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_gradients(plain_channel_product, (capsules, weight, bias), (gradient,))
        of_channels = gradient.transpose(0, 1)  # (caps, row, out_dim)
        of_capsules = torch.empty_like(capsules)  # (row, caps, in_dim)
        channels = of_capsules.transpose(0, 1)  # (caps, row, in_dim)
        if channels.stride(1) == 1:  # positions last in memory: the product is written as it lies
            torch.bmm(weight, of_channels.transpose(1, 2), out=channels.transpose(1, 2))  # (caps, in_dim, row)
        else:
            torch.bmm(of_channels, weight.transpose(1, 2), out=channels)
        of_weight = torch.bmm(capsules.permute(1, 2, 0), of_channels)  # (caps, in_dim, out_dim)
        return of_capsules, of_weight, gradient.sum(0)  # the last one: (caps, out_dim)
