"""AR CapsNet and CapsuleNet, and what capsule networks have in common."""

from collections.abc import Iterator
from math import prod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from arcaps.capsules import Capsules
from arcaps.competition import Competition
from arcaps.errors import ArcapsError
from arcaps.functional import keep_labelled, keep_one, normalised_entropy, widened
from arcaps.layers import ClassCaps, ConvCaps, Decoder, PrimaryCaps
from arcaps.losses import Loss, reconstruction_loss
from arcaps.models.base import BatchLike, Classifier, Labels, Output, traceable
from arcaps.models.blocks import ConvBlock, make_stages
from arcaps.registry import parse_spec
from arcaps.routing import Routing
from arcaps.scores import Score
from arcaps.settings import ARCapsNetConfig, CapsuleNetConfig


class CapsuleClassifier(Classifier):
    """Stem, primary capsules, any number of conv capsule layers, class capsules, score, decoder."""

    stem: nn.Sequential
    primary: PrimaryCaps
    conv_caps: nn.ModuleList
    class_caps: ClassCaps
    score: Score
    loss_function: Loss
    decoder: Decoder | None
    reconstruction_weight: float
    entropy_weight: float = 0.0

    def routing_layers(self) -> Iterator[tuple[str, ConvCaps]]:
        """Every layer that routes, by name, first layer first."""
        for index, layer in enumerate(self.conv_caps):
            assert isinstance(layer, ConvCaps)
            yield f"conv_caps.{index}", layer
        yield "class_caps", self.class_caps

    def feature_layers(self) -> Iterator[tuple[str, nn.Module]]:
        yield "stem", self.stem
        yield "primary", self.primary
        yield from self.routing_layers()

    def forward(self, images: Float[Tensor, "batch channels height width"], labels: Labels | None = None) -> Output:
        """Answer for `images`. `labels` say which capsules the decoder shows; without them, the best scored one."""
        if labels is not None and (len(labels) != len(images) or (labels.ndim == 1 and labels.is_floating_point())):
            found = f"{tuple(labels.shape)} of {labels.dtype}"
            raise ArcapsError(f"{len(images)} images and labels {found}: give a class number for each image")
        capsules: Capsules = self.primary(self.stem(self.accept(images)))
        coefficients = {}
        for name, layer in self.routing_layers():
            capsules = layer(capsules)
            assert capsules.coefficients is not None
            coefficients[name] = capsules.coefficients
        scores, logits = self.score(capsules)
        reconstruction = None
        if self.decoder is not None:
            poses = capsules.poses
            shown = keep_one(poses, scores.argmax(-1)) if labels is None else keep_labelled(poses, labels)
            reconstruction = self.decoder(shown)
        return traceable(Output(scores, capsules.poses, reconstruction, logits, coefficients))

    def losses(self, output: Output, batch: BatchLike, progress: float = 1.0) -> dict[str, Tensor]:
        loss = self.loss_function
        parts = {loss.name: loss(output.scores, batch.labels, logits=output.logits, progress=progress)}
        if output.reconstruction is not None:
            parts["reconstruction"] = self.reconstruction_weight * reconstruction_loss(
                output.reconstruction, batch.images
            )
        if self.entropy_weight:
            entropy = normalised_entropy(widened(output.coefficients["class_caps"]))
            parts["entropy"] = self.entropy_weight * (1 - entropy).mean()
        return parts


POOLED_VOTES = "window(shared=True, coordinates=True)"
POOLED_ROUTING = "score(score='additive', query='mean')"
"""In place of attention routing, whose parameters know each input by its number, and grow with their square."""


