"""What a kernel sees, as one vector; and the votes that it makes of it."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.compat import needs_plain_functions
from arcaps.kernels import Windows
from arcaps.kernels.windows import plain_windows


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
) -> Float[Tensor, "*where out inp dim"]:
    """All votes, as one batched matrix product of patches and kernels: one product for each input channel."""
    rows = patches.flatten(0, -3).transpose(0, 1)
    if bias is None:
        products = torch.bmm(rows, weight.flatten(2))
    else:
        products = torch.baddbmm(bias.flatten(1).unsqueeze(1), rows, weight.flatten(2))
    votes = rearrange(products, "m p (n e) -> p n m e", n=weight.shape[2])
    return votes.unflatten(0, patches.shape[:-2])
