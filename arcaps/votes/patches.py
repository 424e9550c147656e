"""What a kernel sees, as one vector; and the votes that it makes of it."""

from math import prod

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.compat import needs_plain_functions
from arcaps.functional import autocasts
from arcaps.kernels import PatchVotes, Windows
from arcaps.kernels.windows import plain_windows


def positions_may_come_last(values: Tensor) -> bool:
    """Whether votes of these values may lie with the positions last in memory, the fastest order for the routings.

    Not in programs that are compiled, exported or transformed, in 16 bits, and on devices other than a CPU.
    """
    fast = values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64)
    return fast and not autocasts("cpu") and not needs_plain_functions()


def make_windows(
    capsules: Float[Tensor, "batch height width inp in_dim"],
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Float[Tensor, "inp batch new_height new_width i j in_dim"]:
    """The window of each input channel around each position; outside the input are zeros."""
    channels = rearrange(capsules, "b h w m d -> m b h w d")
    if needs_plain_functions():
        return plain_windows(channels, kernel, stride, padding)
    return Windows.apply(channels, kernel, stride, padding)


def make_patches(
    capsules: Float[Tensor, "batch height width inp in_dim"],
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
) -> Float[Tensor, "batch new_height new_width inp patch"]:
    """What the kernel at each position sees of each input channel, as one vector."""
    if kernel == (1, 1) and stride == 1:
        return capsules
    if kernel == capsules.shape[1:3] and not any(padding):
        return rearrange(capsules, "b i j m d -> b 1 1 m (i j d)")
    windows = make_windows(capsules, kernel, stride=stride, padding=padding)
    return rearrange(windows, "m b h w i j d -> b h w m (i j d)")


def votes_of_patches(
    patches: Float[Tensor, "*where inp patch"],
    weight: Float[Tensor, "inp patch out dim"],
    bias: Float[Tensor, "inp out dim"] | None = None,
    *,
    positions_last: bool = True,
) -> Float[Tensor, "*where out inp dim"]:
    """All votes, as one batched matrix product of patches and kernels: one product for each input channel.

    With many positions the votes lie with the positions last in memory, where they may; with one, as in the class
    layer, or without `positions_last`, with the elements last.
    """
    where, rows = patches.shape[:-2], rearrange(patches, "... inp patch -> inp (...) patch")
    if positions_last and prod(where[1:]) > 1 and positions_may_come_last(patches):
        if bias is None:
            bias = weight.new_zeros(len(weight), *weight.shape[2:])
        columns = PatchVotes.apply(rows, weight.flatten(2), bias.flatten(1))
        return rearrange(columns, "m (n e) p -> p n m e", n=weight.shape[2]).unflatten(0, where)
    if bias is None:
        products = torch.bmm(rows, weight.flatten(2))
    else:
        products = torch.baddbmm(bias.flatten(1).unsqueeze(1), rows, weight.flatten(2))
    votes = rearrange(products, "m p (n e) -> p n m e", n=weight.shape[2])
    return votes.view(*where, *votes.shape[1:])
