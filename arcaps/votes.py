"""The convolutional transform: every input capsule predicts every output capsule (eq. 5)."""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from arcaps.errors import ArcapsError
from arcaps.init import glorot_uniform_


class Windows(torch.autograd.Function):
    """The kernel-sized window around each position, `(inp, batch, new_height, new_width, i, j, dim)`, contiguous.

    Outside the input are zeros, `padding` of them above and below, left and right. The gradient is added up window
    place by window place: much faster than torch's own for two unfolds.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, kernel: tuple[int, int], stride: int, padding: tuple[int, int]) -> Tensor:
        ctx.shape, ctx.stride, ctx.padding = capsules.shape, stride, padding
        if any(padding):
            capsules = F.pad(capsules, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        windows = capsules.unfold(2, kernel[0], stride).unfold(3, kernel[1], stride)
        return rearrange(windows, "m b h w d i j -> m b h w i j d").contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        total = gradient.new_zeros(ctx.shape)
        (rows, columns), sizes, counts = gradient.shape[4:6], ctx.shape[2:4], gradient.shape[2:4]
        for i, j in product(range(rows), range(columns)):
            (to_row, of_row), (to_column, of_column) = (
                seen_at(place, size, count, ctx.stride, padding)
                for place, size, count, padding in zip((i, j), sizes, counts, ctx.padding, strict=True)
            )
            total[:, :, to_row, to_column] += gradient[:, :, of_row, of_column, i, j]
        return total, None, None, None


def seen_at(place: int, size: int, windows: int, stride: int, padding: int) -> tuple[slice, slice]:
    """Along one axis: which inputs are at this place of a window, and of which windows."""
    first = max(0, -(-(padding - place) // stride))
    last = min(windows - 1, (size - 1 + padding - place) // stride)
    start = first * stride + place - padding
    return slice(start, start + (last - first) * stride + 1, stride), slice(first, last + 1)


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
    windows = Windows.apply(rearrange(capsules, "b h w m d -> m b h w d"), kernel, stride, padding)
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


class ConvVotes(nn.Module):
    """The convolutional transform: for each pair (m, n) of channels, `s~[n, m] = Conv(u[m])` with a kernel of its own.

    It is a convolution with one group per input channel, computed as a product of patches and kernels.

    The output has the size `ceil(size / stride)` with `padding="same"` (an odd kernel), and that of a valid
    convolution with `padding="valid"`.

    | paper            | here                                                                     |
    |------------------|--------------------------------------------------------------------------|
    | m, N^(l-1)       | input channel, `in_caps`                                                 |
    | n, N^l           | output channel, `out_caps`                                               |
    | D^(l-1), D^l     | `in_dim`, `out_dim`                                                      |
    | s~^(l,n)_(w,h,:,m) | `votes[batch, h, w, n, m]`                                             |
    """

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
        kernel: int | tuple[int, int] = 3,
        stride: int = 1,
        padding: str = "same",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_caps, self.in_dim, self.out_caps, self.out_dim = in_caps, in_dim, out_caps, out_dim
        self.kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        self.stride = stride
        if padding not in ("same", "valid"):
            raise ArcapsError(f"unknown padding {padding!r}: there are same, valid")
        if padding == "same" and not all(side % 2 for side in self.kernel):
            raise ArcapsError(
                f"kernel {self.kernel[0]}x{self.kernel[1]} has no middle: give odd sides, or padding='valid'"
            )
        self.padding = (self.kernel[0] // 2, self.kernel[1] // 2) if padding == "same" else (0, 0)
        self.weight = nn.Parameter(torch.empty(in_caps, *self.kernel, in_dim, out_caps, out_dim))
        self.bias = nn.Parameter(torch.empty(in_caps, out_caps, out_dim)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform for the kernels from one input channel to all output channels, zero biases."""
        area = self.kernel[0] * self.kernel[1]
        glorot_uniform_(self.weight, area * self.in_dim, area * self.out_caps * self.out_dim)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def patches(
        self, capsules: Float[Tensor, "batch height width inp in_dim"]
    ) -> Float[Tensor, "batch new_height new_width inp patch"]:
        """What each kernel sees; with `kernels` it makes the votes."""
        if capsules.shape[-2:] != (self.in_caps, self.in_dim):
            raise ArcapsError(
                f"expected capsules (batch, height, width, {self.in_caps}, {self.in_dim}), got {tuple(capsules.shape)}"
            )
        return make_patches(capsules, self.kernel, stride=self.stride, padding=self.padding)

    @property
    def kernels(self) -> Float[Tensor, "inp patch out dim"]:
        """The weights, with what a kernel sees as one axis."""
        return self.weight.flatten(1, 3)

    def forward(
        self, capsules: Float[Tensor, "batch height width inp in_dim"]
    ) -> Float[Tensor, "batch new_height new_width out inp dim"]:
        return votes_of_patches(self.patches(capsules), self.kernels, self.bias)

    @property
    def keeps_shape(self) -> bool:
        """Whether the output capsules have the shape of the input capsules, so that the two can be added."""
        same_size = self.stride == 1 and self.padding == (self.kernel[0] // 2, self.kernel[1] // 2)
        return same_size and (self.in_caps, self.in_dim) == (self.out_caps, self.out_dim)

    def extra_repr(self) -> str:
        kernel = "x".join(map(str, self.kernel))
        return f"{self.in_caps}x{self.in_dim} -> {self.out_caps}x{self.out_dim}, {kernel}/{self.stride}"
