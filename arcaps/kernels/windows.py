"""The windows of a convolution over capsules."""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from arcaps.kernels.twice import plain_gradients


def plain_windows(
    capsules: Float[Tensor, "inp batch height width dim"],
    kernel: tuple[int, int],
    stride: int,
    padding: tuple[int, int],
) -> Float[Tensor, "inp batch new_height new_width i j dim"]:
    """The kernel-sized window around each position; outside the input are zeros."""
    capsules = F.pad(capsules, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = capsules.unfold(2, kernel[0], stride).unfold(3, kernel[1], stride)
    return rearrange(windows, "m b h w d i j -> m b h w i j d")


class Windows(torch.autograd.Function):
    """The faster twin of `plain_windows`: its result is contiguous.

    The gradient is added up window place by window place: much faster than torch's own for two unfolds.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, kernel: tuple[int, int], stride: int, padding: tuple[int, int]) -> Tensor:
        ctx.shape, ctx.kernel, ctx.stride, ctx.padding = capsules.shape, kernel, stride, padding
        if any(padding):  # (inp, batch, height, width, dim) -> (inp, batch, height + 2p, width + 2q, dim)
            capsules = F.pad(capsules, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        windows = capsules.unfold(2, kernel[0], stride)  # (inp, batch, new_height, width + 2q, dim, i)
        windows = windows.unfold(3, kernel[1], stride)  # (inp, batch, new_height, new_width, dim, i, j)
        return rearrange(windows, "m b h w d i j -> m b h w i j d").contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        if torch.is_grad_enabled():  # the windows are linear in the capsules: any capsules will do
            capsules = gradient.new_zeros(ctx.shape).requires_grad_()
            again = plain_gradients(
                lambda values: plain_windows(values, ctx.kernel, ctx.stride, ctx.padding), [capsules], [gradient]
            )
            return again[0], None, None, None
        total = gradient.new_zeros(ctx.shape)  # (inp, batch, height, width, dim)
        (rows, columns), sizes, counts = gradient.shape[4:6], ctx.shape[2:4], gradient.shape[2:4]
        for i, j in product(range(rows), range(columns)):  # each place in the window
            (to_row, of_row), (to_column, of_column) = (
                seen_at(place, size, count, ctx.stride, padding)
                for place, size, count, padding in zip((i, j), sizes, counts, ctx.padding, strict=True)
            )
            total[:, :, to_row, to_column] += gradient[:, :, of_row, of_column, i, j]  # (inp, batch, some, some, dim)
        return total, None, None, None


def seen_at(place: int, size: int, windows: int, stride: int, padding: int) -> tuple[slice, slice]:
    """Along one axis: which inputs are at this place of a window, and of which windows."""
    first = max(0, -(-(padding - place) // stride))
    last = min(windows - 1, (size - 1 + padding - place) // stride)
    start = first * stride + place - padding
    return slice(start, start + (last - first) * stride + 1, stride), slice(first, last + 1)
