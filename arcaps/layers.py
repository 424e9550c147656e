"""Capsule layers. `ConvCaps` is the only place where votes, routing and activation meet.

Capsules are `(batch, height, width, caps, dim)` everywhere: a capsule is the last axis, one contiguous vector at one
position. Class capsules are `(batch, caps, dim)`. In memory they lie channel by channel, since the next layer's kernels
see one channel at a time; capsules in another order give the same result, more slowly.
"""

from itertools import pairwise
from math import prod
from typing import Any, Literal, overload

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from arcaps.activation import Activation
from arcaps.dropout import Dropout
from arcaps.errors import ArcapsError
from arcaps.functional import lengths
from arcaps.init import start_plain_layers
from arcaps.routing import Routing
from arcaps.votes import ConvVotes


class PrimaryCaps(nn.Module):
    """From feature maps to capsules: a convolution of `caps * dim` kernels, ReLU, activation (section 3.1, eqs. 3, 4).

    Capsule channel n at a position is the features `n * dim` to `(n + 1) * dim` of that very position.

        PrimaryCaps(64, 8, 16)(features)      # (batch, 64, 28, 28) -> (batch, 14, 14, 8, 16)
    """

    def __init__(
        self,
        in_channels: int,
        caps: int,
        dim: int,
        *,
        kernel: int = 3,
        stride: int = 2,
        padding: int = 1,
        relu: bool = True,
        activation: str = "capsule",
    ) -> None:
        super().__init__()
        self.caps, self.dim = caps, dim
        self.conv = nn.Conv2d(in_channels, caps * dim, kernel, stride=stride, padding=padding)
        self.relu = relu
        self.activation = Activation.build(activation, caps, dim)
        start_plain_layers(self.conv)

    def forward(
        self, features: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch new_height new_width caps dim"]:
        maps = self.conv(features)
        capsules = rearrange(maps.relu_() if self.relu else maps, "b (n d) h w -> b h w n d", n=self.caps)
        return self.activation(capsules)

    def __repr__(self) -> str:
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        return (
            f"PrimaryCaps({self.conv.in_channels} -> {self.caps}x{self.dim}, {kernel}x{kernel}/{stride}, "
            f"{'relu, ' if self.relu else ''}{self.activation})"
        )


class ConvCaps(nn.Module):
    """A capsule layer: votes, then routing, then activation (section 3.3, algorithm 1).

        ConvCaps(8, 16, 8, 32, stride=2)                                       # the paper's
        ConvCaps(8, 16, 8, 32, activation="squash")                            # attention with squash
        ConvCaps(8, 16, 8, 32, routing="dynamic(iterations=5)")                # dynamic routing, capsule activation
        ConvCaps(8, 32, 8, 32, routing="query_key(heads=8)", activation="capsule(compression=4)", residual=True)

        ConvCaps(8, 16, 8, 32, stride=2)(capsules)      # (batch, 14, 14, 8, 16) -> (batch, 7, 7, 8, 32)

    `residual` adds the input capsules before the activation's bound: `u_l = tanh(u_(l-1) + affine(s_l))`. `dropout`
    drops elements of the input capsules before the votes, `channel_dropout` whole channels of them; the residual is
    added undropped. With `images_at_once` the votes of no more images are in memory at a time, and are made again for
    the backward pass: less memory, more work.
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
        routing: str = "attention",
        activation: str = "capsule",
        residual: bool = False,
        dropout: float = 0.0,
        channel_dropout: float = 0.0,
        images_at_once: int | None = None,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.channel_dropout = Dropout(channel_dropout)
        self.images_at_once = images_at_once
        self.votes = ConvVotes(
            in_caps, in_dim, out_caps, out_dim, kernel=kernel, stride=stride, padding=padding, bias=bias
        )
        self.routing = Routing.build(routing, in_caps, out_caps, out_dim)
        self.activation = Activation.build(activation, out_caps, out_dim)
        self.residual = residual
        if residual and not self.votes.keeps_shape:
            raise ArcapsError(f"a residual needs input and output of one shape, not {self.votes}: give residual=False")

    @overload
    def forward(self, capsules: Tensor, *, return_coefficients: Literal[False] = ...) -> Tensor: ...

    @overload
    def forward(self, capsules: Tensor, *, return_coefficients: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        capsules: Float[Tensor, "batch height width inp in_dim"],
        *,
        return_coefficients: bool = False,
    ) -> Float[Tensor, "batch new_height new_width out dim"] | tuple[Tensor, Tensor]:
        """The output capsules; with `return_coefficients` also the coefficients `(..., out_caps, in_caps)`."""
        dropped = self.dropout(capsules)
        if self.training and self.channel_dropout.p:
            dropped = dropped * self.channel_dropout(torch.ones_like(capsules[:, :1, :1, :, :1]))
        inputs = (dropped, *([capsules] if self.residual else []))
        if self.images_at_once is None:
            output, coefficients = self.route(*inputs)
        else:
            slices = zip(*(tensor.split(self.images_at_once) for tensor in inputs), strict=True)
            routed = [checkpoint(self.route, *part, use_reentrant=False, preserve_rng_state=False) for part in slices]
            output, coefficients = (torch.cat(parts) for parts in zip(*routed, strict=True))
        return (output, coefficients) if return_coefficients else output

    def route(self, capsules: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Votes, routing and activation for capsules after dropout: the output capsules and the coefficients."""
        patches = self.votes.patches(capsules)
        routed, coefficients = self.routing.route(patches, self.votes.kernels, self.votes.bias)
        return self.activation(routed, residual), coefficients

    def __repr__(self) -> str:
        options = [str(self.routing), str(self.activation)]
        options += ["residual"] if self.residual else []
        options += [f"dropout {self.dropout.p:g}"] if self.dropout.p else []
        options += [f"channel dropout {self.channel_dropout.p:g}"] if self.channel_dropout.p else []
        options += [f"{self.images_at_once} images at once"] if self.images_at_once is not None else []
        return f"{type(self).__name__}({', '.join([self.votes.extra_repr(), *options])})"


class ClassCaps(ConvCaps):
    """The output layer, "fully conv caps": a `ConvCaps` whose kernel is as large as its input (section 3.4).

    With `layout="text"`, as the paper's text has it, class n's capsule comes from output channel n alone. With
    `layout="code"`, as in the authors' published code, the elements of all output channels are dealt over the classes:
    class j's capsule is made of the elements j, j + N, j + 2 N, ... of the N channels side by side.

    With `per_position` each input capsule votes by itself with a matrix of its own, as in CapsuleNet: the inputs are
    then `height * width * in_caps`, in this order.

        ClassCaps(8, 32, 10, 32, in_size=(7, 7))(capsules)      # (batch, 7, 7, 8, 32) -> (batch, 10, 32)
    """

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
        in_size: tuple[int, int],
        layout: str = "text",
        per_position: bool = False,
        bias: bool = True,
        routing: str = "attention",
        activation: str = "capsule",
        residual: bool = False,
        dropout: float = 0.0,
        channel_dropout: float = 0.0,
        images_at_once: int | None = None,
    ) -> None:
        super().__init__(
            in_caps * prod(in_size) if per_position else in_caps,
            in_dim,
            out_caps,
            out_dim,
            kernel=1 if per_position else in_size,
            padding="valid",
            bias=bias,
            routing=routing,
            activation=activation,
            residual=residual,
            dropout=dropout,
            channel_dropout=channel_dropout,
            images_at_once=images_at_once,
        )
        if layout not in ("text", "code"):
            raise ArcapsError(f"unknown layout {layout!r} of the class layer: there are text, code")
        self.layout = layout
        self.in_size = in_size
        self.per_position = per_position

    def forward(
        self,
        capsules: Float[Tensor, "batch height width inp in_dim"],
        *,
        return_coefficients: bool = False,
    ) -> Any:
        """The class capsules `(batch, out_caps, dim)`; with `return_coefficients` also `(batch, out_caps, inputs)`."""
        if tuple(capsules.shape[1:3]) != self.in_size:
            size, got = ("x".join(map(str, s)) for s in (self.in_size, capsules.shape[1:3]))
            raise ArcapsError(f"this class layer was made for {size} positions, got {got}: make it with in_size={got}")
        if self.per_position:
            capsules = rearrange(capsules, "b h w m d -> b 1 1 (h w m) d")
        output, coefficients = super().forward(capsules, return_coefficients=True)
        output, coefficients = output[:, 0, 0], coefficients[:, 0, 0]
        if self.layout == "code":
            output = rearrange(output.flatten(1), "b (dim caps) -> b caps dim", caps=output.shape[1])
        return (output, coefficients) if return_coefficients else output

    def scores(self, capsules: Float[Tensor, "batch caps dim"]) -> Float[Tensor, "batch caps"]:
        """Each class capsule's length as a part of the longest that the activation allows: in 0..1 (eq. 10)."""
        return lengths(capsules) / self.activation.max_length


class Decoder(nn.Module):
    """Class capsules back to an image: dense layers with ReLU, the last one with a sigmoid (section 3.5).

    All capsules but one should be zero: see `keep_one`.

        Decoder(10, 32, (1, 28, 28))(capsules)      # (batch, 10, 32) -> (batch, 1, 28, 28)
    """

    def __init__(
        self, caps: int, dim: int, image_shape: tuple[int, int, int], *, hidden: tuple[int, ...] = (512, 512)
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.widths = [caps * dim, *hidden, prod(image_shape)]
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(self.widths)]
        self.layers = nn.ModuleList(layers)
        start_plain_layers(self)

    def forward(self, capsules: Float[Tensor, "batch caps dim"]) -> Float[Tensor, "batch channels height width"]:
        values = capsules.flatten(1)
        for layer in self.layers[:-1]:
            values = layer(values).relu()
        return self.layers[-1](values).sigmoid().unflatten(1, self.image_shape)

    def __repr__(self) -> str:
        return f"Decoder({' -> '.join(map(str, self.widths[:-1]))} -> {'x'.join(map(str, self.image_shape))})"
