"""Capsule layers. `ConvCaps` is the only place where votes, routing, competition and activation meet.

Capsules are `(batch, height, width, caps, dim)` everywhere: a capsule is the last axis, one contiguous vector at one
position. Class capsules are `(batch, caps, dim)`. A layer takes `Capsules`, or a plain tensor of poses, and returns
`Capsules`. In memory they lie channel by channel, since the next layer's kernels see one channel at a time; capsules
in another order give the same result, more slowly.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from arcaps.activation import Activation
from arcaps.capsules import Capsules, Routed, as_capsules
from arcaps.competition import Competition
from arcaps.dropout import Dropout
from arcaps.errors import ArcapsError
from arcaps.init import own_random_numbers, start_plain_layers
from arcaps.norm import forward_and_again
from arcaps.routing import Routing
from arcaps.votes import ConvVotes, Votes


class PrimaryCaps(nn.Module):
    """From feature maps to capsules: a convolution of `caps * dim` kernels, ReLU, activation (section 3.1, eqs. 3, 4).

        s[n] = ReLU(Conv_3x3(x));   u[n] = activation(s[n])

    Capsule channel n at a position is the features `n * dim` to `(n + 1) * dim` of that very position. With
    `presence` a second convolution of `caps` kernels and a sigmoid say how sure each capsule is to be there. With
    `divide_by` the convolution is divided by that number, its bias is not.

        PrimaryCaps(64, 8, 16)(features)      # (batch, 64, 28, 28) -> poses (batch, 14, 14, 8, 16)
    """

    def __init__(
        self,
        in_channels: int,
        caps: int,
        dim: int,
        *,
        kernel: int | tuple[int, int] = 3,
        stride: int = 2,
        padding: int = 1,
        groups: int = 1,
        relu: bool = True,
        activation: str | Activation | Callable[..., Activation] = "capsule",
        presence: bool = False,
        divide_by: int = 1,
    ) -> None:
        super().__init__()
        self.caps, self.dim, self.divide_by = caps, dim, divide_by
        self.conv = nn.Conv2d(in_channels, caps * dim, kernel, stride=stride, padding=padding, groups=groups)
        self.relu = relu
        self.activation = Activation.build(activation, caps, dim)
        start_plain_layers(self)
        self.presence: nn.Conv2d | None = None
        with own_random_numbers():
            if presence:
                self.presence = nn.Conv2d(in_channels, caps, kernel, stride=stride, padding=padding)
                start_plain_layers(self.presence)

    def forward(self, features: Float[Tensor, "batch channels height width"]) -> Capsules:
        """Capsules `(batch, new_height, new_width, caps, dim)`."""
        maps = self.conv(features if self.divide_by == 1 else features / self.divide_by)
        capsules = rearrange(maps.relu_() if self.relu else maps, "b (n d) h w -> b h w n d", n=self.caps)
        presence = None
        if self.presence is not None:
            presence = rearrange(self.presence(features).sigmoid(), "b n h w -> b h w n")
        return Capsules(self.activation(capsules), presence)

    def __repr__(self) -> str:
        kernel, stride = "x".join(map(str, self.conv.kernel_size)), self.conv.stride[0]
        options = [f"{self.conv.groups} groups"] if self.conv.groups > 1 else []
        options += [f"divided by {self.divide_by}"] if self.divide_by != 1 else []
        options += ["relu"] if self.relu else []
        options += [str(self.activation)]
        options += ["presence"] if self.presence is not None else []
        shapes = f"{self.conv.in_channels} -> {self.caps}x{self.dim}, {kernel}/{stride}"
        return f"PrimaryCaps({', '.join([shapes, *options])})"


class ConvCaps(nn.Module):
    """A capsule layer: votes, then routing, then activation (section 3.3, algorithm 1).

        ConvCaps(8, 16, 8, 32, stride=2)                                       # the paper's
        ConvCaps(8, 16, 8, 32, activation="squash")                            # attention with squash
        ConvCaps(8, 16, 8, 32, routing="dynamic(iterations=5)")                # dynamic routing, capsule activation
        ConvCaps(8, 16, 8, 32, routing="dynamic", votes="window", competition="overlap")
        ConvCaps(8, 32, 8, 32, routing="query_key(heads=8)", activation="capsule(compression=4)", residual=True)

        ConvCaps(8, 16, 8, 32, stride=2)(capsules).poses      # (batch, 14, 14, 8, 16) -> (batch, 7, 7, 8, 32)

    Each part is a name with options, a finished part, or a callable that makes one. `residual` adds the input poses
    before the activation's bound: `u_l = tanh(u_(l-1) + affine(s_l))`. `dropout` drops elements of the input poses
    before the votes, `channel_dropout` whole channels of them; the residual is added undropped. With `images_at_once`
    the votes of no more images are in memory at a time, and are made again for the backward pass: less memory, more
    work.
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
        votes: str | Votes | Callable[..., Votes] = "conv",
        routing: str | Routing | Callable[..., Routing] = "attention",
        competition: str | Competition | Callable[..., Competition] = "outputs",
        activation: str | Activation | Callable[..., Activation] = "capsule",
        residual: bool = False,
        dropout: float = 0.0,
        channel_dropout: float = 0.0,
        images_at_once: int | None = None,
    ) -> None:
        super().__init__()
        if images_at_once is not None and images_at_once < 1:
            raise ArcapsError(f"{images_at_once} images at once: give at least 1, or None for all")
        self.in_caps, self.in_dim, self.out_caps, self.out_dim = in_caps, in_dim, out_caps, out_dim
        self.dropout = Dropout(dropout)
        self.channel_dropout = Dropout(channel_dropout)
        self.images_at_once = images_at_once
        self.votes = Votes.build(votes, in_caps, in_dim, out_caps, out_dim, kernel, stride, padding, bias)
        with own_random_numbers():
            self.routing = Routing.build(routing, self.votes.inputs, out_caps, out_dim, in_dim=self.votes.patch_dim)
        self.competition = Competition.build(competition)
        self.activation = Activation.build(activation, out_caps, out_dim)
        self.residual = residual
        self.check_parts()

    def check_parts(self) -> None:
        """Refuse parts that do not work together."""
        out = {"out_caps": self.out_caps, "out_dim": self.out_dim}
        require_sizes("votes", self.votes, in_caps=self.in_caps, in_dim=self.in_dim, **out)
        require_sizes("routing", self.routing, in_caps=self.votes.inputs, out_caps=self.out_caps, dim=self.out_dim)
        require_sizes("activation", self.activation, caps=self.out_caps, dim=self.out_dim)
        if self.residual and not self.votes.keeps_shape:
            shapes = self.votes.signature()
            raise ArcapsError(f"a residual needs input and output of one shape, not {shapes}: give residual=False")
        competes = "compete" in self.routing.needs and self.routing.divides != "inputs"
        if self.competition.spec != "outputs" and not competes:
            raise ArcapsError(
                f"routing {self.routing} knows no competition, so {self.competition} would change nothing: "
                "give competition='outputs', or another routing, such as dynamic"
            )
        if self.competition.leak and self.routing.logits_are_densities:
            raise ArcapsError(
                f"the logits of routing {self.routing} are densities, and the leak of {self.competition} has the logit "
                "0, which means nothing there: give the competition without a leak, or another routing, such as dynamic"
            )
        if self.competition.needs_overlap and self.votes.overlap(*self.votes.kernel) is None:
            raise ArcapsError(
                f"competition {self.competition} needs votes that come from one capsule each, and votes "
                f"{self.votes} do not: give votes='window'"
            )

    def forward(self, capsules: Capsules | Float[Tensor, "batch height width inp in_dim"]) -> Capsules:
        """The output capsules `(batch, new_height, new_width, out_caps, out_dim)`, with the coefficients."""
        capsules = as_capsules(capsules)
        dropped = self.dropout(capsules.poses)
        if self.training and self.channel_dropout.p:
            dropped = dropped * self.channel_dropout(torch.ones_like(capsules.poses[:, :1, :1, :, :1]))
        inputs = (dropped, capsules.presence, capsules.poses if self.residual else None)
        if self.images_at_once is None:
            return self.route(*inputs)
        slices = zip(*self.split(inputs), strict=True)
        again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": forward_and_again}
        parts = [checkpoint(self.route, *part, **again) for part in slices]
        poses, presence, coefficients = (
            None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True)
        )
        assert poses is not None
        return Capsules(poses, presence, coefficients)

    def split(self, inputs: tuple[Tensor | None, ...]) -> list[tuple[Tensor | None, ...]]:
        """The tensors in slices of a few images each."""
        assert inputs[0] is not None
        assert self.images_at_once is not None
        count = max(1, -(-len(inputs[0]) // self.images_at_once))
        return [(None,) * count if one is None else one.split(self.images_at_once) for one in inputs]

    def route(self, poses: Tensor, presence: Tensor | None = None, residual: Tensor | None = None) -> Capsules:
        """Votes, routing and activation for poses after dropout."""
        routed = self.routed(Capsules(poses, presence))
        return Capsules(self.activation(routed.capsules, residual), routed.presence, routed.coefficients)

    def routed(self, capsules: Capsules) -> Routed:
        """Votes and routing. A routing gets only what it needs. Presence is in the number format of the poses."""
        if capsules.presence is not None:
            capsules = capsules._replace(presence=capsules.presence.to(capsules.poses.dtype))
        presence = self.votes.presence(capsules)
        if presence is None and isinstance(self.votes, ConvVotes) and self.plain:
            return Routed(*self.routing.route(self.votes, capsules.poses))
        poses = self.votes.seen(capsules)
        patches = self.votes.patches(poses)
        votes = self.votes.of_patches(patches)
        if presence is not None and "presence" not in self.routing.needs:
            votes = votes * presence[..., None, :, None]
        overlap = self.votes.overlap(*poses.shape[1:3]) if self.competition.needs_overlap else None
        make: dict[str, Callable[[], Any]] = {
            "presence": lambda: presence,
            "inputs": lambda: patches,
            "compete": lambda: partial(self.competition, overlap=overlap, presence=presence),
        }
        return Routed(*self.routing(votes, **{name: make[name]() for name in sorted(self.routing.needs)}))

    @property
    def plain(self) -> bool:
        """Whether the routing needs no more than votes, where all inputs are there."""
        return "inputs" not in self.routing.needs and self.competition.spec == "outputs"

    def __repr__(self) -> str:
        options = [str(self.routing)]
        options += [str(self.competition)] if self.competition.spec != "outputs" else []
        options += [str(self.activation)]
        options += ["residual"] if self.residual else []
        options += [f"dropout {self.dropout.p:g}"] if self.dropout.p else []
        options += [f"channel dropout {self.channel_dropout.p:g}"] if self.channel_dropout.p else []
        options += [f"{self.images_at_once} images at once"] if self.images_at_once is not None else []
        return f"{type(self).__name__}({', '.join([self.votes.signature(), *options])})"


def require_sizes(kind: str, part: nn.Module, **sizes: int) -> None:
    """Refuse a finished part that was made for another layer."""
    for name, size in sizes.items():
        if (found := getattr(part, name, size)) != size:
            raise ArcapsError(f"this {kind} {part} has {name} {found}, the layer {size}: make it with {name}={size}")


class ClassCaps(ConvCaps):
    """The output layer, "fully conv caps": a `ConvCaps` whose kernel is as large as its input (section 3.4).

    With `layout="text"`, as the paper's text has it, class n's capsule comes from output channel n alone. With
    `layout="code"`, as in the authors' published code, the elements of all output channels are distributed over the
    classes: class j's capsule is made of the elements j, j + N, j + 2 N, ... of the N channels side by side.

    With `votes="window"` each input capsule votes by itself with a matrix of its own, as in CapsuleNet: the inputs are
    then `height * width * in_caps`, in this order.

        ClassCaps(8, 32, 10, 32, in_size=(7, 7))(capsules).poses      # (batch, 7, 7, 8, 32) -> (batch, 10, 32)

    The other options are those of `ConvCaps`.
    """

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
        in_size: int | tuple[int, int],
        layout: str = "text",
        **options: Any,
    ) -> None:
        for taken in ("kernel", "stride", "padding"):
            if taken in options:
                raise ArcapsError(
                    f"a class layer sees its whole input: leave {taken} out, in_size says how large it is"
                )
        super().__init__(in_caps, in_dim, out_caps, out_dim, kernel=in_size, padding="valid", **options)
        if layout not in ("text", "code"):
            raise ArcapsError(f"unknown layout {layout!r} of the class layer: there are text, code")
        self.layout = layout
        self.in_size = self.votes.kernel

    def forward(self, capsules: Capsules | Float[Tensor, "batch height width inp in_dim"]) -> Capsules:
        """The class capsules `(batch, out_caps, dim)`, with the coefficients `(batch, out_caps, inputs)`."""
        capsules = as_capsules(capsules)
        if tuple(capsules.poses.shape[1:3]) != self.in_size:
            size, got = ("x".join(map(str, s)) for s in (self.in_size, capsules.poses.shape[1:3]))
            raise ArcapsError(f"this class layer was made for {size} positions, got {got}: make it with in_size={got}")
        poses, presence, coefficients = super().forward(capsules)
        return Capsules(
            self.of_channels(poses[:, 0, 0]),
            None if presence is None else presence[:, 0, 0],
            None if coefficients is None else coefficients[:, 0, 0],
        )

    def of_channels(self, channels: Float[Tensor, "batch caps dim"]) -> Float[Tensor, "batch caps dim"]:
        """The class capsules that these output channels make, by the layout."""
        if self.layout == "text":
            return channels
        return rearrange(channels.flatten(1), "b (dim caps) -> b caps dim", caps=channels.shape[1])


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
