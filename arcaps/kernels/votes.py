"""Votes with the positions last in memory, of capsules by convolutions and of patches by products."""

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
    bias: Float[Tensor, "inp out dim"] | None,
    stride: int,
    padding: tuple[int, int],
) -> Float[Tensor, "inp out dim row"]:
    """The votes: what a kernel sees of each input channel, times the kernel, and the bias (eq. 5)."""
    windows = plain_windows(capsules, (kernels.shape[1], kernels.shape[2]), stride, padding)
    votes = einsum(windows, kernels, "inp b h w i j d, inp i j d out dim -> inp out dim b h w").flatten(3)
    return votes if bias is None else votes + bias.unsqueeze(-1)


class ConvolvedVotes(torch.autograd.Function):
    """The faster twin of `plain_convolved_votes`: a convolution for each input channel.

    Convolutions need no windows in memory, which are nine times as large as the capsules, and are the fastest products
    that torch has on a CPU. Their maps have the channels last; a copy of each, while it is in the cache, puts the
    positions last. Capsules that lie channel by channel in memory are read as they are.
    """

    @staticmethod
    def forward(
        ctx: Any, capsules: Tensor, kernels: Tensor, bias: Tensor | None, stride: int, padding: tuple[int, int]
    ) -> Tensor:
        ctx.stride, ctx.padding = stride, padding
        ctx.save_for_backward(capsules, kernels, bias)
        votes: Tensor | None = None
        biases = [None] * len(capsules) if bias is None else bias.flatten(1)
        for m, (image, weight, shift) in enumerate(zip(*as_convolutions(capsules, kernels), biases, strict=True)):
            maps = F.conv2d(image, weight, shift, stride, padding)  # (batch, out dim, new_height, new_width)
            rows = rearrange(maps, "b c h w -> c (b h w)")  # (out dim, row)
            if votes is None:
                ctx.size = maps.shape[2:]
                votes = aligned((len(capsules), *rows.shape), rows)  # (inp, out dim, row)
            votes[m].copy_(rows)
        assert votes is not None
        return votes.unflatten(1, kernels.shape[4:])  # (inp, out, dim, row)

    @staticmethod
    def backward(ctx: Any, of_votes: Tensor) -> tuple[Tensor | None, ...]:
        capsules, kernels, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = (capsules, kernels) if bias is None else (capsules, kernels, bias)
            found = plain_gradients(
                lambda first, second, third=None: plain_convolved_votes(first, second, third, ctx.stride, ctx.padding),
                given,
                (of_votes,),
            )
            return *found, *[None] * (5 - len(found))
        of_capsules = capsules.new_empty(capsules.shape)  # (inp, batch, height, width, in_dim)
        of_weights = []
        images, weights = as_convolutions(capsules, kernels)
        for m, (image, weight) in enumerate(zip(images, weights, strict=True)):
            rows = of_votes[m].flatten(0, 1).t().contiguous()  # (row, out dim)
            of_maps = rearrange(rows, "(b h w) c -> b c h w", h=ctx.size[0], w=ctx.size[1])  # channels last in memory
            of_image, of_weight = convolution_gradients(of_maps, image, weight, ctx.stride, ctx.padding)
            of_capsules[m].copy_(rearrange(of_image, "b d h w -> b h w d"))
            of_weights.append(of_weight)  # (out dim, in_dim, i, j)
        of_kernels = rearrange(
            torch.stack(of_weights), "inp (out dim) d i j -> inp i j d out dim", out=kernels.shape[4]
        )
        of_bias = None if bias is None else of_votes.sum(-1)  # (inp, out, dim)
        return of_capsules, of_kernels, of_bias, None, None


def as_convolutions(
    capsules: Float[Tensor, "inp batch height width in_dim"], kernels: Float[Tensor, "inp i j in_dim out dim"]
) -> tuple[Float[Tensor, "inp batch in_dim height width"], Float[Tensor, "inp outs in_dim i j"]]:
    """Capsules and kernels as a convolution takes them, one for each input channel."""
    return (
        rearrange(capsules, "inp b h w d -> inp b d h w"),
        rearrange(kernels, "inp i j d out dim -> inp (out dim) d i j"),
    )


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
