"""The votes of a convolution, with the positions last."""

from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.compat import convolution_gradients
from arcaps.kernels.memory import aligned
from arcaps.kernels.twice import plain_gradients
from arcaps.kernels.windows import plain_windows


def plain_convolved_votes(
    capsules: Float[Tensor, "inp batch height width in_dim"],
    kernels: Float[Tensor, "inp i j in_dim out dim"],
    stride: int,
    padding: tuple[int, int],
) -> Float[Tensor, "inp out dim row"]:
    """The votes without their bias: what a kernel sees of each input channel, times the kernel (eq. 5)."""
    windows = plain_windows(capsules, (kernels.shape[1], kernels.shape[2]), stride, padding)
    votes = einsum(windows, kernels, "inp b h w i j d, inp i j d out dim -> inp out dim b h w")
    return votes.flatten(3)


class ConvolvedVotes(torch.autograd.Function):
    """The faster twin of `plain_convolved_votes`: a convolution for each input channel.

    Convolutions need no windows in memory, which are nine times as large as the capsules, and are the fastest products
    that torch has on a CPU. Their maps have the channels last; a copy of each, while it is in the cache, puts the
    positions last. Capsules that lie channel by channel in memory are read as they are.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, kernels: Tensor, stride: int, padding: tuple[int, int]) -> Tensor:
        ctx.stride, ctx.padding = stride, padding
        ctx.save_for_backward(capsules, kernels)
        votes: Tensor | None = None
        for m, (image, weight) in enumerate(zip(*as_convolutions(capsules, kernels), strict=True)):
            maps = F.conv2d(image, weight, stride=stride, padding=padding)  # (batch, out dim, new_height, new_width)
            rows = rearrange(maps, "b c h w -> c (b h w)")  # (out dim, row)
            if votes is None:
                votes = aligned((len(capsules), *rows.shape), rows)  # (inp, out dim, row)
            votes[m].copy_(rows)
        assert votes is not None
        return votes.unflatten(1, kernels.shape[4:])  # (inp, out, dim, row)

    @staticmethod
    def backward(ctx: Any, of_votes: Tensor) -> tuple[Tensor | None, ...]:
        capsules, kernels = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = plain_gradients(
                lambda *given: plain_convolved_votes(given[0], given[1], ctx.stride, ctx.padding),
                (capsules, kernels),
                (of_votes,),
            )
            return *found, None, None
        of_capsules = capsules.new_empty(capsules.shape)  # (inp, batch, height, width, in_dim)
        of_weights = []
        images, weights = as_convolutions(capsules, kernels)
        for m, (image, weight) in enumerate(zip(images, weights, strict=True)):
            height, width = (
                (side + 2 * pad - size) // ctx.stride + 1
                for side, pad, size in zip(image.shape[2:], ctx.padding, weight.shape[2:], strict=True)
            )
            rows = of_votes[m].flatten(0, 1).t().contiguous()  # (row, out dim)
            of_maps = rearrange(rows, "(b h w) c -> b c h w", h=height, w=width)  # channels last in memory
            of_image, of_weight = convolution_gradients(of_maps, image, weight, ctx.stride, ctx.padding)
            of_capsules[m].copy_(rearrange(of_image, "b d h w -> b h w d"))
            of_weights.append(of_weight)  # (out dim, in_dim, i, j)
        of_kernels = rearrange(
            torch.stack(of_weights), "inp (out dim) d i j -> inp i j d out dim", out=kernels.shape[4]
        )
        return of_capsules, of_kernels, None, None


def as_convolutions(
    capsules: Float[Tensor, "inp batch height width in_dim"], kernels: Float[Tensor, "inp i j in_dim out dim"]
) -> tuple[Float[Tensor, "inp batch in_dim height width"], Float[Tensor, "inp outs in_dim i j"]]:
    """Capsules and kernels as a convolution takes them, one for each input channel."""
    return (
        rearrange(capsules, "inp b h w d -> inp b d h w"),
        rearrange(kernels, "inp i j d out dim -> inp (out dim) d i j"),
    )
