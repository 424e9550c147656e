"""Activations: the routed vector becomes the output capsule."""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from arcaps.errors import ArcapsError
from arcaps.functional import in_autocast, squash, squash_variant
from arcaps.init import glorot_uniform_
from arcaps.registry import Named


class Activation(nn.Module, Named, ABC, kind="activation"):
    """A function of each capsule by itself: `bound(residual + transform(s))`.

    A subclass defines `bound`, which keeps a capsule no longer than `max_length`, and, if it has parameters,
    `transform`. The constructor takes `(caps, dim)`, then its options by keyword.
    """

    max_length: float
    """No capsule out of this activation is longer, so a length divided by it is in 0..1."""

    def __init__(self, caps: int, dim: int) -> None:
        super().__init__()
        self.caps, self.dim = caps, dim
        self.max_length = 1.0

    def transform(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        """What is done to the routed vector before the residual is added."""
        return capsules

    @abstractmethod
    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        """Keep each capsule within `max_length`."""

    def forward(
        self,
        capsules: Float[Tensor, "*where caps dim"],
        residual: Float[Tensor, "*where caps dim"] | None = None,
    ) -> Float[Tensor, "*where caps dim"]:
        capsules = self.transform(capsules)
        return self.bound(capsules if residual is None else residual + capsules)

    def __repr__(self) -> str:
        return self.name


class ChannelProduct(torch.autograd.Function):
    """`capsules[:, n] @ weight[n] + bias[n]` for every channel n.

    The products lie channel by channel in memory, as the next layer reads them; the gradient of the capsules lies as
    the capsules do.
    """

    @staticmethod
    def forward(ctx: Any, capsules: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(capsules, weight)
        return torch.baddbmm(bias.unsqueeze(1), capsules.transpose(0, 1), weight).transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        capsules, weight = ctx.saved_tensors
        of_capsules = torch.empty_like(capsules)
        torch.bmm(gradient.transpose(0, 1), weight.transpose(1, 2), out=of_capsules.transpose(0, 1))
        of_weight = torch.bmm(capsules.permute(1, 2, 0), gradient.transpose(0, 1))
        return of_capsules, of_weight, gradient.sum(0)


class ChannelAffine(nn.Module):
    """One affine map per capsule channel, shared by all positions: a 1x1 convolution of each channel."""

    def __init__(self, caps: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(caps, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(caps, out_dim))
        glorot_uniform_(self.weight, in_dim, out_dim)

    def forward(self, capsules: Float[Tensor, "*where caps in_dim"]) -> Float[Tensor, "*where caps out_dim"]:
        if torch.compiler.is_exporting():  # an exported program has no gradient of its own
            return einsum(capsules, self.weight, "... caps d, caps d e -> ... caps e") + self.bias
        rows = capsules.flatten(0, -3)
        product: Tensor = ChannelProduct.apply(*in_autocast(rows, self.weight, self.bias))
        return product.unflatten(0, capsules.shape[:-2])

    def extra_repr(self) -> str:
        return "{}, {} -> {}".format(*self.weight.shape)


class CapsuleActivation(Activation, name="capsule"):
    """The paper's capsule activation: an affine map of each capsule channel, then tanh (eqs. 4 and 9).

    With `compression=r` the affine map goes D -> D/r -> D, the feature compression that the paper's conclusion leaves
    to the future. With `across` one affine map goes across all channels, N * D -> N * D: every output capsule is made
    of all the routed vectors of its position. It is meant for the class layer, where it lets all channels serve every
    class.
    """

    def __init__(self, caps: int, dim: int, *, compression: int = 1, across: bool = False) -> None:
        super().__init__(caps, dim)
        if compression < 1 or dim % compression:
            raise ArcapsError(
                f"compression {compression} does not divide the capsule dimension {dim}: give a divisor of it"
            )
        self.compression, self.across = compression, across
        self.max_length = dim**0.5
        groups, size = (1, caps * dim) if across else (caps, dim)
        widths = [size, size] if compression == 1 else [size, size // compression, size]
        self.affine = nn.Sequential(*(ChannelAffine(groups, d, e) for d, e in pairwise(widths)))

    def transform(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        if not self.across:
            return self.affine(capsules)
        joined = self.affine(rearrange(capsules, "... caps dim -> ... 1 (caps dim)"))
        return rearrange(joined, "... 1 (caps dim) -> ... caps dim", caps=self.caps)

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return capsules.tanh()

    def __repr__(self) -> str:
        options = [f"compression={self.compression}"] if self.compression > 1 else []
        options += ["across=True"] if self.across else []
        return f"{self.name}({', '.join(options)})" if options else self.name


class Squash(Activation, name="squash"):
    """CapsuleNet's squash (eq. 1)."""

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return squash(capsules)


class SquashVariant(Activation, name="squash_variant"):
    """The squash variant (eq. 2)."""

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return squash_variant(capsules)
