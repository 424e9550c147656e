"""Activations: the routed vector becomes the output capsule."""

from abc import ABC, abstractmethod
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.compat import needs_plain_functions
from arcaps.errors import ArcapsError
from arcaps.functional import in_autocast, squash, squash_variant
from arcaps.init import glorot_uniform_
from arcaps.kernels import ChannelProduct
from arcaps.kernels.channels import plain_channel_product
from arcaps.norm import CapsuleNorm
from arcaps.registry import Named


class Activation(nn.Module, Named, ABC, kind="activation"):
    """A function of each capsule by itself: `bound(residual + transform(s))`.

    A subclass defines `bound`, which keeps a capsule no longer than `max_length`, and, if it has parameters,
    `transform`. The constructor takes `(caps, dim)`, then its options by keyword.
    """

    max_length: float | None
    """No capsule out of this activation is longer, so a length divided by it is in 0..1. None: there is no limit."""

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


class ChannelAffine(nn.Module):
    """One affine map per capsule channel, shared by all positions: a 1x1 convolution of each channel."""

    def __init__(self, caps: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(caps, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(caps, out_dim))
        glorot_uniform_(self.weight, in_dim, out_dim)

    def forward(self, capsules: Float[Tensor, "*where caps in_dim"]) -> Float[Tensor, "*where caps out_dim"]:
        if needs_plain_functions():
            return plain_channel_product(capsules, self.weight, self.bias)
        rows = capsules.flatten(0, -3)
        product: Tensor = ChannelProduct.apply(*in_autocast(rows, self.weight, self.bias))
        return product.unflatten(0, capsules.shape[:-2])

    def extra_repr(self) -> str:
        return "{}, {} -> {}".format(*self.weight.shape)


class CapsuleActivation(Activation, name="capsule"):
    """The paper's capsule activation: an affine map of each capsule channel, then tanh (eqs. 4 and 9).

        u[n] = tanh(Conv_1x1(s[n])) = tanh(W[n] s[n] + b[n])      the same at every position

    With `compression=r` the affine map goes D -> D/r -> D, the feature compression that the paper's conclusion leaves
    to the future. With `across` one affine map goes across all channels, N * D -> N * D: every output capsule is made
    of all the routed vectors of its position. It is meant for the class layer, where it lets all channels serve every
    class. With `norm` the affine map is followed by BatchNorm of each element over images and positions, with momentum
    0.1, as a convolution is in a CNN; `fold` puts it into the map after training. With `images_at_once` it sees only
    those images.
    """

    def __init__(self, caps: int, dim: int, *, compression: int = 1, across: bool = False, norm: bool = False) -> None:
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
        self.norm = CapsuleNorm(caps, dim) if norm else None

    def transform(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        mapped = self.map(capsules)
        return mapped if self.norm is None else self.norm(mapped)

    def map(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        """The affine map, or two of them."""
        if not self.across:
            return self.affine(capsules)
        joined = self.affine(rearrange(capsules, "... caps dim -> ... 1 (caps dim)"))
        return rearrange(joined, "... 1 (caps dim) -> ... caps dim", caps=self.caps)

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return capsules.tanh()

    @torch.no_grad()
    def fold(self) -> None:
        """Let the affine map do what BatchNorm does after training."""
        if self.norm is not None:
            scale, shift = self.norm.as_affine()
            last = self.affine[-1]
            assert isinstance(last, ChannelAffine)
            last.weight.mul_(scale.view_as(last.bias).unsqueeze(1))
            last.bias.mul_(scale.view_as(last.bias)).add_(shift.view_as(last.bias))
            self.norm = None


class Squash(Activation, name="squash"):
    """CapsuleNet's squash (eq. 1)."""

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return squash(capsules)


class SquashVariant(Activation, name="squash_variant"):
    """The squash variant (eq. 2)."""

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return squash_variant(capsules)


class Identity(Activation, name="identity"):
    """The routed vector itself. Its length says nothing of its presence."""

    def __init__(self, caps: int, dim: int) -> None:
        super().__init__(caps, dim)
        self.max_length = None

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return capsules


class LayerNorm(Activation, name="layer_norm"):
    """Each capsule with mean 0 and variance 1, then a learned scale and shift of the elements of each channel.

    Its length says nothing of its presence.
    """

    def __init__(self, caps: int, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__(caps, dim)
        self.max_length, self.eps = None, eps
        self.weight = nn.Parameter(torch.ones(caps, dim))
        self.bias = nn.Parameter(torch.zeros(caps, dim))

    def bound(self, capsules: Float[Tensor, "*where caps dim"]) -> Float[Tensor, "*where caps dim"]:
        return F.layer_norm(capsules, (self.dim,), eps=self.eps) * self.weight + self.bias


def list_activations() -> list[str]:
    """The names of all activations, those of your own too."""
    return sorted(Activation.known)