class ARCapsNet(CapsuleClassifier, name="ar_capsnet"):
    """Attention Routing CapsuleNet (section 3), with the paper's MNIST network as the default.

    Its options are the fields of `arcaps.settings.ARCapsNetConfig`. The class layer's parameters grow with the area it
    sees: for larger images give more layers a stride of 2. With `head="pooled"` they do not: each input capsule votes
    by itself, with matrices that all positions share, so a shift does not have to be learned at every position. Such a
    head sees an image part by part: give it residual stages below, `stages=(32, 64), activation="capsule(norm=True)",
    class_activation="capsule"`, without which it learns slowly.
    """

    config_class = ARCapsNetConfig
    reconstruction_weight = 0.3
    channels_last = True

    def __init__(self, **options: Any) -> None:
        c = ARCapsNetConfig(**options)
        super().__init__(c)
        assert c.strides is not None
        strided = c.strided
        self.require_size(max(8, 2 ** (strided + 1)), f"{strided} strided layers")
        self.stem = nn.Sequential(
            ConvBlock(c.channels, c.stem_channels, norm=True, momentum=c.batch_norm_momentum),
            ConvBlock(c.stem_channels, c.stem_channels, norm=True, momentum=c.batch_norm_momentum),
            *make_stages((c.stem_channels, *c.stages), c.batch_norm_momentum),
        )
        features = (c.stem_channels, *c.stages)[-1]
        presence = gives_presence(c.routing) if c.presence is None else c.presence
        self.primary = PrimaryCaps(features, c.caps, c.primary_dim, activation=c.activation, presence=presence)
        dims = [c.primary_dim, *[c.dim] * c.layers]
        of_every_layer: dict[str, Any] = {
            "votes": c.votes,
            "routing": c.routing,
            "competition": c.competition,
            "activation": c.activation,
            "dropout": c.dropout,
            "images_at_once": c.images_at_once,
        }
        self.conv_caps = nn.ModuleList(
            ConvCaps(
                c.caps,
                dims[index],
                c.caps,
                c.dim,
                stride=stride,
                residual=c.residual and index > 0 and stride == 1,
                **of_every_layer,
            )
            for index, stride in enumerate(c.strides)
        )
        scale = 2**strided
        height, width = (-(-side // scale) for side in self.image_size)
        pooled = c.head == "pooled"
        of_class_layer = {
            **of_every_layer,
            "layout": c.layout,
            "votes": c.class_votes or (POOLED_VOTES if pooled else c.votes),
            "routing": c.class_routing or (pooled_routing(c.routing) if pooled else c.routing),
            "activation": c.class_activation or c.activation,
            "channel_dropout": c.channel_dropout,
        }
        self.class_caps = ClassCaps(c.caps, dims[-1], c.classes, c.dim, in_size=(height, width), **of_class_layer)
        self.score = Score.build(c.score, c.classes, c.dim, self.class_caps.activation.max_length)
        self.loss_function = Loss.build(c.loss)
        self.entropy_weight = c.entropy
        self.decoder = Decoder(c.classes, c.dim, (c.channels, *self.image_size)) if c.decoder else None


def gives_presence(routing: str) -> bool:
    """Whether the routing of this name gives presence."""
    return Routing.find(parse_spec(routing, Routing.kind)[0]).gives_presence


def pooled_routing(routing: str) -> str:
    """The routing of a pooled head, in a network with this one."""
    return POOLED_ROUTING if parse_spec(routing, Routing.kind)[0] == "attention" else routing


class CapsuleNet(CapsuleClassifier, name="capsule_net"):
    """The capsule network with dynamic routing that the paper compares with ("Dynamic routing between capsules", 2017).

    9x9 convolution, 9x9 primary capsules with stride 2, one matrix per input capsule, squash, dynamic routing. Its
    options are the fields of `arcaps.settings.CapsuleNetConfig`.

    With `faithful` it follows the authors' published code where that differs from their text. There the primary layer
    is a routed layer too, of one input and 32 outputs, so the input divides itself:

        u[n] = squash(Conv(x)[n] / 32 + b[n])      by 33 with a leak (`competition="outputs(leak=True)"`)

    The class capsules have a bias inside every iteration of the routing; all biases start at 0.1, all weights as
    truncated normal numbers with standard deviation 0.1, those of the first convolution 0.05. Their margin loss is the
    mean over the ten classes, halved, with the reconstruction as in the text, so on the scale of our sum the latter
    weighs 20 times more: 0.01 times the number of pixels, 7.84 on MNIST.
    """

    config_class = CapsuleNetConfig
    reconstruction_weight = 0.392

    def __init__(self, **options: Any) -> None:
        c = CapsuleNetConfig(**options)
        super().__init__(c)
        self.require_size(17, "two 9x9 convolutions")
        self.stem = nn.Sequential(ConvBlock(c.channels, c.stem_channels, kernel=9, padding=0))
        leak = Competition.build(c.competition).leak
        self.primary = PrimaryCaps(
            c.stem_channels,
            c.caps,
            c.primary_dim,
            kernel=9,
            padding=0,
            relu=False,
            activation="squash",
            divide_by=c.caps + leak if c.faithful else 1,
        )
        self.conv_caps = nn.ModuleList()
        height, width = ((side - 8 - 9) // 2 + 1 for side in self.image_size)
        self.class_caps = ClassCaps(
            c.caps,
            c.primary_dim,
            c.classes,
            c.dim,
            in_size=(height, width),
            votes="window",
            bias=False,
            routing=c.routing or f"dynamic(iterations={c.iterations}{', bias=True' if c.faithful else ''})",
            competition=c.competition,
            activation="squash",
        )
        self.score = Score.build("length", c.classes, c.dim, self.class_caps.activation.max_length)
        self.loss_function = Loss.build(c.loss)
        image_shape = (c.channels, *self.image_size)
        self.decoder = Decoder(c.classes, c.dim, image_shape, hidden=(512, 1024)) if c.decoder else None
        if c.faithful:
            self.reconstruction_weight = 0.01 * prod(image_shape)
            for name, parameter in self.named_parameters():
                if name.endswith("bias"):
                    nn.init.constant_(parameter, 0.1)
                else:
                    deviation = 0.05 if name.startswith("stem") else 0.1
                    nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
